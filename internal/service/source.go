package service

import (
	"fmt"
	"strings"
	"unicode"
)

// source is the text of a document, for the excerpts in errors.
type source struct {
	file  string
	lines []string
	// hidden contains, by line, the columns that may show a secret.
	hidden map[int][]span
}

// span is a range of columns from (inclusive) to until (exclusive), starting at 1.
type span struct{ from, until int }

// endOfLine is a column after the end of every line.
const endOfLine = 1 << 30

// concealed replaces hidden text, whatever its length, which may be secret too. Asterisks would look like a value of the
// file.
const concealed = "(hidden)"

func newSource(file, text string) *source {
	return &source{file: file, lines: strings.Split(text, "\n"), hidden: map[int][]span{}}
}

// hideRange removes the text between two positions from every excerpt.
func (s *source) hideRange(line, col, endLine, endCol int) {
	for l := line; l <= endLine; l++ {
		sp := span{1, endOfLine}
		if l == line {
			sp.from = col
		}
		if l == endLine {
			sp.until = endCol
		}
		if sp.from < sp.until {
			s.hidden[l] = append(s.hidden[l], sp)
		}
	}
}

// isHidden reports whether the character at a position is removed from excerpts.
func (s *source) isHidden(line, col int) bool {
	for _, sp := range s.hidden[line] {
		if sp.from <= col && col < sp.until {
			return true
		}
	}
	return false
}

// maxExcerpt is the maximum number of characters of a line in an excerpt.
const maxExcerpt = 100

// excerpt returns a line and a caret under the column:
//
//	14 |     min: -3
//	   |          ^
//
// After the caret, it explains hidden text.
func (s *source) excerpt(line, col int) string {
	if line < 1 || line > len(s.lines) {
		return ""
	}
	text, caret := s.render(line, col)
	if caret > maxExcerpt {
		cut := caret - maxExcerpt/2
		text, caret = append([]rune("..."), text[min(cut, len(text)):]...), caret-cut+3
	}
	if len(text) > maxExcerpt {
		text = append(text[:maxExcerpt:maxExcerpt], []rune("...")...)
	}
	number := fmt.Sprintf("%4d", line)
	pad, note := strings.Repeat(" ", len(number)), ""
	if strings.Contains(string(text), concealed) {
		note = "  " + concealed + ": values of secrets and unknown keys are not shown"
	}
	return fmt.Sprintf("%s | %s\n%s | %s^%s", number, string(text), pad, strings.Repeat(" ", max(caret-1, 0)), note)
}

// render returns a line with hidden text masked and control characters made visible, and the new
// position of the column.
func (s *source) render(line, col int) (text []rune, caret int) {
	inside := false
	for i, r := range []rune(s.lines[line-1]) {
		if i+1 == col {
			caret = len(text) + 1
		}
		hidden := s.isHidden(line, i+1) && (inside || !unicode.IsSpace(r))
		switch {
		case hidden && !inside:
			text = append(text, []rune(concealed)...)
		case hidden:
			if i+1 == col {
				caret = len(text)
			}
		case r == '\t':
			text = append(text, ' ')
		case !unicode.IsPrint(r):
			text = append(text, '·')
		case inside && r == '#': // a comment, not a part of the value
			text = append(text, ' ', r)
		default:
			text = append(text, r)
		}
		inside = hidden
	}
	if caret == 0 { // a position after the end of the line
		caret = len(text) + 1
	}
	return text, caret
}
