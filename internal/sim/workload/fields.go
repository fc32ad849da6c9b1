package workload

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// place is the position of a field, for errors.
type place struct {
	file  string
	line  int
	field string
}

// bad returns the error of an invalid field.
func (p place) bad(want, found string) error {
	return fmt.Errorf("reading %s:%d: %s: must be %s, got %s", p.file, p.line, p.field, want, excerpt(found))
}

// tokens parses a length. Some tools write integers as 12.0.
func (p place) tokens(text string) (int, error) {
	if n, err := strconv.Atoi(text); err == nil && 0 <= n && n <= maxTokens {
		return n, nil
	}
	x, err := strconv.ParseFloat(text, 64)
	if err != nil || x != math.Trunc(x) || !(x >= 0 && x <= maxTokens) {
		return 0, p.bad(fmt.Sprintf("an integer from 0 to %d", maxTokens), text)
	}
	return int(x), nil
}

// seconds parses a time in unit (a second, a millisecond).
func (p place) seconds(text string, unit time.Duration) (time.Duration, error) {
	x, err := strconv.ParseFloat(text, 64)
	ns := x * float64(unit)
	if err != nil || !(math.Abs(ns) < math.MaxInt64/4) {
		return 0, p.bad("a number of "+map[time.Duration]string{time.Second: "seconds", time.Millisecond: "milliseconds"}[unit], text)
	}
	return time.Duration(math.Round(ns)), nil
}

// number parses a number from 0 to limit.
func (p place) number(text string, limit float64) (float64, error) {
	x, err := strconv.ParseFloat(text, 64)
	if err != nil || !(x >= 0 && x <= limit) {
		return 0, p.bad(fmt.Sprintf("a number from 0 to %g", limit), text)
	}
	return x, nil
}

// moments are the formats of absolute times in traces.
var moments = []string{
	"2006-01-02 15:04:05.999999999Z07:00",
	"2006-01-02 15:04:05.999999999",
	time.RFC3339Nano,
}

// moment parses an absolute time; without a zone it is UTC.
func (p place) moment(text string) (time.Duration, error) {
	text = strings.TrimSpace(text)
	for _, layout := range moments {
		if t, err := time.Parse(layout, text); err == nil && 1970 <= t.Year() && t.Year() < 2250 {
			return time.Duration(t.UnixNano()), nil
		}
	}
	return 0, p.bad("a time since 1970 such as 2024-05-10 00:00:00.009930+00:00", text)
}
