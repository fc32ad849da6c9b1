package core

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"skyserve/internal/testkit"
	"skyserve/lbd/policy"
	"skyserve/lbd/prefix"
)

// fleet is a balancer with n idle replicas.
func fleet(b *testing.B, name string, n int) *Balancer {
	p, err := policy.New(name)
	if err != nil {
		b.Fatal(err)
	}
	cfg := DefaultConfig(p)
	cfg.TreeBytes = 1 << 30
	bal := New(cfg)
	for i := range n {
		id := replicaName(i)
		bal.Step(0, Event{Kind: EventReplicaAdded, Replica: &ReplicaInfo{ID: id, Model: "m"}})
		bal.Step(0, Event{Kind: EventReplicaReport, Target: id, Report: &ProbeReport{Ready: true, Pending: policy.Known(0)}})
	}
	return bal
}

func replicaName(i int) string { return fmt.Sprintf("r%03d", i) }

// prompts returns n keys of a size; each begins like an earlier one.
func prompts(n, size int) []prefix.Key {
	rng := rand.New(rand.NewPCG(1, 2))
	keys := make([]prefix.Key, n)
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
	return keys
}

// life runs a request from its arrival to its end.
func life(bal *Balancer, req *Request, out *Outcome) {
	bal.Step(0, Event{Kind: EventArrived, Request: req})
	bal.Step(0, Event{Kind: EventFirstToken, ID: req.ID})
	bal.Step(0, Event{Kind: EventFinished, ID: req.ID, Outcome: out})
}

// BenchmarkArrive measures one whole request with a known prompt (arrival with an empty queue,
// first token, end): by policy, with 64 replicas, and for two policies by prompt, replicas and
// prompts in the tree.
func BenchmarkArrive(b *testing.B) {
	for _, name := range policy.Names() {
		b.Run("policy="+name, func(b *testing.B) { benchmarkArrive(b, name, 4<<10, 64, 2048) })
	}
	for _, name := range []string{"cost", "skylb"} {
		for _, size := range []int{1, 4, 32, 128} {
			b.Run(fmt.Sprintf("policy=%s/prompt=%dKB", name, size), func(b *testing.B) { benchmarkArrive(b, name, size<<10, 64, 512) })
		}
		for _, replicas := range []int{8, 64, 512} {
			b.Run(fmt.Sprintf("policy=%s/replicas=%d", name, replicas), func(b *testing.B) { benchmarkArrive(b, name, 4<<10, replicas, 2048) })
		}
		for _, known := range []int{1e3, 1e4, 1e5} {
			b.Run(fmt.Sprintf("policy=%s/known=%d", name, known), func(b *testing.B) {
				if known > 1e4 {
					testkit.Slow(b)
				}
				benchmarkArrive(b, name, 4<<10, 64, known)
			})
		}
	}
}

func benchmarkArrive(b *testing.B, name string, size, replicas, known int) {
	bal, keys := fleet(b, name, replicas), prompts(known, size)
	sessions := make([]string, 256)
	for i := range sessions {
		sessions[i] = fmt.Sprintf("session-%d", i)
	}
	req, out := Request{Model: "m", ID: "q"}, Outcome{}
	for i := range keys {
		req.Prompt, req.Session = keys[i], sessions[i%len(sessions)]
		life(bal, &req, &out)
	}
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		req.Prompt, req.Session = keys[i%len(keys)], sessions[i%len(sessions)]
		life(bal, &req, &out)
	}
}

// BenchmarkBusy measures one whole request while each of 64 replicas runs as many others, with prompts of 4 KB that share
// their beginnings.
func BenchmarkBusy(b *testing.B) {
	for _, running := range []int{0, 8, 32} {
		b.Run(fmt.Sprintf("policy=cost/running=%d", running), func(b *testing.B) {
			bal, keys := fleet(b, "cost", 64), prompts(2048, 4<<10)
			req, out := Request{Model: "m"}, Outcome{}
			for i := range keys {
				req.ID, req.Prompt = "q", keys[i]
				life(bal, &req, &out)
			}
			for i := range 64 * running {
				req.ID, req.Prompt = fmt.Sprint(i), keys[i%len(keys)]
				bal.Step(0, Event{Kind: EventArrived, Request: &req})
				bal.Step(0, Event{Kind: EventFirstToken, ID: req.ID})
			}
			req.ID = "q"
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				req.Prompt = keys[i%len(keys)]
				life(bal, &req, &out)
			}
		})
	}
}

// BenchmarkQueued measures a report of free capacity by one of 64 full replicas while 128 requests
// of 4 KB wait: the requests that fit are sent and end, and as many new ones arrive, so that 128
// wait again.
func BenchmarkQueued(b *testing.B) {
	for _, name := range []string{"cost", "skylb", "least-load"} {
		b.Run("policy="+name, func(b *testing.B) {
			bal, keys := fleet(b, name, 64), prompts(2048, 4<<10)
			req, out := Request{Model: "m"}, Outcome{}
			for i := range keys {
				req.ID, req.Prompt = "q", keys[i]
				life(bal, &req, &out)
			}
			full, room := ProbeReport{Ready: true, Pending: policy.Known(2), Running: policy.Known(20)}, ProbeReport{Ready: true, Pending: policy.Known(0), Running: policy.Known(20)}
			for i := range 64 {
				bal.Step(0, Event{Kind: EventReplicaReport, Target: replicaName(i), Report: &full})
			}
			ids := make([]string, 4096)
			for i := range ids {
				ids[i] = fmt.Sprint(i)
			}
			next := 0
			arrive := func() {
				req.ID, req.Prompt = ids[next%len(ids)], keys[next%len(keys)]
				next++
				bal.Step(0, Event{Kind: EventArrived, Request: &req})
			}
			for range 128 {
				arrive()
			}
			b.ReportAllocs()
			var sent []string
			for i := 0; b.Loop(); i++ {
				id := replicaName(i % 64)
				sent = sent[:0]
				for _, a := range bal.Step(0, Event{Kind: EventReplicaReport, Target: id, Report: &room}) {
					if a.Kind == ActionDispatch {
						sent = append(sent, a.ID)
					}
				}
				bal.Step(0, Event{Kind: EventReplicaReport, Target: id, Report: &full})
				for _, s := range sent {
					bal.Step(0, Event{Kind: EventFinished, ID: s, Outcome: &out})
					arrive()
				}
			}
			if q := bal.Snapshot(0).Counts.Queued; q != 128 {
				b.Fatalf("%d requests wait", q)
			}
		})
	}
}

// BenchmarkChargeRunning measures the tick that charges running requests, once a second, with 1,536
// answers of 50 tenants in progress at 64 replicas.
func BenchmarkChargeRunning(b *testing.B) {
	bal := fleet(b, "least-load", 64)
	bal.cfg.Push = PushMode{Kind: PushBlind}
	for i := range 64 * 24 {
		bal.Step(0, Event{Kind: EventArrived, Request: &Request{ID: fmt.Sprint(i), Model: "m", Tenant: fmt.Sprint(i % 50), PromptTokens: 100}})
	}
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		bal.chargeOutstanding(time.Duration(i)*time.Second, bal.queue("m"))
	}
}
