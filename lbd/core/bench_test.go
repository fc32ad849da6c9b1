package core

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"skyserve/lbd/policy"
	"skyserve/lbd/prefix"
)

// BenchmarkArrive is one whole request (arrival with an empty queue, first
// token, end) at a balancer with 64 replicas and a full prefix tree.
func BenchmarkArrive(b *testing.B) {
	for _, name := range policy.Names() {
		for _, size := range []int{1 << 10, 4 << 10, 32 << 10} {
			b.Run(fmt.Sprintf("policy=%s/prompt=%dKB", name, size>>10), func(b *testing.B) { benchmarkArrive(b, name, size) })
		}
	}
}

func benchmarkArrive(b *testing.B, name string, size int) {
	p, err := policy.New(name)
	if err != nil {
		b.Fatal(err)
	}
	bal := New(DefaultConfig(p))
	for i := range 64 {
		id := fmt.Sprintf("r%02d", i)
		bal.Step(0, Event{Kind: EventReplicaAdded, Replica: &ReplicaInfo{ID: id, Model: "m"}})
		bal.Step(0, Event{Kind: EventReplicaReport, Target: id, Report: &Report{Ready: true, Pending: policy.Known(0)}})
	}
	rng := rand.New(rand.NewPCG(1, 2))
	keys := make([]prefix.Key, 2048)
	for i := range keys {
		keys[i] = make(prefix.Key, size/prefix.BlockBytes)
		shared := 0
		if i > 0 {
			shared = copy(keys[i], keys[rng.IntN(i)][:rng.IntN(len(keys[i]))])
		}
		for j := shared; j < len(keys[i]); j++ {
			keys[i][j] = rng.Uint64()
		}
	}
	sessions := make([]string, 256)
	for i := range sessions {
		sessions[i] = fmt.Sprintf("session-%d", i)
	}
	req, out := Request{Model: "m"}, Outcome{}
	now := time.Duration(0)
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		req.ID, req.Prompt, req.Session = "q", keys[i%len(keys)], sessions[i%len(sessions)]
		bal.Step(now, Event{Kind: EventArrived, Request: &req})
		bal.Step(now, Event{Kind: EventFirstToken, ID: "q"})
		bal.Step(now, Event{Kind: EventFinished, ID: "q", Outcome: &out})
	}
}
