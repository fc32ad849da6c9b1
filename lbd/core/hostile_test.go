package core

import (
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"skyserve/lbd/policy"
	"skyserve/lbd/prefix"
)

// hostile contains requests that no regular client sends.
func hostile() map[string]Request {
	return map[string]Request{
		"an empty prompt":             {},
		"a prompt of 1 MB":            {Prompt: make(prefix.Key, 1<<20/prefix.BlockBytes), PromptTokens: 1 << 18},
		"tokens below zero":           {PromptTokens: -5, MaxTokens: -1},
		"tokens beyond all bounds":    {PromptTokens: math.MaxInt, MaxTokens: math.MaxInt},
		"a session of 1 MB":           {Session: strings.Repeat("s", 1<<20)},
		"a session begun before time": {SessionAge: 1 << 60},
		"a session yet to begin":      {SessionAge: -time.Hour},
		"a wait below zero":           {MaxWait: -time.Hour},
		"an unheard-of tier":          {Tier: "IW-X"},
		"from an unheard-of peer":     {From: "mars", Hop: HopRemote},
		"an unheard-of hop":           {Hop: "twice"},
		"an unheard-of holder":        {PinnedTo: "r9"},
	}
}

// absurd contains reports that no correct engine sends.
func absurd() []ProbeReport {
	var all []ProbeReport
	for _, kv := range []float64{math.NaN(), math.Inf(1), -1, 7} {
		all = append(all, ProbeReport{Ready: true, Pending: policy.Known(0), KV: policy.Known(kv)})
	}
	for _, n := range []int{-3, math.MinInt, math.MaxInt} {
		all = append(all, ProbeReport{Ready: true, Pending: policy.Known(n), Running: policy.Known(n)})
	}
	return append(all, ProbeReport{Ready: true, Age: -time.Hour}, ProbeReport{Ready: true, Age: math.MaxInt64})
}

func absurdLoads() []ModelLoad {
	return []ModelLoad{
		{Model: "m", Replicas: -1, Available: -1, Queued: -7, Outstanding: -9, ContextTokens: -1, MinPrefillTokens: -1, KV: policy.Known(math.NaN()), ExpectedWait: -time.Hour, Residence: -time.Hour, Pace: math.Inf(-1)},
		{Model: "m", Replicas: 1, Available: 1, Outstanding: math.MaxInt, ContextTokens: math.MaxInt, MinPrefillTokens: math.MaxInt, KV: policy.Known(math.Inf(1)), ExpectedWait: math.MaxInt64, Residence: math.MaxInt64, Pace: math.NaN()},
		{Model: "m", Replicas: math.MaxInt, Available: math.MaxInt, Queued: math.MaxInt, Pace: math.MaxFloat64},
	}
}

// For any input, each request has a decision or a rejection with a reason, and the counts are
// consistent, under every policy.
func TestHostileInputGetsDecisionOrReason(t *testing.T) {
	everyPolicy(t, func(t *testing.T, cfg Config) {
		cfg.MaxWait = time.Second
		for name, r := range hostile() {
			b := start(cfg, 2)
			r.ID, r.Model = "q", "m"
			decided(t, name, b, 0, b.Step(0, Event{Kind: EventArrived, Request: &r}))
			if got := ask(t, b, 0, Request{ID: "honest", PromptTokens: 10}); got == "" {
				t.Errorf("%s: the next request goes nowhere", name)
			}
			settled(t, name, b)
		}
	})
}

func TestImpossibleReportsStopNoRequest(t *testing.T) {
	everyPolicy(t, func(t *testing.T, cfg Config) {
		cfg.MaxWait = time.Second
		for i, rep := range absurd() {
			b := start(cfg, 2)
			for _, id := range []string{"r0", "r1"} {
				b.Step(0, Event{Kind: EventReplicaReport, Target: id, Report: &rep})
			}
			name := fmt.Sprintf("report %d %+v", i, rep)
			for j := range 4 {
				r := Request{ID: fmt.Sprint(j), Model: "m", PromptTokens: 10}
				decided(t, name, b, 0, b.Step(0, Event{Kind: EventArrived, Request: &r}))
			}
			settled(t, name, b)
		}
		for i, l := range absurdLoads() {
			b := start(cfg, 1)
			b.Step(0, Event{Kind: EventPeerAdded, Peer: &PeerInfo{ID: "eu"}})
			b.Step(0, Event{Kind: EventPeerReport, Target: "eu", PeerReport: &PeerReport{Age: -time.Second, RTT: -time.Second, Models: []ModelLoad{l}}})
			r := Request{ID: "q", Model: "m", PromptTokens: 10}
			decided(t, fmt.Sprintf("load %d", i), b, 0, b.Step(0, Event{Kind: EventArrived, Request: &r}))
			settled(t, fmt.Sprintf("load %d", i), b)
		}
	})
}

// An engine whose memory figure is always NaN is balanced by its other figures.
func TestNaNFigureIsUnknown(t *testing.T) {
	everyPolicy(t, func(t *testing.T, cfg Config) {
		b := start(cfg, 1)
		b.Step(0, Event{Kind: EventReplicaReport, Target: "r0", Report: &ProbeReport{Ready: true, Pending: policy.Known(0), KV: policy.Known(math.NaN())}})
		if got := ask(t, b, 0, Request{ID: "q", PromptTokens: 10}); got != "r0" {
			t.Errorf("went to %q", got)
		}
		if v := b.Snapshot(0).Replicas[0]; v.KV.Known {
			t.Errorf("a KV share of %v is believed", v.KV.Value)
		}
	})
}

// All targets are removed while a request is in flight at one of them, and the clock jumps by
// years: the request ends once, with a reason.
func TestAllTargetsRemovedAndClockJumps(t *testing.T) {
	everyPolicy(t, func(t *testing.T, cfg Config) {
		b := start(cfg, 2)
		sent := ask(t, b, 0, Request{ID: "sent"})
		now := 20 * 365 * 24 * time.Hour
		for _, id := range []string{"r0", "r1"} {
			b.Step(now, Event{Kind: EventReplicaRemoved, Target: id})
		}
		actions := b.Step(now, Event{Kind: EventFailed, ID: "sent", Outcome: &Outcome{Retryable: true, Unreachable: true}})
		actions = append([]Action(nil), actions...)
		actions = append(actions, b.Step(2*now, Event{Kind: EventTick})...)
		if c := b.Snapshot(2 * now).Counts; c.Rejected != 1 || c.Queued+c.Outstanding != 0 {
			t.Errorf("sent to %s, then %+v, counts %+v", sent, actions, c)
		}
		// The fleet returns after the jump and serves requests.
		b.Step(2*now, Event{Kind: EventReplicaAdded, Replica: &ReplicaInfo{ID: "r0", Model: "m"}})
		b.Step(2*now, idle("r0"))
		if got := ask(t, b, 2*now, Request{ID: "later", PromptTokens: 10}); got != "r0" {
			t.Errorf("went to %q", got)
		}
	})
}

// decided checks that a request was sent, held, or rejected with a reason.
func decided(t *testing.T, name string, b *Balancer, now time.Duration, actions []Action) {
	t.Helper()
	if len(actions) != 1 || (actions[0].Kind == ActionReject && actions[0].Reason == "") {
		t.Errorf("%s: %+v", name, actions)
	}
	if len(actions) == 1 && actions[0].Kind == ActionQueue {
		for range 3 { // it is sent as soon as a report arrives
			now += 100 * time.Millisecond
			b.Step(now, idle("r0"))
		}
		if n := b.Snapshot(now).Counts.Queued; n > 0 && b.Snapshot(now).Replicas[0].Available {
			t.Errorf("%s: %d requests wait though there is room", name, n)
		}
	}
}

// settled ends all requests and checks that nothing remains.
func settled(t *testing.T, name string, b *Balancer) {
	t.Helper()
	for id, r := range b.requests { // each ends, in any order
		if r.target != nil {
			b.Step(time.Second, Event{Kind: EventFinished, ID: id, Outcome: &Outcome{OutputTokens: policy.Known(math.MaxInt), CachedTokens: policy.Known(-1)}})
		}
	}
	b.Step(time.Minute, Event{Kind: EventTick})
	for id := range b.requests {
		b.Step(time.Minute, Event{Kind: EventCancelled, ID: id})
	}
	b.Step(time.Minute, Event{Kind: EventTick})
	c := b.Snapshot(time.Minute).Counts
	if c.Queued+c.Outstanding != 0 || c.Arrived != c.Finished+c.Rejected+c.Cancelled+c.Bounced {
		t.Errorf("%s: in the end %+v", name, c)
	}
	for _, r := range b.replicas {
		if r.work != (work{}) || r.outstanding != 0 || math.IsNaN(r.pace.Value()+r.pace.ResidencePace()) {
			t.Errorf("%s: %s is left with %+v", name, r.id, r.work)
		}
	}
}
