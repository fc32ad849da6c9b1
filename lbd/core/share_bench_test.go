package core

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"skyserve/lbd/policy"
)

// busyNeighbour returns one of two balancers of a region, after it has served n prompts of 4 KB.
func busyNeighbour(b *testing.B, n int) *Balancer {
	p, err := policy.New("longest-prefix")
	if err != nil {
		b.Fatal(err)
	}
	bal := neighbour(DefaultConfig(p), "b", "r0", "r1", "r2", "r3")
	rng := rand.New(rand.NewPCG(1, 2))
	for i := range n {
		id, prompt := fmt.Sprint("q", i), fresh(rng, 64)
		bal.Step(1, Event{Kind: EventArrived, Request: &Request{ID: id, Model: "m", Prompt: prompt, PromptTokens: 1000}})
		bal.Step(1, Event{Kind: EventFirstToken, ID: id})
		bal.Step(1, Event{Kind: EventFinished, ID: id, Outcome: &Outcome{Key: append(prompt, fresh(rng, 8)...)}})
	}
	return bal
}

// BenchmarkShare measures the sharing of 1,000 prompts of 4 KB with their answers between two
// balancers of a region: sending updates at one, receiving them at the other, new and a second
// time.
func BenchmarkShare(b *testing.B) {
	const prompts = 1000
	from := busyNeighbour(b, prompts)
	entries, _, _ := from.CacheUpdates(2, 0, false, everything)
	if len(entries) != prompts {
		b.Fatalf("%d entries are kept of %d", len(entries), prompts)
	}
	b.Run("tell", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			for since, more := uint64(0), true; more; {
				_, since, more = from.CacheUpdates(2, since, false, 128<<10)
			}
		}
	})
	cfg := from.cfg
	b.Run("hear", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			neighbour(cfg, "a").Step(2, Event{Kind: EventPeerCacheUpdates, Target: "a", CacheUpdates: entries})
		}
	})
	to := neighbour(cfg, "a")
	b.Run("hear again", func(b *testing.B) {
		b.ReportAllocs()
		for now := time.Duration(2); b.Loop(); now++ {
			to.Step(now, Event{Kind: EventPeerCacheUpdates, Target: "a", CacheUpdates: entries})
		}
	})
}
