package printable

import (
	"fmt"
	"io"
	"reflect"
	"strings"
	"text/tabwriter"
)

// Table prints rows of cells in columns that are two spaces apart. Cells are sanitised by
// Line, so they cannot add rows or columns.
type Table struct{ w *tabwriter.Writer }

// NewTable returns a table with left-aligned cells, written to w by Flush.
func NewTable(w io.Writer) *Table { return &Table{tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)} }

// NewRightTable returns a table with right-aligned cells; the last cell of a row must end
// in a tab, too.
func NewRightTable(w io.Writer) *Table {
	return &Table{tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)}
}

// Row adds a row of cells.
func (t *Table) Row(cells ...string) {
	safe := make([]string, len(cells))
	for i, c := range cells {
		safe[i] = Line(c)
	}
	_, _ = io.WriteString(t.w, strings.Join(safe, "\t")+"\n") // Flush returns the error
}

// Rowf adds a row by a format in which tabs end cells; text arguments are sanitised by
// Line.
func (t *Table) Rowf(format string, args ...any) {
	safe := make([]any, len(args))
	for i, a := range args {
		safe[i] = lineOf(a)
	}
	_, _ = fmt.Fprintf(t.w, format+"\n", safe...) // Flush returns the error
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

// Flush aligns the rows and writes them.
func (t *Table) Flush() error { return t.w.Flush() }
