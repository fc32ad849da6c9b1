package printable

import (
	"cmp"
	"slices"
	"unicode/utf8"
)

// FittingWriter is a terminal with a number of columns; 0 if it is unknown.
type FittingWriter interface{ Columns() int }

// Fitting says how a table becomes narrower on a terminal that has too few columns for it.
type Fitting struct {
	// Optional are titles of columns that may be omitted, the first ones first.
	Optional []string
	// Whole are titles of columns that are never cut, besides ID and those of numbers: people copy their cells.
	Whole []string
	// Readable are widths, by title, below which a column is not cut; 0 = minCut.
	Readable map[string]int
}

const (
	columnGap = 2 // between two columns of a table
	// minCut is the width below which a column is not cut: shorter words say nothing.
	minCut = 12
	cutEnd = "…"
)

// fit makes the rows of a table fit into a number of columns, as far as possible. The first row may hold the titles. It
// omits columns that have only unknown cells, then the optional ones in their order, as few as necessary, and cuts the
// widest texts. It never cuts numbers and the columns that stay whole. It returns the titles of the remaining columns.
func (f Fitting) fit(titles []string, rows [][]string, columns int) []string {
	titles = slices.Clone(titles)
	first := 0
	if slices.Equal(titles, rows[0]) {
		first = 1
	}
	omit := func(at int) {
		for i, row := range rows {
			if at < len(row) {
				rows[i] = slices.Delete(row, at, at+1)
			}
		}
		titles = slices.Delete(titles, at, at+1)
	}
	for at := len(titles) - 1; at >= 0 && tableWidth(columnWidths(rows)) > columns; at-- {
		if known := func(row []string) bool { return at < len(row) && !unknownCell[row[at]] }; !slices.ContainsFunc(rows[first:], known) {
			omit(at)
		}
	}
	for _, title := range f.Optional {
		if at := slices.Index(titles, title); at >= 0 && tableWidth(f.limits(titles, rows, first)) > columns {
			omit(at)
		}
	}
	cutTexts(rows, f.limits(titles, rows, first), columns)
	return titles
}

// limits returns the widths below which the columns are not cut. first is the first row below the titles.
func (f Fitting) limits(titles []string, rows [][]string, first int) []int {
	widths := columnWidths(rows)
	for at, w := range widths {
		if at < len(titles) && !f.isWhole(titles[at]) && !numeric(rows[first:], at) {
			widths[at] = min(w, cmp.Or(f.Readable[titles[at]], minCut))
		}
	}
	return widths
}

// cutTexts cuts the widest texts to fit into a number of columns. limits are the widths below which they are not cut.
func cutTexts(rows [][]string, limits []int, columns int) {
	widths := columnWidths(rows)
	for tableWidth(widths) > columns {
		widest := -1
		for at, w := range widths {
			if w > limits[at] && (widest < 0 || w > widths[widest]) {
				widest = at
			}
		}
		if widest < 0 {
			break
		}
		widths[widest]--
	}
	for _, row := range rows {
		for at, cell := range row {
			if utf8.RuneCountInString(cell) > widths[at] {
				row[at] = string([]rune(cell)[:widths[at]-1]) + cutEnd
			}
		}
	}
}

// isWhole reports whether the column of a title is never cut.
func (f Fitting) isWhole(title string) bool { return title == "ID" || slices.Contains(f.Whole, title) }

// columnWidths returns the width of each column.
func columnWidths(rows [][]string) (widths []int) {
	for _, row := range rows {
		for at, cell := range row {
			if at == len(widths) {
				widths = append(widths, 0)
			}
			widths[at] = max(widths[at], utf8.RuneCountInString(cell))
		}
	}
	return widths
}

// tableWidth returns the width of a table whose columns have these widths.
func tableWidth(columns []int) (width int) {
	for _, w := range columns {
		width += w + columnGap
	}
	return width - columnGap
}

// numeric reports whether a column has only numbers.
func numeric(rows [][]string, column int) bool {
	return !slices.ContainsFunc(rows, func(row []string) bool {
		return column < len(row) && !number.MatchString(row[column]) && !unknownCell[row[column]]
	})
}
