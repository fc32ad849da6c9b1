package plan

import (
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"skyserve/internal/telemetry/demand/demandtest"
)

// Two replicas of 1500 prompt tokens a second run, one in each region.
func TestReviewPlansForBacklog(t *testing.T) {
	const hour = 1500 * 3600 // prompt tokens that a replica processes in an hour
	for name, c := range map[string]struct {
		us, eu, hit float64
		backlog     []Backlog
		want        string
		notes       []string
	}{
		"it fits into what runs":             {1, 1, 0, []Backlog{{"batch_a", "chat-small", 1.9 * hour, reviewAt.Add(time.Hour)}}, "optimal: local/us 1+0, local/eu 1+0", []string{"includes the backlog of 1 batch,", "next deadline"}},
		"the deadline asks for capacity":     {1, 1, 0, []Backlog{{"batch_a", "chat-small", 4 * hour, reviewAt.Add(time.Hour)}}, "optimal: local/us 1+2, local/eu 1+1", nil},
		"a later deadline needs less":        {1, 1, 0, []Backlog{{"batch_a", "chat-small", 4 * hour, reviewAt.Add(24 * time.Hour)}}, "optimal: local/us 1+0, local/eu 1+0", nil},
		"several batches add up":             {1, 1, 0, []Backlog{{"batch_a", "chat-small", 1.5 * hour, reviewAt.Add(time.Hour)}, {"batch_b", demandtest.Model, 1.5 * hour, reviewAt.Add(time.Hour)}}, "optimal: local/us 1+1, local/eu 1+1", []string{"backlog of 2 batches"}},
		"caches spare it":                    {1, 1, 0.75, []Backlog{{"batch_a", "chat-small", 4 * hour, reviewAt.Add(time.Hour)}}, "optimal: local/us 1+0, local/eu 1+0", nil},
		"the quiet region takes it":          {1400, 1, 0, []Backlog{{"batch_a", "chat-small", 0.9 * hour, reviewAt.Add(time.Hour)}}, "optimal: local/us 1+0, local/eu 1+0", nil},
		"it cannot be completed at any size": {1, 1, 0, []Backlog{{"batch_a", "chat-small", 40 * hour, reviewAt.Add(time.Hour)}}, "optimal: local/us 1+7, local/eu 1+7", []string{"batch_a cannot be completed by "}},
		"an overload is as without it":       {30000, 1, 0, []Backlog{{"batch_a", "chat-small", hour, reviewAt.Add(time.Hour)}}, "infeasible: ", nil},
		"an unknown model":                   {1, 1, 0, []Backlog{{"batch_a", "none", 4 * hour, reviewAt.Add(time.Hour)}}, "optimal: local/us 1+0, local/eu 1+0", []string{"the service has no model none"}},
	} {
		t.Run(name, func(t *testing.T) {
			p := reviewed(t, reviewYAML, standing(1, 1), demandtest.Constant(t, 300, c.us, c.eu, c.hit), ReviewOptions{Backlog: c.backlog})
			if got := brief(p); got != c.want {
				t.Errorf("%s, want %s; %s", got, c.want, strings.Join(p.Assumed, "\n"))
			}
			for _, note := range c.notes {
				if !strings.Contains(strings.Join(p.Assumed, "\n"), note) {
					t.Errorf("no note %q in %q", note, p.Assumed)
				}
			}
		})
	}
}

// A service without a history plans for the batches that it has accepted.
func TestReviewPlansForBacklogWithoutHistory(t *testing.T) {
	p := reviewed(t, reviewYAML, standing(1, 1), nil, ReviewOptions{Backlog: []Backlog{{"batch_a", "chat-small", 4 * 1500 * 3600, reviewAt.Add(time.Hour)}}})
	if got := brief(p); !strings.HasPrefix(got, "optimal: local/us 1+") || strings.Contains(got, "+0") {
		t.Error(got)
	}
}

// The upper end of a peak in a load curve is at least the planned peak, whatever batches add to it.
func TestPeakHighIncludesBacklog(t *testing.T) {
	backlog := []Backlog{{"batch_a", "chat-small", 4 * 1500 * 3600, reviewAt.Add(time.Hour)}}
	r, err := Review(demandtest.Parse(t, reviewYAML), standing(1, 1), demandtest.Constant(t, 300, 10, 0, 0), reviewAt, ReviewOptions{Backlog: backlog})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range r.LoadCurves {
		if peak, _ := c.Peak(); peak < 100 || c.PeakHigh < peak {
			t.Errorf("%s: peak %g, upper end %g", c.Region, peak, c.PeakHigh)
		}
	}
}

// Filling valleys wastes and loses nothing, respects maxima and deadlines, and leaves no lower place unused.
func TestFillValleys(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 20).Draw(t, "cells")
		cells := make([]backlogSlot, n)
		for c := range cells {
			from := time.Duration(rapid.IntRange(0, 59).Draw(t, "minute")) * time.Minute
			cells[c] = backlogSlot{from: from, until: from + time.Minute, relativeLoad: rapid.Float64Range(-1000, 0).Draw(t, "excess"), maxAdded: rapid.Float64Range(0, 2000).Draw(t, "maximum")}
		}
		slices.SortFunc(cells, func(a, b backlogSlot) int { return int(a.from - b.from) })
		within := time.Duration(rapid.IntRange(1, 60).Draw(t, "within")) * time.Minute
		tokens := rapid.Float64Range(0, 1e6).Draw(t, "tokens")
		rest := fillValleys(cells, within, tokens)
		sum, highest := 0.0, math.Inf(-1)
		usable := func(c backlogSlot) bool { return c.until <= max(within, cells[0].until) }
		for _, c := range cells {
			sum += c.added * 60
			if c.added > 0 {
				highest = max(highest, c.relativeLoad+c.added)
			}
			if c.added < 0 || c.added > c.maxAdded+1e-9 || c.added > 0 && !usable(c) {
				t.Fatalf("%+v", c)
			}
		}
		if math.Abs(sum+rest-tokens) > 1e-3*(1+tokens) {
			t.Fatalf("%g tokens are placed and %g left of %g", sum, rest, tokens)
		}
		for _, c := range cells {
			full := c.added >= c.maxAdded-1e-6
			if usable(c) && !full && (rest > 1e-3*(1+tokens) || c.relativeLoad+c.added < highest-1e-3) {
				t.Fatalf("%+v has room below the level %g, rest %g", c, highest, rest)
			}
		}
	})
}

// The load of a night is below that of the day: a batch that is due tomorrow waits for it, and adds no replica.
func TestBacklogIsShiftedIntoValleys(t *testing.T) {
	cells := []backlogSlot{}
	for h := range 24 {
		load := -900.0 // below the peak, at night
		if h < 8 {
			load = 0
		}
		cells = append(cells, backlogSlot{minute: -1, from: time.Duration(h) * time.Hour, until: time.Duration(h+1) * time.Hour, relativeLoad: load, maxAdded: 5000})
	}
	if rest := fillValleys(cells, 24*time.Hour, 16*3600*800); rest > 1 {
		t.Fatal(rest)
	}
	for h, c := range cells {
		if want := map[bool]float64{true: 0, false: 800}[h < 8]; math.Abs(c.added-want) > 0.1 {
			t.Errorf("hour %d: %g tokens a second, want %g", h, c.added, want)
		}
	}
}
