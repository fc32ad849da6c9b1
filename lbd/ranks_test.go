package lbd

import (
	"net/http"
	"sync"
	"testing"
	"time"

	"skyserve/internal/service"
	"skyserve/internal/sim/engine/server"
	"skyserve/lbd/core"
	"skyserve/lbd/policy"
)

func TestRanksAppearAsOneReplica(t *testing.T) {
	cfg := service.ReplicaConfig{ID: "us-0", DataParallel: 2}
	rank := func(id string) core.ReplicaView {
		return core.ReplicaView{
			ID: id, Model: "m", Ready: true, Reported: true, Outstanding: 3, Tokens: 5, Age: time.Second,
			Pending: policy.Known(1), Running: policy.Known(2), KV: policy.Known(0.5),
		}
	}
	a, b := rank("us-0/0"), rank("us-0/1")
	b.KV, b.Age, b.Available = policy.Known(0.7), 2*time.Second, true
	views := map[string]core.ReplicaView{"us-0/0": a, "us-0/1": b, "us-1": rank("us-1")}
	got := viewOf(cfg, views)
	want := core.ReplicaView{
		ID: "us-0", Model: "m", Ready: true, Reported: true, Available: true, Outstanding: 6, Tokens: 10, Age: 2 * time.Second,
		Pending: policy.Known(2), Running: policy.Known(4), KV: policy.Known(0.6),
	}
	if got == nil || *got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}

	b.Ready, b.Reason, b.Pending = false, "no recent report", policy.Maybe[int]{}
	views["us-0/1"] = b
	if got = viewOf(cfg, views); got.Ready || got.Reason != "no recent report" || got.Pending.Known || got.Running != policy.Known(4) {
		t.Errorf("with a rank that is not ready: %+v", got)
	}
	if got = viewOf(service.ReplicaConfig{ID: "us-1"}, views); got == nil || *got != views["us-1"] {
		t.Errorf("a replica without ranks: %+v", got)
	}
	if got = viewOf(service.ReplicaConfig{ID: "us-2", DataParallel: 2}, views); got != nil {
		t.Errorf("one that core does not know: %+v", got)
	}
}

// An engine with ranks is one replica for users and several targets for every policy: each request
// selects a rank by its header.
func TestRequestsUseAllRanks(t *testing.T) {
	for _, name := range []string{"bf-io", "round-robin"} {
		t.Run(name, func(t *testing.T) {
			n := start(t, service.BalancerConfig{
				ID: "lb-us", Region: "local/us", Models: []service.BalancerModel{{Name: "llama"}},
				Replicas: []service.ReplicaConfig{{
					ID: "us-0", Model: "llama", DataParallel: 4, MaxNumSeqs: 8,
					URL: simulatedAs(t, server.Options{Model: "llama", Speed: 1000, DataParallel: 4}),
				}},
				Balancer: service.BalancerSpec{Policy: name},
			}, Options{})
			ready(t, n)
			web := client(t)
			var mu sync.Mutex
			served := map[string]int{}
			var asking sync.WaitGroup
			for range 40 {
				asking.Go(func() {
					a := ask(t, web, n.public, "llama")
					mu.Lock()
					defer mu.Unlock()
					if a.status != http.StatusOK {
						t.Errorf("%d: %s", a.status, a.body)
					}
					served[a.header.Get("X-Skyserve-Replica")]++
				})
			}
			asking.Wait()
			for _, rank := range []string{"us-0/0", "us-0/1", "us-0/2", "us-0/3"} {
				if served[rank] < 4 || served[rank] > 20 {
					t.Errorf("served by %v, want a fair share at each of 4 ranks", served)
				}
			}
			if w := n.worker(t, "us-0"); w.State != service.StateReady || w.DataParallel != 4 {
				t.Errorf("listed as %+v", w)
			}
			if s := n.snapshot(t); len(s.Regions) != 1 || len(s.Regions[0].Replicas) != 1 || s.Regions[0].Replicas[0].ID != "us-0" {
				t.Errorf("shown as %+v", s.Regions)
			}
			// Adding it again has no effect; removing it removes all ranks.
			cfg := n.worker(t, "us-0").ReplicaConfig
			if added, err := n.admin.AddWorker(t.Context(), cfg); err != nil || added {
				t.Errorf("added again: %v, %v", added, err)
			}
			if err := n.admin.RemoveWorker(t.Context(), "us-0", 0); err != nil {
				t.Error(err)
			}
			if a := ask(t, web, n.public, "llama"); a.status == http.StatusOK {
				t.Errorf("still served by %s", a.header.Get("X-Skyserve-Replica"))
			}
		})
	}
}
