package engine

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

// unshared gives the ops' prompts different first tokens.
func unshared(ops []op) []op {
	for i := range ops {
		if q := ops[i].submit; q != nil && len(q.Prompt) > 0 {
			q.Prompt = append([]Token{Token(1000 + i)}, q.Prompt...)
		}
	}
	return ops
}

// Without shared prefixes and preemptions, a light engine reports the same events at the same times as
// the full one.
func TestLightEqualsFullWithoutSharing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		profile := drawProfile(t)
		ops := unshared(drawOps(t))
		full, err := New(profile, ReportChanges)
		if err != nil {
			t.Fatal(err)
		}
		light, err := NewLight(profile)
		if err != nil {
			t.Fatal(err)
		}
		for _, o := range append(ops, op{at: time.Hour}) {
			was, is := full.Advance(o.at), light.Advance(o.at)
			if full.Load().Preempted > 0 {
				return // the full one may find its prompt again
			}
			compareEvents(t, was, is)
			if o.submit != nil {
				q := *o.submit
				full.Submit(o.at, q)
				q.PromptTokens, q.Prompt = len(q.Prompt), nil
				light.Submit(o.at, q)
			} else if a, b := full.Cancel(o.at, o.cancel), light.Cancel(o.at, o.cancel); a != b {
				t.Fatalf("cancelling %d: full %v, light %v", o.cancel, a, b)
			}
			f, l := full.Load(), light.Load()
			if f.Pending != l.Pending || f.Running != l.Running || f.GeneratedTokens != l.GeneratedTokens || f.BusyTime != l.BusyTime {
				t.Fatalf("at %v: full %+v, light %+v", o.at, f, l)
			}
		}
		if l := light.Load(); l.Pending+l.Running != 0 || l.KVUsed != 0 || l.QueriedTokens != 0 {
			t.Fatalf("in the end: %+v", l)
		}
	})
}

// compareEvents compares the events of a light and a full engine, except for tokens.
func compareEvents(t *rapid.T, full, light []Event) {
	if len(full) != len(light) {
		t.Fatalf("full %v, light %v", full, light)
	}
	for i, ev := range full {
		ev.Token, ev.Text = 0, ""
		if ev != light[i] {
			t.Fatalf("full %+v, light %+v", ev, light[i])
		}
	}
}

// A light engine that runs out of memory preempts, finishes all requests, and releases all memory.
func TestLightFinishesEverything(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		profile := drawProfile(t)
		light, err := NewLight(profile)
		if err != nil {
			t.Fatal(err)
		}
		for _, o := range drawOps(t) {
			if o.submit != nil {
				q := *o.submit
				q.PromptTokens = len(q.Prompt)
				light.Submit(o.at, q)
			} else {
				light.Cancel(o.at, o.cancel)
			}
			light.Advance(o.at)
			checkEngine(t, light)
		}
		light.Advance(time.Hour)
		l := light.Load()
		if l.Submitted != l.Finished+l.Cancelled+l.Rejected || l.Pending+l.Running+l.KVUsed+l.KVActive != 0 {
			t.Fatalf("in the end: %+v", l)
		}
	})
}
