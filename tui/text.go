package tui

import (
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/charmbracelet/x/ansi"

	"skyserve/internal/printable"
)

// unknown is shown for a value that was not reported.
const unknown = "-"

// plainASCII reports whether every byte of s is a printable ASCII character, so that its
// width is its length.
func plainASCII(s string) bool {
	for i := range len(s) {
		if s[i] < ' ' || s[i] > '~' {
			return false
		}
	}
	return true
}

// clean makes text from outside safe to draw on one line.
func clean(s string) string { return printable.Line(s) }

// asciiOnly replaces all characters that a terminal without UTF-8 cannot draw.
func asciiOnly(s string) string {
	return strings.Map(func(r rune) rune {
		if r > '~' {
			return '?'
		}
		return r
	}, s)
}

// width returns the number of cells of s as the sum over its characters, so that widths of
// parts add up to the width of a line, and no terminal draws it wider.
func width(s string) int {
	if plainASCII(s) {
		return len(s)
	}
	return ansi.StringWidthWc(s)
}

// cut truncates s to w cells, ending in tail if that fits. Colour codes have no width and
// are all kept, so that every colour is reset.
func cut(s string, w int, tail string) string {
	if width(s) <= w {
		return s
	}
	if w <= width(tail) {
		tail = ""
	}
	var b strings.Builder
	remaining, full := w-width(tail), false
	for len(s) > 0 {
		n := escapeLen(s)
		if n > 0 {
			b.WriteString(s[:n])
			s = s[n:]
			continue
		}
		_, n = utf8.DecodeRuneInString(s)
		remaining -= width(s[:n])
		switch {
		case full:
		case remaining < 0:
			full = true
			b.WriteString(tail)
		default:
			b.WriteString(s[:n])
		}
		s = s[n:]
	}
	return b.String()
}

// escapeLen returns the length of the colour code that s begins with, 0 for none.
func escapeLen(s string) int {
	if !strings.HasPrefix(s, "\x1b[") {
		return 0
	}
	return strings.IndexByte(s, 'm') + 1
}

// pad fills s with spaces to w cells, on the left if right-aligned.
func pad(s string, w int, right bool) string {
	n := w - width(s)
	switch {
	case n <= 0:
		return s
	case right:
		return strings.Repeat(" ", n) + s
	}
	return s + strings.Repeat(" ", n)
}

// rate formats a number with two or three digits: 0, 9.4, 420, 3.2k, 12k, 1.2M.
func rate(v *float64) string {
	if v == nil {
		return unknown
	}
	if *v == 0 {
		return "0"
	}
	x, unit := *v, ""
	for _, next := range []string{"k", "M", "G", "T", "P", "E"} {
		if math.Abs(x) < 999.5 {
			break
		}
		x, unit = x/1000, next
	}
	return scaled(x) + unit
}

// scaled formats a number of one to three digits.
func scaled(v float64) string {
	if math.Abs(v) < 9.95 {
		return strconv.FormatFloat(v, 'f', 1, 64)
	}
	return strconv.FormatFloat(v, 'f', 0, 64)
}

// count formats an integer: exact up to four digits, rounded beyond.
func count(n int64) string {
	if n > -10000 && n < 10000 {
		return strconv.FormatInt(n, 10)
	}
	v := float64(n)
	return rate(&v)
}

// maybeCount is count for a number that may be unknown.
func maybeCount(n *int) string {
	if n == nil {
		return unknown
	}
	return count(int64(*n))
}

// percent formats a share of 0..1.
func percent(v *float64) string {
	if v == nil {
		return unknown
	}
	return strconv.FormatFloat(*v*100, 'f', 0, 64) + "%"
}

// millis formats a latency in milliseconds: 85ms, 1.42s, 42.1s, 12m.
func millis(ms float64) string {
	switch {
	case ms < 0.95:
		return strconv.FormatFloat(ms, 'f', 1, 64) + "ms"
	case ms < 999.5:
		return strconv.FormatFloat(ms, 'f', 0, 64) + "ms"
	case ms < 9995:
		return strconv.FormatFloat(ms/1000, 'f', 2, 64) + "s"
	case ms < 99950:
		return strconv.FormatFloat(ms/1000, 'f', 1, 64) + "s"
	}
	return age(time.Duration(ms) * time.Millisecond)
}

// Age formats an age in its largest sensible unit, such as 5m or 3d. Everything below a second is "<1s",
// which keeps the screen from flickering.
func Age(d time.Duration) string { return age(d) }

func age(d time.Duration) string {
	switch {
	case d < time.Second:
		return "<1s"
	case d < 9950*time.Millisecond:
		return strconv.FormatFloat(d.Seconds(), 'f', 1, 64) + "s"
	case d < 100*time.Second:
		return strconv.FormatFloat(d.Seconds(), 'f', 0, 64) + "s"
	case d < 100*time.Minute:
		return strconv.Itoa(int(d.Minutes())) + "m"
	case d < 48*time.Hour:
		return strconv.Itoa(int(d.Hours())) + "h"
	}
	return strconv.Itoa(int(d.Hours()/24)) + "d"
}

// maybeAge formats the age of a report in milliseconds plus the time since the snapshot was
// received.
func maybeAge(ms *int64, since time.Duration) string {
	if ms == nil {
		return unknown
	}
	return age(time.Duration(*ms)*time.Millisecond + since)
}

// bar draws a share of 0..1 over w cells.
func bar(share float64, w int, g glyphs) string {
	if w <= 0 {
		return ""
	}
	steps := len(g.partial) + 1
	n := int(math.Round(min(max(share, 0), 1) * float64(w*steps)))
	full, rest := n/steps, n%steps
	s := strings.Repeat(g.full, full)
	if rest > 0 {
		s += g.partial[rest-1]
		full++
	}
	return s + strings.Repeat(g.empty, w-full)
}

// shortModel returns a model's name without its organisation, which is often the same for
// all models of a service.
func shortModel(name string) string {
	if i := strings.LastIndexByte(name, '/'); i >= 0 && i+1 < len(name) {
		return name[i+1:]
	}
	return name
}

// naturalLess orders names naturally: us-2 before us-10.
func naturalLess(a, b string) bool {
	x, y := a, b
	for x != "" && y != "" {
		dx, dy := digits(x), digits(y)
		if dx > 0 && dy > 0 {
			nx, ny := strings.TrimLeft(x[:dx], "0"), strings.TrimLeft(y[:dy], "0")
			if len(nx) != len(ny) {
				return len(nx) < len(ny)
			}
			if nx != ny {
				return nx < ny
			}
			x, y = x[dx:], y[dy:]
			continue
		}
		if x[0] != y[0] {
			return x[0] < y[0]
		}
		x, y = x[1:], y[1:]
	}
	if len(x) != len(y) {
		return len(x) < len(y)
	}
	return a < b
}

// digits returns the length of the run of digits that s begins with.
func digits(s string) int {
	n := 0
	for n < len(s) && s[n] >= '0' && s[n] <= '9' {
		n++
	}
	return n
}

// padPainted fills a line that may contain colours with spaces to w cells.
func padPainted(s string, w int) string {
	if n := w - ansi.StringWidthWc(ansi.Strip(s)); n > 0 {
		return s + strings.Repeat(" ", n)
	}
	return s
}

// hasLongWord reports whether a word of a text is wider than w cells.
func hasLongWord(text string, w int) bool {
	for word := range strings.FieldsSeq(text) {
		if width(word) > w {
			return true
		}
	}
	return false
}

// wrap breaks text between words into lines of at most w cells; 0 is one line. Longer words
// are truncated.
func wrap(text string, w int) []string {
	if w <= 0 || width(text) <= w {
		return []string{text}
	}
	var lines []string
	line := ""
	for _, word := range strings.Fields(text) {
		switch {
		case line == "":
			line = word
		case width(line)+1+width(word) <= w:
			line += " " + word
		default:
			lines = append(lines, cut(line, w, ""))
			line = word
		}
	}
	return append(lines, cut(line, w, ""))
}

// distinctWidth returns the width from which different texts look different when they are cut at their end: one character
// and an ellipsis after the longest beginning that two of them share.
func distinctWidth(texts []string) int {
	texts = slices.Clone(texts)
	slices.Sort(texts)
	longest := 0
	for i, text := range slices.Compact(texts) {
		if i == 0 {
			continue
		}
		before := []rune(texts[i-1])
		same := 0
		for k, c := range []rune(text) {
			if k >= len(before) || before[k] != c {
				break
			}
			same++
		}
		longest = max(longest, min(width(string(before[:same]))+2, width(text)))
	}
	return longest
}
