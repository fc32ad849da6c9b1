package tui

import "strings"

// filter is the words that a list is narrowed by. All of them must hold: a word
// occurs in what a row says, !word does not, and the letters of ~word occur in its
// order, with others between them.
type filter []clause

// clause is one word of a filter, in lower case.
type clause struct {
	word    string
	inverse bool
	fuzzy   bool
}

// parseFilter reads what was typed. A mark without a word asks for nothing, so that
// a list does not go empty while one is being typed.
func parseFilter(text string) filter {
	var f filter
	for _, word := range strings.Fields(strings.ToLower(text)) {
		t := clause{word: word}
		t.word, t.inverse = strings.CutPrefix(t.word, "!")
		t.word, t.fuzzy = strings.CutPrefix(t.word, "~")
		if t.word != "" {
			f = append(f, t)
		}
	}
	return f
}

// matches reports whether a row passes that says what any of the texts says.
func (f filter) matches(texts ...string) bool {
	for _, t := range f {
		found := false
		for _, text := range texts {
			if t.in(text) {
				found = true
				break
			}
		}
		if found == t.inverse {
			return false
		}
	}
	return true
}

// in looks for the word in a text, whatever the text's case.
func (t clause) in(text string) bool {
	text = strings.ToLower(text)
	if !t.fuzzy {
		return strings.Contains(text, t.word)
	}
	word := []rune(t.word)
	for _, r := range text {
		if r == word[0] {
			if word = word[1:]; len(word) == 0 {
				return true
			}
		}
	}
	return false
}
