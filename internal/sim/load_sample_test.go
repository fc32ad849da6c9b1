package sim

import (
	"testing"
	"time"

	"skyserve/lbd/core"
)

// A run's samples are equidistant, and their counts are consistent: never more than the requests of
// closed-loop clients, and close to that while they are busy.
func TestLoadIsSampled(t *testing.T) {
	s := short(t, "fig8a", 40*time.Second)
	r := run(t, s, Setup{Policy: "skylb", Push: core.PushMode{Kind: core.PushPending}, Layout: Regional, Seed: 1})
	if len(r.LoadSamples) != loadSamples {
		t.Fatalf("%d moments", len(r.LoadSamples))
	}
	clients, highest := 0, 0
	for _, region := range s.Regions {
		clients += region.Clients
	}
	for i, m := range r.LoadSamples {
		if m.At != time.Duration(i)*s.Duration/loadSamples || len(m.Regions) != 3 {
			t.Fatalf("moment %d: %+v", i, m)
		}
		all := 0
		for _, l := range m.Regions {
			all += l.Queued + l.Pending + l.Running
		}
		if all > clients {
			t.Errorf("at %v there are %d requests of %d clients that send one at a time", m.At, all, clients)
		}
		highest = max(highest, all)
	}
	if highest < clients*3/4 {
		t.Errorf("there are never more than %d requests of %d busy clients", highest, clients)
	}
}
