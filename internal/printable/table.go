package printable

import (
	"bytes"
	"fmt"
	"io"
	"reflect"
	"regexp"
	"strings"
	"text/tabwriter"
	"unicode/utf8"
)

// Table prints rows of cells in columns that are two spaces apart: columns of numbers are right-aligned, with their
// titles, the others left-aligned. Cells are sanitised by Line, so they cannot add rows or columns. If the writer is a
// CellPainter, or a Writer to one, it chooses the colour of each cell.
type Table struct {
	w      io.Writer
	rows   [][]string
	titles [][]string // of the columns of each row; nil = the first row of its section
	hidden []string   // see HideTitles
}

// CellPainter is a writer to a terminal that shows cells of tables in colours.
type CellPainter interface {
	io.Writer
	// PaintCell returns a cell in the column of a title with the escape codes of its colour; unchanged if it has none.
	PaintCell(title, cell string) string
}

// NewTable returns a table that Flush writes to w.
func NewTable(w io.Writer) *Table { return &Table{w: w} }

// HideTitles names the columns of the following rows, without printing the titles.
func (t *Table) HideTitles(titles ...string) { t.hidden = titles }

// Row adds a row of cells.
func (t *Table) Row(cells ...string) {
	safe := make([]string, len(cells))
	for i, c := range cells {
		safe[i] = Line(c)
	}
	t.add(safe)
}

func (t *Table) add(row []string) {
	t.rows, t.titles = append(t.rows, row), append(t.titles, t.hidden)
}

// Rowf adds a row by a format in which tabs end cells, and newlines rows; text arguments are sanitised by Line.
func (t *Table) Rowf(format string, args ...any) {
	safe := make([]any, len(args))
	for i, a := range args {
		safe[i] = lineOf(a)
	}
	for line := range strings.SplitSeq(fmt.Sprintf(format, safe...), "\n") {
		t.add(strings.Split(line, "\t"))
	}
}

// lineOf returns an argument sanitised by Line; numbers and booleans are unchanged.
func lineOf(a any) any {
	switch reflect.ValueOf(a).Kind() {
	case reflect.Invalid, reflect.Bool, reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64,
		reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64, reflect.Float32, reflect.Float64:
		return a
	}
	return Line(fmt.Sprint(a))
}

// Flush aligns the rows and writes them. A row with one cell or none ends a section, whose columns are aligned
// without regard to those of other sections. The first row of a section may hold its titles.
func (t *Table) Flush() error {
	for at := 0; at < len(t.rows); {
		end := at
		for end < len(t.rows) && len(t.rows[end]) > 1 {
			end++
		}
		alignNumbers(t.rows[at:end])
		for i := at + 1; i < end; i++ {
			if t.titles[i] == nil {
				t.titles[i] = t.rows[at]
			}
		}
		at = end + 1
	}
	var text bytes.Buffer
	w := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)
	for _, row := range t.rows {
		fmt.Fprintln(w, strings.Join(row, "\t"))
	}
	if err := w.Flush(); err != nil {
		return err
	}
	out := text.String()
	painter, paints := Unwrap(t.w).(CellPainter)
	if paints {
		out = t.paint(painter, out)
	}
	t.rows, t.titles = nil, nil
	_, err := io.WriteString(Raw(t.w), out) // the cells are sanitised
	return err
}

// paint returns the aligned rows, one a line, with colours.
func (t *Table) paint(painter CellPainter, text string) string {
	var b strings.Builder
	row := 0
	for line := range strings.Lines(text) {
		for column, cell := range t.rows[row] {
			at := max(strings.Index(line, cell), 0) // only blanks are before it
			at += len(cell) - len(strings.TrimLeft(cell, " "))
			b.WriteString(line[:at])
			word := strings.TrimSpace(cell)
			line = line[at+len(word):]
			if titles := t.titles[row]; column < len(titles) && word != "" {
				word = painter.PaintCell(strings.TrimSpace(titles[column]), word)
			}
			b.WriteString(word)
		}
		b.WriteString(line)
		row++
	}
	return b.String()
}

// number matches a number with its sign, unit and deviation: 12, -0.5, $1.20/h, >= 3 USD, 34.1%, 5 GiB, 12 ±2 ms; and
// durations such as 1h20m0s.
var number = regexp.MustCompile(`^([<>=~+-]+ ?)?\$?(\d[\d,]*(\.\d+)?(-\d[\d,]*(\.\d+)?)?( ?±\d+(\.\d+)?)?( ?[A-Za-zµ%°/]{1,10})?|(\d+(\.\d+)?(d|h|m|s|ms|µs))+)$`)

// unknownCell are the cells of unknown values, which any column may have.
var unknownCell = map[string]bool{"": true, "-": true, "unknown": true}

// alignNumbers pads the cells of the columns that have only numbers below the first row, which may hold titles.
func alignNumbers(rows [][]string) {
	for column := 0; ; column++ {
		var used, numbers, words bool
		width := 0
		for i, row := range rows {
			if column >= len(row) {
				continue
			}
			used, width = true, max(width, utf8.RuneCountInString(row[column]))
			isNumber := number.MatchString(row[column])
			numbers = numbers || isNumber
			words = words || i > 0 && !isNumber && !unknownCell[row[column]]
		}
		if !used {
			return
		}
		if !numbers || words {
			continue
		}
		for _, row := range rows {
			if column < len(row) {
				row[column] = strings.Repeat(" ", width-utf8.RuneCountInString(row[column])) + row[column]
			}
		}
	}
}
