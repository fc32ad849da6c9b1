package openai

import (
	"bytes"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// AmbiguousKeyError is a top-level key that two parsers of a body may interpret differently. The
// engine must not use a value that the balancer did not parse, so the body is rejected.
type AmbiguousKeyError struct {
	Key     string // the decoded key, or its correct form
	problem string
}

// Error contains the key and its correct form.
func (a *AmbiguousKeyError) Error() string { return fmt.Sprintf("key %q: %s", a.Key, a.problem) }

// checkSpelling rejects an ambiguous top-level key: one with unnecessary escapes, or one that only
// case-insensitive parsers treat as a key with an effect. raw is the quoted key as written in the
// body.
func checkSpelling(c *Call, raw, value []byte) error {
	name := canonical(raw)
	inner := name[1 : len(name)-1]
	if len(name) != len(raw) && identifier(inner) {
		return &AmbiguousKeyError{string(inner), fmt.Sprintf("must be written without escapes, got %s", asWritten(raw))}
	}
	if folded := foldCase(name); folded != nil && (c.field(folded) != nil || forbids(folded, value)) {
		return &AmbiguousKeyError{string(folded[1 : len(folded)-1]), fmt.Sprintf("must be written in lower case, got %s", asWritten(raw))}
	}
	return nil
}

// asWritten returns the beginning of a quoted key as written in the body.
func asWritten(raw []byte) string { return strings.ToValidUTF8(string(raw[:min(len(raw), 80)]), "") }

// canonical returns a quoted key decoded, without escapes. A key with invalid escapes is returned
// unchanged.
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

// identifier reports whether a name has only characters of parameter names, which do not need
// escapes.
func identifier(name []byte) bool {
	for _, b := range name {
		if !digit(b) && b != '_' && b != '-' && b != '.' && (b|0x20 < 'a' || b|0x20 > 'z') {
			return false
		}
	}
	return true
}

// maxNameBytes exceeds the length of every parameter's name.
const maxNameBytes = 64

// foldCase returns a quoted name in lower case, as case-insensitive parsers (Go's encoding/json)
// interpret it; nil if it already is in lower case.
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

// lowestCase maps all characters that differ only by case to one character: the kelvin sign to k,
// the long s to s.
func lowestCase(r rune) rune {
	least := r
	for next := unicode.SimpleFold(r); next != r; next = unicode.SimpleFold(next) {
		least = min(least, next)
	}
	return unicode.ToLower(least)
}
