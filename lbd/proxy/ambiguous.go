package proxy

import (
	"bytes"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// ambiguous is a top-level key that two readers of a body can take for two different
// things. The engine must not act upon what was not seen here, so the body is refused.
type ambiguous struct {
	key     string // as decoders read it, or as it is to be written
	problem string
}

// Error names the key and says what to write.
func (a *ambiguous) Error() string { return fmt.Sprintf("key %q: %s", a.key, a.problem) }

// checkKey refuses a top-level key that is written in a misleading way: with escapes
// that its characters do not need, or in a case that only some readers tell from a
// key that is acted upon. raw is the key as it stands in the body, with its quotes.
func checkKey(c *call, raw, value []byte) error {
	name := canonical(raw)
	inner := name[1 : len(name)-1]
	if len(name) != len(raw) && identifier(inner) {
		return &ambiguous{string(inner), fmt.Sprintf("it is written with escapes, as %s: write it without", asWritten(raw))}
	}
	if folded := fold(name); folded != nil && (c.field(folded) != nil || forbids(folded, value)) {
		return &ambiguous{string(folded[1 : len(folded)-1]), fmt.Sprintf("it is written as %s: write it in lower case", asWritten(raw))}
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
	said, _ := text(raw, nil)
	if len(said) == len(raw)-2 {
		return raw
	}
	return append(append([]byte{'"'}, said...), '"')
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

// longestName is more than any parameter's name has.
const longestName = 64

// fold is a quoted name in lower case, as readers have it that do not tell upper
// from lower case (Go's encoding/json); nil where it is written so.
func fold(name []byte) []byte {
	if len(name) > longestName {
		return nil
	}
	for _, b := range name {
		if b >= 'A' && b <= 'Z' || b >= utf8.RuneSelf {
			return bytes.Map(lowest, name)
		}
	}
	return nil
}

// lowest stands for all characters that differ by case only: k for the sign of
// kelvin, s for the long s.
func lowest(r rune) rune {
	least := r
	for next := unicode.SimpleFold(r); next != r; next = unicode.SimpleFold(next) {
		least = min(least, next)
	}
	return unicode.ToLower(least)
}
