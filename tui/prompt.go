package tui

import (
	"slices"
	"strings"
	"unicode"

	tea "charm.land/bubbletea/v2"
)

// prompt is the line in which a filter or a command is typed.
type prompt struct {
	open   bool
	mark   rune   // '/' for a filter, ':' for a command
	note   string // what a command lacked
	runes  []rune
	cursor int // runes before the cursor
}

// maxFilter is the length of a filter in characters.
const maxFilter = 200

// openPrompt begins to type, from what is in force.
func openPrompt(mark rune, value string) prompt {
	p := prompt{open: true, mark: mark}
	p.insert(value)
	return p
}

// value is what was typed.
func (p *prompt) value() string { return string(p.runes) }

// insert types text at the cursor; what is no printable character is left out.
func (p *prompt) insert(text string) {
	for _, r := range clean(text) {
		if unicode.IsPrint(r) && len(p.runes) < maxFilter {
			p.runes = slices.Insert(p.runes, p.cursor, r)
			p.cursor++
		}
	}
}

// remove deletes the characters from the one to the other.
func (p *prompt) remove(from, to int) {
	from, to = max(from, 0), min(to, len(p.runes))
	if from >= to {
		return
	}
	p.runes = slices.Delete(p.runes, from, to)
	p.cursor = from
}

// wordStart is where the word before the cursor begins.
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

// edit takes a keystroke, with the keys that a shell's line has.
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

// promptKey takes a keystroke while something is typed; a list follows each letter
// of its filter.
func (m *Model) promptKey(msg tea.KeyPressMsg) tea.Cmd {
	s := &m.screen
	switch msg.String() {
	case "enter":
		if s.prompt.mark == ':' {
			return m.command(s.prompt.value())
		}
		s.prompt = prompt{}
		return nil
	case "esc":
		if s.prompt.mark == '/' {
			s.setFilter("")
		}
		s.prompt = prompt{}
		return nil
	case "tab":
		if s.prompt.mark == ':' {
			s.complete()
		}
		return nil
	}
	s.prompt.edit(msg)
	s.typed()
	return nil
}

// typed lets the list follow what is typed.
func (s *screen) typed() {
	s.prompt.note = ""
	if s.prompt.mark == '/' {
		s.setFilter(s.prompt.value())
	}
}

// promptLine is what is typed, with what there is to know about it on the right.
func (s *screen) promptLine() string {
	left, _ := s.promptView()
	right, p := s.promptHint()
	if gap := s.width - width(left) - width(right); gap >= 2 {
		return s.theme.title.over(left) + strings.Repeat(" ", gap) + p.over(right)
	}
	return s.theme.title.over(left)
}

// promptHint says how many rows pass a filter, or what a command may be.
func (s *screen) promptHint() (string, paint) {
	switch {
	case s.prompt.note != "":
		return s.theme.text(s.prompt.note), s.theme.bad
	case s.prompt.mark == ':':
		return strings.Join(firstOf(s.completions(s.prompt.value()), mostCompletions), " "), s.theme.muted
	case s.panel.open():
		return plural(len(s.panel.passing()), "line") + "  enter keeps, esc clears", s.theme.muted
	}
	shown, _ := s.pane().counts()
	return plural(shown, s.pane().noun()) + "  enter keeps, esc clears", s.theme.muted
}

// promptView is the part of the line that fits, with the cursor in it, and the
// cell that the cursor stands on.
func (s *screen) promptView() (line string, column int) {
	before := []rune(s.theme.text(string(s.prompt.runes[:s.prompt.cursor])))
	for len(before) > 0 && width(string(before)) > max(s.width-2, 0) {
		before = before[1:]
	}
	head := string(s.prompt.mark) + string(before)
	after := s.theme.text(string(s.prompt.runes[s.prompt.cursor:]))
	return cut(head+after, s.width, ""), min(width(head), max(s.width-1, 0))
}
