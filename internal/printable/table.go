package printable

import (
	"bytes"
	"fmt"
	"io"
	"reflect"
	"regexp"
	"slices"
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
	fits   *Fitting   // see Fit
	keeps  bool       // see KeepColumns
	before *earlier   // the rows that were written; nil = none
}

// earlier describes the rows of a table that were written before.
type earlier struct {
	all, kept []string // the titles of all columns, and of those that were written
	widths    []int    // of the written ones
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

// Fit makes a table whose rows have titles fit into the columns of a FittingWriter, as far as possible: columns without
// known cells are omitted, then the optional ones in their order, and the longest texts are cut.
func (t *Table) Fit(f Fitting) { t.fits = &f }

// KeepColumns makes later calls of Flush align their rows with the earlier ones, in the same columns. The table must be
// one section, whose titles are the first row or hidden.
func (t *Table) KeepColumns() { t.keeps = true }

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
	ruled := t.before != nil
	if ruled {
		t.addRuler()
	}
	for at := 0; at < len(t.rows); {
		end := at
		for end < len(t.rows) && len(t.rows[end]) > 1 {
			end++
		}
		t.fitSection(at, end)
		alignNumbers(t.rows[at:end])
		for i := at + 1; i < end; i++ {
			if t.titles[i] == nil {
				t.titles[i] = t.rows[at]
			}
		}
		at = end + 1
	}
	var text bytes.Buffer
	w := tabwriter.NewWriter(&text, 0, 0, columnGap, ' ', 0)
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
	if ruled {
		_, out, _ = strings.Cut(out, "\n")
	}
	t.rows, t.titles = nil, nil
	_, err := io.WriteString(Raw(t.w), out) // the cells are sanitised
	return err
}

// fitSection makes a section of rows fit into the columns of a terminal.
func (t *Table) fitSection(at, end int) {
	if at == end {
		return
	}
	section, all := t.rows[at:end], t.titles[at]
	if all == nil {
		all = section[0]
	}
	all, kept := slices.Clone(all), all
	if screen, fits := Unwrap(t.w).(FittingWriter); fits && t.fits != nil && screen.Columns() > 0 {
		if t.before != nil {
			cutTexts(section, t.fits.limits(all, section, 1), screen.Columns())
		} else {
			kept = t.fits.fit(all, section, screen.Columns())
		}
	}
	if t.titles[at] != nil && !slices.Equal(kept, all) {
		for i := at; i < end; i++ {
			t.titles[i] = kept
		}
	}
	if t.keeps {
		if t.before == nil {
			t.before = &earlier{all: all, kept: slices.Clone(kept)}
		}
		t.before.widths = columnWidths(section)
	}
}

// addRuler limits the rows to the columns of the earlier ones, and puts a row before them that is as wide.
func (t *Table) addRuler() {
	ruler := make([]string, len(t.before.kept))
	for i, title := range t.before.kept {
		ruler[i] = title + strings.Repeat(" ", max(0, t.before.widths[i]-utf8.RuneCountInString(title)))
	}
	rows := [][]string{ruler}
	for _, row := range t.rows {
		var cells []string
		for i, cell := range row {
			if slices.Contains(t.before.kept, t.before.all[i]) {
				cells = append(cells, cell)
			}
		}
		rows = append(rows, cells)
	}
	t.rows, t.titles = rows, slices.Repeat([][]string{t.before.kept}, len(rows))
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
