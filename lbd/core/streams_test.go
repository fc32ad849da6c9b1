package core

import (
	"fmt"
	"testing"
	"time"

	"skyserve/lbd/policy"
)

// streamedPace returns the displayed pace of a replica after 4 s in which requests stream from it, with a token per
// step and answer. each changes the events of a tick.
func streamedPace(t *testing.T, requests, completions int, step time.Duration, each func(b *Balancer, tick int, now time.Duration)) float64 {
	t.Helper()
	b := start(DefaultConfig(policy.NewCost()), 1)
	now := time.Second
	b.Step(now, Event{Kind: EventTick})
	for i := range requests {
		id := fmt.Sprint(i)
		b.Step(now, idle("r0"))
		ask(t, b, now, Request{ID: id, PromptTokens: 10, Completions: completions})
		b.Step(now, Event{Kind: EventFirstToken, ID: id})
	}
	done := 0
	for tick := range 40 {
		now += 100 * time.Millisecond
		if each != nil {
			each(b, tick, now)
		}
		steps := int((now - time.Second) / step)
		b.Step(now, Event{Kind: EventProgress, Target: "r0", Tokens: (steps - done) * requests * max(1, completions)})
		done = steps
		b.Step(now, Event{Kind: EventTick})
	}
	return b.Snapshot(now).Replicas[0].Pace
}

// The displayed pace is that of the streams, before any response has ended.
func TestDisplayedPaceIsOfStreams(t *testing.T) {
	unstreamed := func(b *Balancer, tick int, now time.Duration) {
		id := fmt.Sprintf("whole-%d", tick)
		b.Step(now, idle("r0"))
		ask(t, b, now, Request{ID: id, PromptTokens: 1})
		b.Step(now, Event{Kind: EventFinished, ID: id, Outcome: &Outcome{OutputTokens: policy.Known(100), UnstreamedTokens: 100}})
		b.Step(now, Event{Kind: EventProgress, Target: "r0", Tokens: 100})
	}
	prompt := func(b *Balancer, tick int, now time.Duration) {
		if tick == 0 {
			b.Step(now, idle("r0"))
			ask(t, b, now, Request{ID: "long", PromptTokens: 100_000})
		}
	}
	nominal := policy.NominalStep(1, 100)
	for _, tt := range []struct {
		name                  string
		requests, completions int
		step                  time.Duration
		each                  func(b *Balancer, tick int, now time.Duration)
		low, high             float64
	}{
		{"nominal", 4, 0, nominal, nil, 0.9, 1.1},
		{"four times slower", 4, 0, 4 * nominal, nil, 2.9, 4.4},
		{"several answers a request", 2, 4, nominal, nil, 0.9, 1.1},
		{"beside responses that are not streamed", 4, 0, nominal, unstreamed, 0.9, 1.1},
		{"no token", 1, 0, time.Hour, nil, 50, 100},
		{"no stream", 0, 0, nominal, nil, 0, 0},
		{"beside a long prompt", 4, 0, nominal, prompt, 0, 0},
	} {
		if got := streamedPace(t, tt.requests, tt.completions, tt.step, tt.each); got < tt.low || got > tt.high {
			t.Errorf("%s: pace %.2f, want %.1f to %.1f", tt.name, got, tt.low, tt.high)
		}
	}
}
