package printable

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"
)

// Text sanitises text of several lines. Newlines and tabs are kept; complete colour sequences
// (ESC [ ... m) and a carriage return before a newline are removed; every other invisible
// character is escaped: as \x1b below 0x20, else as \u009b, as in JSON, so that a JSON
// document keeps its values. Invalid UTF-8 becomes U+FFFD. Text is idempotent.
func Text(s string) string {
	if plain(s, true) {
		return s
	}
	out, _ := appendSafe(make([]byte, 0, len(s)+16), []byte(s), false, true)
	return string(out)
}

// Line sanitises text of one line, such as a cell or a name. Newlines, tabs and other spaces
// become one space each, and invalid UTF-8 becomes a question mark. Invisible characters are
// removed. So are variation selectors, whose width differs between terminals. Line is
// idempotent.
func Line(s string) string {
	if plain(s, false) {
		return s
	}
	out, _ := appendSafe(make([]byte, 0, len(s)), []byte(s), true, true)
	return string(out)
}

// plain reports whether s is printable ASCII and, if lines is true, newlines and tabs.
func plain[T string | []byte](s T, lines bool) bool {
	for i := range len(s) {
		if (s[i] < ' ' || s[i] > '~') && (!lines || s[i] != '\n' && s[i] != '\t') {
			return false
		}
	}
	return true
}

// maxColourLen is the maximum length of a colour sequence in bytes.
const maxColourLen = 64

// appendSafe appends src sanitised as by Line if oneLine is true, else as by Text. Unless
// final is true it stops before an incomplete character or sequence at the end of src; used
// is the number of bytes processed.
func appendSafe(dst, src []byte, oneLine, final bool) (out []byte, used int) {
	for used < len(src) {
		rest := src[used:]
		if !final && (rest[0] == '\r' && len(rest) == 1 || beginsColour(rest) || !utf8.FullRune(rest)) {
			return dst, used
		}
		if n := colour(rest); n > 0 {
			used += n
			continue
		}
		if !oneLine && len(rest) > 1 && rest[0] == '\r' && rest[1] == '\n' {
			used++
			continue
		}
		r, size := utf8.DecodeRune(rest)
		if oneLine {
			dst = appendInLine(dst, r)
		} else {
			dst = appendInText(dst, r)
		}
		used += size
	}
	return dst, used
}

// colour returns the length of the colour sequence that b begins with, 0 for none.
func colour(b []byte) int {
	if n := parameters(b); n > 0 && n < len(b) && b[n] == 'm' {
		return n + 1
	}
	return 0
}

// beginsColour reports whether b may be the start of a colour sequence.
func beginsColour(b []byte) bool {
	return len(b) < maxColourLen && (len(b) == 1 && b[0] == 0x1b || parameters(b) == len(b))
}

// parameters returns the length of the ESC [ and parameters that b begins with, 0 for none.
func parameters(b []byte) int {
	if len(b) < 2 || b[0] != 0x1b || b[1] != '[' {
		return 0
	}
	n := 2
	for n < len(b) && n < maxColourLen && (b[n] >= '0' && b[n] <= '9' || b[n] == ';' || b[n] == ':') {
		n++
	}
	return n
}

func appendInLine(dst []byte, r rune) []byte {
	switch {
	case r == '\n' || r == '\t' || r == '\r' || unicode.Is(unicode.Z, r):
		return append(dst, ' ')
	case r == unicode.ReplacementChar:
		return append(dst, '?')
	case !shows(r) || unicode.Is(unicode.Variation_Selector, r):
		return dst
	}
	return utf8.AppendRune(dst, r)
}

func appendInText(dst []byte, r rune) []byte {
	switch {
	case r == '\n' || r == '\t' || shows(r):
		return utf8.AppendRune(dst, r)
	case r < ' ':
		return fmt.Appendf(dst, `\x%02x`, r)
	case r > 0xffff:
		high, low := utf16.EncodeRune(r)
		return fmt.Appendf(dst, `\u%04x\u%04x`, high, low)
	}
	return fmt.Appendf(dst, `\u%04x`, r)
}

// shows reports whether a character is visible or a space, and does not change the characters
// around it. The two selectors of text and emoji style are harmless and accepted.
func shows(r rune) bool {
	switch {
	case r == 0xfe0e || r == 0xfe0f:
		return true
	case unicode.Is(unicode.Other_Default_Ignorable_Code_Point, r), unicode.Is(unicode.Variation_Selector, r):
		return false
	}
	return unicode.IsPrint(r) || unicode.Is(unicode.Zs, r)
}

// Count returns n with its noun, which has the regular plural of English unless n is 1.
func Count[T int | int64 | uint64](n T, noun string) string {
	if n != 1 {
		noun = pluralOf(noun)
	}
	return fmt.Sprintf("%d %s", n, noun)
}

// pluralOf returns the regular plural of a noun: entries, days, batches, requests.
func pluralOf(noun string) string {
	switch stem, y := strings.CutSuffix(noun, "y"); {
	case y && stem != "" && !strings.ContainsRune("aeou", rune(stem[len(stem)-1])):
		return stem + "ies"
	case strings.HasSuffix(noun, "ch"), strings.HasSuffix(noun, "s"):
		return noun + "es"
	}
	return noun + "s"
}

// Bytes formats a number of bytes in its largest unit, such as 512 B or 16.1 GB; 1 kB has 1000 bytes.
func Bytes[T int | int64 | uint64](n T) string {
	if n < 1000 {
		return fmt.Sprintf("%d B", n)
	}
	v, unit := float64(n)/1000, 0
	const units = "kMGTPE"
	for v >= 999.95 && unit < len(units)-1 {
		v, unit = v/1000, unit+1
	}
	return fmt.Sprintf("%.1f %cB", v, units[unit])
}
