package proxy

import (
	"slices"
	"testing"

	"skyserve/internal/service"
	"skyserve/lbd/core"
	"skyserve/lbd/policy"
)

func targetsOf(r *Runtime) []string {
	var ids []string
	for _, v := range r.View().Replicas {
		ids = append(ids, v.ID)
	}
	return ids
}

// core has exactly the current ranks of the replica after every change. For all other code it is one
// replica.
func TestRanksFollowTheReplica(t *testing.T) {
	p, err := policy.New("bf-io")
	if err != nil {
		t.Fatal(err)
	}
	r, err := New(Options{Self: service.BalancerConfig{ID: "lb"}, Core: core.DefaultConfig(p)})
	if err != nil {
		t.Fatal(err)
	}
	cfg := service.ReplicaConfig{ID: "us-0", URL: "http://127.0.0.1:9", Model: "m"}
	for _, c := range []struct {
		ranks int
		want  []string
	}{
		{3, []string{"us-0/0", "us-0/1", "us-0/2"}},
		{3, []string{"us-0/0", "us-0/1", "us-0/2"}},
		{2, []string{"us-0/0", "us-0/1"}},
		{0, []string{"us-0"}},
		{2, []string{"us-0/0", "us-0/1"}},
	} {
		cfg.DataParallel = c.ranks
		if _, err := r.AddReplica(cfg); err != nil {
			t.Fatal(err)
		}
		if got := targetsOf(r); !slices.Equal(got, c.want) || len(r.Replicas()) != 1 || len(r.ranks) != len(c.want) {
			t.Errorf("with %d ranks: %v in core, %d replicas", c.ranks, got, len(r.Replicas()))
		}
	}
	if !r.DrainReplica("us-0") || r.DrainReplica("us-0/1") {
		t.Error("a replica with ranks is drained by its id")
	}
	for _, v := range r.View().Replicas {
		if !v.Draining {
			t.Errorf("%s is not drained", v.ID)
		}
	}
	if removed, err := r.RemoveReplica("us-0", 0); !removed || err != nil || len(targetsOf(r)) != 0 || len(r.ranks) != 0 {
		t.Errorf("removed %v, %v; left are %v", removed, err, targetsOf(r))
	}
	for _, bad := range []service.ReplicaConfig{{DataParallel: -1}, {DataParallel: 65}, {MaxNumSeqs: -1}} {
		bad.ID, bad.URL, bad.Model = "us-1", "http://127.0.0.1:9", "m"
		if _, err := r.AddReplica(bad); err == nil {
			t.Errorf("accepted %+v", bad)
		}
	}
}
