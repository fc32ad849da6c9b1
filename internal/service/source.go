package service

import (
	"fmt"
	"strings"
	"unicode"
)

// source is the text of a document, for the excerpts that errors show.
type source struct {
	file  string
	lines []string
	// hidden holds, by line, the columns that may show a secret.
	hidden map[int][]span
}

// span is columns from (included) to until (not), counted from 1.
type span struct{ from, until int }

// endOfLine is a column beyond every line.
const endOfLine = 1 << 30

// stars stand for what is hidden; always as many, so that they do not tell its length.
const stars = "***"

func newSource(file, text string) *source {
	return &source{file: file, lines: strings.Split(text, "\n"), hidden: map[int][]span{}}
}

// hide keeps the text from one place up to another out of every excerpt.
func (s *source) hide(line, col, endLine, endCol int) {
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

// hides says whether the character at a place is kept out of excerpts.
func (s *source) hides(line, col int) bool {
	for _, sp := range s.hidden[line] {
		if sp.from <= col && col < sp.until {
			return true
		}
	}
	return false
}

// maxExcerpt bounds the characters of a line that an excerpt shows.
const maxExcerpt = 100

// excerpt shows a line and a caret under the column:
//
//	14 |     min: -3
//	   |          ^
func (s *source) excerpt(line, col int) string {
	if line < 1 || line > len(s.lines) {
		return ""
	}
	text, caret := s.shown(line, col)
	if caret > maxExcerpt {
		cut := caret - maxExcerpt/2
		text, caret = append([]rune("..."), text[min(cut, len(text)):]...), caret-cut+3
	}
	if len(text) > maxExcerpt {
		text = append(text[:maxExcerpt:maxExcerpt], []rune("...")...)
	}
	number := fmt.Sprintf("%4d", line)
	pad := strings.Repeat(" ", len(number))
	return fmt.Sprintf("%s | %s\n%s | %s^", number, string(text), pad, strings.Repeat(" ", max(caret-1, 0)))
}

// shown is a line with what is hidden starred out and what a terminal would
// act on made visible, and where in it the column has moved to.
func (s *source) shown(line, col int) (text []rune, caret int) {
	inside := false
	for i, r := range []rune(s.lines[line-1]) {
		if i+1 == col {
			caret = len(text) + 1
		}
		hidden := s.hides(line, i+1) && (inside || !unicode.IsSpace(r))
		switch {
		case hidden && !inside:
			text = append(text, []rune(stars)...)
		case hidden:
			if i+1 == col {
				caret = len(text)
			}
		case r == '\t':
			text = append(text, ' ')
		case !unicode.IsPrint(r):
			text = append(text, '·')
		default:
			text = append(text, r)
		}
		inside = hidden
	}
	if caret == 0 { // a place behind the end of the line
		caret = len(text) + 1
	}
	return text, caret
}
