package sim

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"skyserve/internal/sim/workload"
	"skyserve/lbd/core"
)

// Sessions arrive at the configured rate, multiplied by the factor in a surge.
func TestArrivalsFollowTheRate(t *testing.T) {
	const end = 3000 * time.Second
	surge := Surge{From: 1000 * time.Second, To: 2000 * time.Second, Factor: 8}
	a := &arrivals{random: rand.New(rand.NewPCG(1, 2)), rate: 5, surges: []Surge{surge}}
	var count [3]float64
	for at := a.nextArrival(0, end); at < end; at = a.nextArrival(at, end) {
		count[at/(1000*time.Second)]++
	}
	for i, want := range []float64{5000, 40_000, 5000} {
		// Four standard deviations of a Poisson count.
		if math.Abs(count[i]-want) > 4*math.Sqrt(want) {
			t.Errorf("stretch %d: %v sessions arrived, want about %v", i, count[i], want)
		}
	}
	a.surges[0].Factor = 0
	for at := a.nextArrival(0, end); at < end; at = a.nextArrival(at, end) {
		if surge.From < at && at < surge.To {
			t.Fatalf("a session arrived at %v, want none", at)
		}
	}
}

// In an open loop the start and contents of sessions do not depend on the policy, and a session ends:
// an arrival is one chat, not a permanent client.
func TestOpenLoopRunsOneSessionPerArrival(t *testing.T) {
	s := short(t, "fig8a", 60*time.Second)
	s.Rate, s.Warmup = 3, 0
	for i := range s.Regions {
		s.Regions[i].Replicas = 8
	}
	var begun [2][3]int
	for i, name := range []string{"skylb", "round-robin"} {
		w, err := newWorld(s, Setup{Policy: name, Push: push(t, "pending"), Layout: Regional, Seed: 4})
		if err != nil {
			t.Fatal(err)
		}
		for len(w.queue.heap) > 0 && w.queue.heap[0].at < s.Duration {
			w.stepEvent()
		}
		for k, a := range w.arrivals {
			begun[i][k] = a.begun
		}
		if n, all := w.tally.issued, begun[i][0]+begun[i][1]+begun[i][2]; n < 3*all/2 || n > 7*all/2 {
			t.Errorf("%s: %d requests of %d chats of 3 turns in the mean, some of them started recently", name, n, all)
		}
	}
	if begun[0] != begun[1] || begun[0][0] < 30 {
		t.Errorf("sessions started by region: %v under one policy, %v under another", begun[0], begun[1])
	}
}

// An H100 needs about an eighth of the prefill time and a tenth of the decode time of an L4 for the
// same requests.
func TestMixedReplicas(t *testing.T) {
	s := short(t, "fig8a", 40*time.Second)
	s.Workload, s.Warmup, s.Regions = workload.Arena, 0, []Region{{Name: "us", Replicas: 2, Clients: 12}}
	if err := s.Set("profiles.us", "l4-llama3.1-8b,h100-llama3.1-8b"); err != nil {
		t.Fatal(err)
	}
	r := run(t, s, Setup{Policy: "round-robin", Push: core.PushMode{Kind: core.PushBlind}, Layout: Single, Seed: 1})
	l4, h100 := r.Replicas[0], r.Replicas[1]
	perToken := func(busy time.Duration, tokens int64) float64 { return busy.Seconds() / float64(tokens) }
	slow, fast := perToken(l4.BusyTime, l4.GeneratedTokens), perToken(h100.BusyTime, h100.GeneratedTokens)
	if ratio := slow / fast; ratio < 1.5 || h100.KVCapacity != 362_000 || l4.KVCapacity != 21_000 {
		t.Errorf("an L4 is busy %.2f times as long for a token as an H100: %+v, %+v", ratio, l4, h100)
	}
}
