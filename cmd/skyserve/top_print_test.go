package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"skyserve/internal/telemetry"
	"skyserve/tui"
)

// scripted is a fetcher that succeeds (empty word) or fails according to words; the last word repeats.
type scripted struct {
	words []string
	times []time.Time // times of the calls
}

func (s *scripted) String() string { return "script" }

func (s *scripted) Fetch(context.Context) (*telemetry.Snapshot, string, error) {
	word := s.words[min(len(s.times), len(s.words)-1)]
	s.times = append(s.times, time.Now())
	if word != "" {
		return nil, "", errors.New(word)
	}
	return &telemetry.Snapshot{Service: fmt.Sprintf("chat-%d", len(s.times)), Regions: []telemetry.RegionSnapshot{}}, "script", nil
}

// A missing snapshot does not stop printing: it is reported once, and results in exit code 3.
func TestTopPrintContinuesAfterFailure(t *testing.T) {
	for name, c := range map[string]struct {
		words  []string
		count  int
		lines  int
		errOut string
		fail   string
		code   int
		within time.Duration
	}{
		"all succeed":      {[]string{""}, 3, 3, "", "", exitOK, 20 * time.Second},
		"one":              {[]string{""}, 0, 1, "", "", exitOK, 0},
		"first fails":      {[]string{"refused"}, 3, 0, "", "fetching a snapshot: refused", exitFailed, 0},
		"later failures":   {[]string{"", "refused", "refused", "", "refused"}, 5, 2, "problem: refused\nproblem: refused\n", "3 of 5 snapshots are missing", exitPartial, 40 * time.Second},
		"different errors": {[]string{"", "refused", "reset", "reset", ""}, 5, 2, "problem: refused\nproblem: reset\n", "3 of 5 snapshots are missing", exitPartial, 40 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				fetcher := &scripted{words: c.words}
				o := topOptions{count: c.count, countSet: c.count > 0, interval: 10 * time.Second}
				var out, errOut bytes.Buffer
				err := o.printFrames(t.Context(), &topView{Fetcher: fetcher}, outputFormat{kind: outputJSON}.snapshotPrinter(&out, true), &errOut)
				if got := strings.Count(out.String(), "\n"); got != c.lines || errOut.String() != c.errOut {
					t.Errorf("%d lines, and %q", got, errOut.String())
				}
				var exit *exitError
				if (err != nil || c.fail != "") && (!errors.As(err, &exit) || exit.code != c.code || err.Error() != c.fail) {
					t.Errorf("got %v", err)
				}
				if n := len(fetcher.times); fetcher.times[n-1].Sub(fetcher.times[0]) != c.within {
					t.Errorf("fetched at %v", fetcher.times)
				}
			})
		})
	}
}

// An interrupt between two frames ends printing at once.
func TestTopPrintStopsWithContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 25*time.Second)
		defer cancel()
		fetcher := &scripted{words: []string{""}}
		var out bytes.Buffer
		o := topOptions{count: 100, countSet: true, interval: 10 * time.Second}
		if err := o.printFrames(ctx, &topView{Fetcher: fetcher}, outputFormat{kind: outputJSON}.snapshotPrinter(&out, true), &out); !errors.Is(err, context.DeadlineExceeded) || len(fetcher.times) != 3 {
			t.Errorf("%v after %d", err, len(fetcher.times))
		}
	})
}

// If a snapshot cannot be recorded, Fetch returns the error at once.
func TestTopFailsWhenRecordIsNotWritable(t *testing.T) {
	for _, name := range []string{"r.jsonl", "r.jsonl.gz"} {
		record, err := createRecord(filepath.Join(t.TempDir(), name))
		if err != nil {
			t.Fatal(err)
		}
		v := &topView{Fetcher: &scripted{words: []string{""}}, record: record}
		if s, _, err := v.Fetch(t.Context()); err != nil || v.latest.Load() != s {
			t.Fatal(err)
		}
		before := v.latest.Load()
		if err := record.file.Close(); err != nil {
			t.Fatal(err)
		}
		if s, _, err := v.Fetch(t.Context()); s != nil || !errors.As(err, new(tui.FileError)) || !strings.HasPrefix(err.Error(), "writing --record: ") || v.latest.Load() != before {
			t.Errorf("%s: got %v, %v", name, s, err)
		}
		if err := record.Close(); err == nil || !strings.HasPrefix(err.Error(), "closing --record: ") {
			t.Errorf("%s: closing: %v", name, err)
		}
	}
}
