package service

import (
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"unicode"
)

// Nearest returns the word that is most similar to s; "" if none is similar. Of equally similar words
// it returns the first.
func Nearest(s string, words []string) string {
	best, bestDist := "", 1+max(1, len(s)/3)
	for _, w := range words {
		if d := distance(strings.ToLower(s), strings.ToLower(w)); d < bestDist {
			best, bestDist = w, d
		}
	}
	return best
}

// didYouMean suggests the nearest word, or lists all words.
func didYouMean(s string, words []string, what string) string {
	if w := Nearest(s, words); w != "" {
		return fmt.Sprintf("did you mean %q?", w)
	}
	return what + " " + strings.Join(words, ", ")
}

var (
	// plainElement matches text that YAML reads as text without quotes in a list, except wordElement.
	plainElement = LazyPattern(`^-{0,2}[A-Za-z/][A-Za-z0-9._/=+-]*$`)
	wordElement  = LazyPattern(`^(?i:true|false|yes|no|on|off|y|n|null)$`)
)

// suggestElements is the suggestion where the elements cannot be told apart.
const suggestElements = `write each argument as an element, such as [--max-model-len, "8192"]`

// suggestList suggests the list that was meant by a text in its place. Elements end at spaces; except in arguments, at
// commas too.
func suggestList(text string, kind reflect.Kind, ruleKey string) string {
	isArgs := ruleKey == "Engine.args"
	if isArgs && strings.ContainsAny(text, `'"`) { // a quoted argument may contain spaces
		return suggestElements
	}
	parts := strings.FieldsFunc(shorten(text), func(r rune) bool { return unicode.IsSpace(r) || r == ',' && !isArgs })
	if len(parts) == 0 {
		return ""
	}
	return "write [" + joinElements(parts, kind) + "]"
}

// joinElements returns elements of a list as YAML, with quotes where it needs them.
func joinElements(parts []string, kind reflect.Kind) string {
	for i, part := range parts {
		if kind == reflect.String && (!plainElement().MatchString(part) || wordElement().MatchString(part)) {
			parts[i] = strconv.Quote(part)
		}
	}
	return strings.Join(parts, ", ")
}

// distance returns the number of insertions, deletions, replacements and swaps of neighbours that
// turn a into b (optimal string alignment). Long strings are truncated: keys are
// shorter than 64 bytes.
func distance(a, b string) int {
	a, b = a[:min(len(a), 64)], b[:min(len(b), 64)]
	var rows [3][65]int
	before, prev, cur := &rows[0], &rows[1], &rows[2]
	for j := range len(b) + 1 {
		prev[j] = j
	}
	for i := 1; i <= len(a); i++ {
		cur[0] = i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			cur[j] = min(prev[j]+1, cur[j-1]+1, prev[j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				cur[j] = min(cur[j], before[j-2]+1)
			}
		}
		before, prev, cur = prev, cur, before
	}
	return prev[len(b)]
}
