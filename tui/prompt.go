package tui

import (
	"slices"
	"strings"
	"unicode"

	tea "charm.land/bubbletea/v2"

	"skyserve/internal/printable"
)

// prompt is the input line for a filter or a command.
type prompt struct {
	open    bool
	kind    rune   // '/' for a filter, ':' for a command
	problem string // why the command was rejected
	runes   []rune
	cursor  int // runes before the cursor
}

// maxFilter is the maximum length of the input in characters.
const maxFilter = 200

// openPrompt returns an open prompt that contains value.
func openPrompt(mark rune, value string) prompt {
	p := prompt{open: true, kind: mark}
	p.insert(value)
	return p
}

// value returns the text in the prompt.
func (p *prompt) value() string { return string(p.runes) }

// insert inserts text at the cursor, without its unprintable characters.
func (p *prompt) insert(text string) {
	for _, r := range clean(text) {
		if unicode.IsPrint(r) && len(p.runes) < maxFilter {
			p.runes = slices.Insert(p.runes, p.cursor, r)
			p.cursor++
		}
	}
}

// remove deletes the characters from index from up to to.
func (p *prompt) remove(from, to int) {
	from, to = max(from, 0), min(to, len(p.runes))
	if from >= to {
		return
	}
	p.runes = slices.Delete(p.runes, from, to)
	p.cursor = from
}

// wordStart returns the start of the word before the cursor.
func (p *prompt) wordStart() int {
	i := p.cursor
	for i > 0 && p.runes[i-1] == ' ' {
		i--
	}
	for i > 0 && p.runes[i-1] != ' ' {
		i--
	}
	return i
}

// edit handles an editing key, as a shell's command line does.
func (p *prompt) edit(msg tea.KeyPressMsg) {
	switch msg.String() {
	case "backspace", "ctrl+h":
		p.remove(p.cursor-1, p.cursor)
	case "delete", "ctrl+d":
		p.remove(p.cursor, p.cursor+1)
	case "ctrl+w":
		p.remove(p.wordStart(), p.cursor)
	case "ctrl+u":
		p.remove(0, p.cursor)
	case "ctrl+k":
		p.remove(p.cursor, len(p.runes))
	case "left", "ctrl+b":
		p.cursor = max(p.cursor-1, 0)
	case "right", "ctrl+f":
		p.cursor = min(p.cursor+1, len(p.runes))
	case "home", "ctrl+a":
		p.cursor = 0
	case "end", "ctrl+e":
		p.cursor = len(p.runes)
	default:
		p.insert(msg.Text)
	}
}

// promptKey handles a keystroke while the prompt is open. A filter applies as it is typed.
func (m *Model) promptKey(msg tea.KeyPressMsg) tea.Cmd {
	s := &m.screen
	switch msg.String() {
	case "enter":
		if s.prompt.kind == ':' {
			return m.runCommand(s.prompt.value())
		}
		s.prompt = prompt{}
		return nil
	case "esc":
		if s.prompt.kind == '/' {
			s.setFilter("")
		}
		s.prompt = prompt{}
		return nil
	case "tab":
		if s.prompt.kind == ':' {
			s.completeCommand()
		}
		return nil
	}
	s.prompt.edit(msg)
	s.promptEdited()
	return nil
}

// promptEdited applies the filter after an edit.
func (s *screen) promptEdited() {
	s.prompt.problem = ""
	if s.prompt.kind == '/' {
		s.setFilter(s.prompt.value())
	}
}

// promptLine draws the prompt, with its hint on the right.
func (s *screen) promptLine() string {
	left, _ := s.promptView()
	right, p := s.promptHint()
	if s.prompt.problem != "" { // an error is shown at any width
		right = s.theme.cut(right, max(s.width-width(left)-2, s.width/2))
		left = s.theme.cut(left, s.width-width(right)-2)
	}
	if gap := s.width - width(left) - width(right); gap >= 2 {
		return s.theme.title.apply(left) + strings.Repeat(" ", gap) + p.apply(right)
	}
	return s.theme.title.apply(left)
}

// promptHint returns the error or the completions of a command, or the number of rows that
// match a filter.
func (s *screen) promptHint() (string, paint) {
	switch {
	case s.prompt.problem != "":
		return s.theme.text(s.prompt.problem), s.theme.bad
	case s.prompt.kind == ':':
		return strings.Join(firstWords(s.completions(s.prompt.value()), maxCompletions), " "), s.theme.muted
	case s.panel.open():
		return printable.Count(len(s.panel.matchingLines()), "line") + "  enter keep, esc clear", s.theme.muted
	}
	shown, _ := s.pane().counts()
	return printable.Count(shown, s.pane().noun()) + "  enter keep, esc clear", s.theme.muted
}

// promptView returns the visible part of the line around the cursor, and the cursor's cell.
func (s *screen) promptView() (line string, column int) {
	before := []rune(s.theme.text(string(s.prompt.runes[:s.prompt.cursor])))
	for len(before) > 0 && width(string(before)) > max(s.width-2, 0) {
		before = before[1:]
	}
	head := string(s.prompt.kind) + string(before)
	after := s.theme.text(string(s.prompt.runes[s.prompt.cursor:]))
	return cut(head+after, s.width, ""), min(width(head), max(s.width-1, 0))
}
