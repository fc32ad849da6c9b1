package printable

import (
	"fmt"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"
)

// Text makes text of several lines harmless. Line ends and tabs stay; whole colour
// sequences (ESC [ ... m) and a carriage return before a line end vanish; every other
// character that does not show as itself is written as an escape: \x1b for controls
// below 0x20, else \u009b, as JSON has it, so that a JSON document keeps its values.
// Invalid UTF-8 becomes U+FFFD. Text of Text changes nothing.
func Text(s string) string {
	if plain(s, true) {
		return s
	}
	out, _ := appendSafe(make([]byte, 0, len(s)+16), []byte(s), false, true)
	return string(out)
}

// Line makes text harmless where it is one cell or one name: line ends, tabs and other
// spaces become a space each, invalid UTF-8 a question mark, and what does not show
// as itself vanishes, as do selectors of variants, whose width terminals do not agree
// on. Line of Line changes nothing.
func Line(s string) string {
	if plain(s, false) {
		return s
	}
	out, _ := appendSafe(make([]byte, 0, len(s)), []byte(s), true, true)
	return string(out)
}

// plain reports whether s is printable ASCII, and line ends and tabs where lines allows
// them.
func plain[T string | []byte](s T, lines bool) bool {
	for i := range len(s) {
		if (s[i] < ' ' || s[i] > '~') && (!lines || s[i] != '\n' && s[i] != '\t') {
			return false
		}
	}
	return true
}

// longestColour bounds a colour sequence, in bytes; a longer one is none.
const longestColour = 64

// appendSafe appends what is to be printed of src: by Line where oneLine, else by Text.
// Unless src is final it stops before an end that only what follows can tell the
// meaning of; used is how far it came.
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

// colour is the length of the colour sequence that b begins with, 0 for none.
func colour(b []byte) int {
	if n := parameters(b); n > 0 && n < len(b) && b[n] == 'm' {
		return n + 1
	}
	return 0
}

// beginsColour reports whether b is the beginning of what may become a colour sequence.
func beginsColour(b []byte) bool {
	return len(b) < longestColour && (len(b) == 1 && b[0] == 0x1b || parameters(b) == len(b))
}

// parameters is the length of ESC [ and the figures after it that b begins with, 0 for
// none.
func parameters(b []byte) int {
	if len(b) < 2 || b[0] != 0x1b || b[1] != '[' {
		return 0
	}
	n := 2
	for n < len(b) && n < longestColour && (b[n] >= '0' && b[n] <= '9' || b[n] == ';' || b[n] == ':') {
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

// shows reports whether a character is drawn, or is a space, and does nothing to those
// around it. The two selectors between text and emoji do too little to write them out.
func shows(r rune) bool {
	switch {
	case r == 0xfe0e || r == 0xfe0f:
		return true
	case unicode.Is(unicode.Other_Default_Ignorable_Code_Point, r), unicode.Is(unicode.Variation_Selector, r):
		return false
	}
	return unicode.IsPrint(r) || unicode.Is(unicode.Zs, r)
}
