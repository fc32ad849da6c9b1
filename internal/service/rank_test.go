package service

import "testing"

func TestRankIDs(t *testing.T) {
	for _, c := range []struct {
		ranks int
		want  []string
	}{{0, []string{"us-0"}}, {1, []string{"us-0"}}, {3, []string{"us-0/0", "us-0/1", "us-0/2"}}} {
		r := ReplicaConfig{ID: "us-0", DataParallel: c.ranks}
		if r.Ranks() != len(c.want) {
			t.Errorf("data_parallel %d: %d ranks, want %d", c.ranks, r.Ranks(), len(c.want))
		}
		for i, want := range c.want {
			if got := r.RankID(i); got != want {
				t.Errorf("data_parallel %d: rank %d is %s, want %s", c.ranks, i, got, want)
			}
		}
	}
}
