package tui

import (
	"slices"
	"strings"
	"unicode"

	tea "charm.land/bubbletea/v2"
)

// prompt is the line in which a filter is typed.
type prompt struct {
	open   bool
	runes  []rune
	cursor int // runes before the cursor
}

// maxFilter is the length of a filter in characters.
const maxFilter = 200

// openPrompt begins to type, from what is in force.
func openPrompt(value string) prompt {
	p := prompt{open: true}
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

// promptKey takes a keystroke while a filter is typed; the table follows each.
func (s *screen) promptKey(msg tea.KeyPressMsg) tea.Cmd {
	switch msg.String() {
	case "ctrl+c":
		return tea.Quit
	case "enter":
		s.prompt = prompt{}
		return nil
	case "esc":
		s.prompt, s.table.filter = prompt{}, ""
		return nil
	}
	s.prompt.edit(msg)
	s.table.filter = s.prompt.value()
	return nil
}

// promptLine is the filter while it is typed.
func (s *screen) promptLine() string {
	left, _ := s.promptView()
	right := plural(len(s.table.rows), "replica") + "  enter keeps, esc clears"
	if gap := s.width - width(left) - width(right); gap >= 2 {
		return s.theme.title.over(left) + strings.Repeat(" ", gap) + s.theme.muted.over(right)
	}
	return s.theme.title.over(left)
}

// promptView is the part of the line that fits, with the cursor in it, and the
// cell that the cursor stands on.
func (s *screen) promptView() (line string, column int) {
	before := []rune(s.theme.text(string(s.prompt.runes[:s.prompt.cursor])))
	for len(before) > 0 && width(string(before)) > max(s.width-2, 0) {
		before = before[1:]
	}
	head := "/" + string(before)
	after := s.theme.text(string(s.prompt.runes[s.prompt.cursor:]))
	return cut(head+after, s.width, ""), min(width(head), max(s.width-1, 0))
}
