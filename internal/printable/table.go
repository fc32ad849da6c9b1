package printable

import (
	"fmt"
	"io"
	"reflect"
	"strings"
	"text/tabwriter"
)

// Table lays rows of cells out in columns that are two spaces apart. Cells go through
// Line: none adds a row or a column.
type Table struct{ w *tabwriter.Writer }

// NewTable is a table whose cells are flush left, written to w by Flush.
func NewTable(w io.Writer) *Table { return &Table{tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)} }

// NewRightTable is a table whose cells are flush right; the last cell of a row must end
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
	_, _ = io.WriteString(t.w, strings.Join(safe, "\t")+"\n") // Flush gives the error
}

// Rowf adds a row by a format in which tabs end cells; texts among the arguments go
// through Line.
func (t *Table) Rowf(format string, args ...any) {
	safe := make([]any, len(args))
	for i, a := range args {
		safe[i] = lineOf(a)
	}
	_, _ = fmt.Fprintf(t.w, format+"\n", safe...) // Flush gives the error
}

// lineOf is an argument with its text made one harmless line; figures stay as they are.
func lineOf(a any) any {
	switch reflect.ValueOf(a).Kind() {
	case reflect.Invalid, reflect.Bool, reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64,
		reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64, reflect.Float32, reflect.Float64:
		return a
	}
	return Line(fmt.Sprint(a))
}

// Flush lays the rows out and writes them.
func (t *Table) Flush() error { return t.w.Flush() }
