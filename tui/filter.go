package tui

import "strings"

// filter is a parsed filter. A row matches if all clauses hold: word occurs in the row,
// !word does not, the letters of ~word occur in this order with any others between, and
// =word is the whole text of one of its fields.
type filter []clause

// clause is one word of a filter, in lower case.
type clause struct {
	word    string
	inverse bool
	fuzzy   bool
	exact   bool
}

// parseFilter parses a filter. A !, ~ or = without a word is ignored, so that the list does
// not become empty while the user types.
func parseFilter(text string) filter {
	var f filter
	for _, word := range strings.Fields(strings.ToLower(text)) {
		t := clause{word: word}
		t.word, t.inverse = strings.CutPrefix(t.word, "!")
		t.word, t.fuzzy = strings.CutPrefix(t.word, "~")
		if !t.fuzzy {
			t.word, t.exact = strings.CutPrefix(t.word, "=")
		}
		if t.word != "" {
			f = append(f, t)
		}
	}
	return f
}

// exactFilter returns the filter for rows with a field of that text. A text of several words, which
// the filter would separate, is only searched for.
func exactFilter(text string) string {
	if len(strings.Fields(text)) != 1 {
		return text
	}
	return "=" + text
}

// matches reports whether a row with these texts matches the filter.
func (f filter) matches(texts ...string) bool {
	for _, t := range f {
		found := false
		for _, text := range texts {
			if t.occursIn(text) {
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

// occursIn reports whether the clause's word occurs in a text, or is the text, ignoring case.
func (t clause) occursIn(text string) bool {
	text = strings.ToLower(text)
	switch {
	case t.exact:
		return text == t.word
	case !t.fuzzy:
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
