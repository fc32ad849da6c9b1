package replay

import (
	"encoding/json"
	"fmt"
	"regexp"
	"slices"

	"skyserve/provision/record"
)

// Sequence returns the calls of several processes in the order of their requests. Each process numbers its
// placeholders and pseudonyms itself: placeholders get a range for each process, and the project and the account
// that most calls of a process name become the same.
func Sequence(recordings []record.Recording) ([]record.Call, error) {
	var calls []record.Call
	for i, r := range recordings {
		text, err := json.Marshal(r.Calls)
		if err != nil {
			return nil, fmt.Errorf("reading %s: %w", r.Path, err)
		}
		text = placeholder.ReplaceAll(text, fmt.Appendf(nil, "REDACTED-%d0000${1}", i+1))
		text = swapMostFrequent(text, projectOf, "project-00001")
		text = swapMostFrequent(text, accountOf, "100000000001")
		var renamed []record.Call
		if err := json.Unmarshal(text, &renamed); err != nil {
			return nil, fmt.Errorf("reading %s: %w", r.Path, err)
		}
		calls = append(calls, renamed...)
	}
	slices.SortStableFunc(calls, func(a, b record.Call) int { return a.Time.Compare(b.Time) })
	return calls, nil
}

// placeholder matches a numbered placeholder of a recording.
var placeholder = regexp.MustCompile(`REDACTED-(\d+)`)

// swapMostFrequent exchanges the name that occurs most often with the wanted one.
func swapMostFrequent(text []byte, names *regexp.Regexp, want string) []byte {
	counts := map[string]int{}
	most := want
	for _, found := range names.FindAll(text, -1) {
		name := string(found)
		counts[name]++
		if counts[name] > counts[most] {
			most = name
		}
	}
	return names.ReplaceAllFunc(text, func(found []byte) []byte {
		switch string(found) {
		case most:
			return []byte(want)
		case want:
			return []byte(most)
		}
		return found
	})
}
