package main

import (
	"regexp"
	"slices"
	"strings"
	"time"
)

// lineTimes are the times at which lines of logs begin or that they contain: those of skyserve (text and JSON), of
// Python's logging and of vLLM, whose times have no year. A time without a zone is in that of the machine that wrote it.
var lineTimes = []struct {
	text   *regexp.Regexp
	layout string
}{
	{regexp.MustCompile(`^(?:time=|\{"time":")?(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|[+-]\d\d:\d\d))`), time.RFC3339Nano},
	{regexp.MustCompile(`^\[?(\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d)`), time.DateTime},
	{regexp.MustCompile(`^(?:\([^)]*\) )?[A-Z]+ (\d\d-\d\d \d\d:\d\d:\d\d)`), "01-02 15:04:05"},
}

// lineTime returns the time of a line of a log; false if it has none. now determines a missing year and a
// missing zone.
func lineTime(line string, now time.Time) (at time.Time, known bool) {
	for _, l := range lineTimes {
		m := l.text.FindStringSubmatch(line)
		if m == nil {
			continue
		}
		text := m[1]
		if l.layout == time.DateTime {
			text = strings.Replace(text, "T", " ", 1)
		}
		at, err := time.ParseInLocation(l.layout, text, now.Location())
		if err != nil {
			return time.Time{}, false
		}
		if at.Year() == 0 {
			at = at.AddDate(now.Year(), 0, 0)
			if at.After(now.Add(24 * time.Hour)) {
				at = at.AddDate(-1, 0, 0)
			}
		}
		return at, true
	}
	return time.Time{}, false
}

// logSince returns the lines of a log from the first one that is not before a time. Times without a zone are in zone. A
// log without times is returned whole.
func logSince(lines []string, since time.Time, zone *time.Location) []string {
	if since.IsZero() {
		return lines
	}
	now, timed := time.Now().In(zone), false
	first := slices.IndexFunc(lines, func(line string) bool {
		at, known := lineTime(line, now)
		timed = timed || known
		return known && !at.Before(since)
	})
	switch {
	case first >= 0:
		return lines[first:]
	case timed:
		return nil
	}
	return lines
}
