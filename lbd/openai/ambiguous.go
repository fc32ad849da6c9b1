package openai

import (
	"bytes"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// AmbiguousKeyError is a top-level key that two readers of a body can take for two different
// things. The engine must not act upon what was not seen here, so the body is refused.
type AmbiguousKeyError struct {
	Key     string // as decoders read it, or as it is to be written
	problem string
}

// Error names the key and says what to write.
func (a *AmbiguousKeyError) Error() string { return fmt.Sprintf("key %q: %s", a.Key, a.problem) }

// checkSpelling refuses a top-level key that is written in a misleading way: with escapes
// that its characters do not need, or in a case that only some readers tell from a
// key that is acted upon. raw is the key as it stands in the body, with its quotes.
func checkSpelling(c *Call, raw, value []byte) error {
	name := canonical(raw)
	inner := name[1 : len(name)-1]
	if len(name) != len(raw) && identifier(inner) {
		return &AmbiguousKeyError{string(inner), fmt.Sprintf("it is written with escapes, as %s: write it without", asWritten(raw))}
	}
	if folded := foldCase(name); folded != nil && (c.field(folded) != nil || forbids(folded, value)) {
		return &AmbiguousKeyError{string(folded[1 : len(folded)-1]), fmt.Sprintf("it is written as %s: write it in lower case", asWritten(raw))}
	}
	return nil
}

// asWritten is the beginning of a key as it stands in the body, with its quotes.
func asWritten(raw []byte) string { return strings.ToValidUTF8(string(raw[:min(len(raw), 80)]), "") }

// canonical is a quoted key as decoders read it, in quotes and without escapes. One
// whose escapes mean nothing stays as it is.
func canonical(raw []byte) []byte {
	if bytes.IndexByte(raw, '\\') < 0 {
		return raw
	}
	plain, _ := text(raw, nil)
	if len(plain) == len(raw)-2 {
		return raw
	}
	return append(append([]byte{'"'}, plain...), '"')
}

// identifier says whether a name is one that parameters have, which needs no escapes.
func identifier(name []byte) bool {
	for _, b := range name {
		if !digit(b) && b != '_' && b != '-' && b != '.' && (b|0x20 < 'a' || b|0x20 > 'z') {
			return false
		}
	}
	return true
}

// maxNameBytes is more than any parameter's name has.
const maxNameBytes = 64

// foldCase is a quoted name in lower case, as readers have it that do not tell upper
// from lower case (Go's encoding/json); nil where it is written so.
func foldCase(name []byte) []byte {
	if len(name) > maxNameBytes {
		return nil
	}
	for _, b := range name {
		if b >= 'A' && b <= 'Z' || b >= utf8.RuneSelf {
			return bytes.Map(lowestCase, name)
		}
	}
	return nil
}

// lowestCase stands for all characters that differ by case only: k for the sign of
// kelvin, s for the long s.
func lowestCase(r rune) rune {
	least := r
	for next := unicode.SimpleFold(r); next != r; next = unicode.SimpleFold(next) {
		least = min(least, next)
	}
	return unicode.ToLower(least)
}
