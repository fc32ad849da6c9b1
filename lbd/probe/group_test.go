package probe

import (
	"fmt"
	"math"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"skyserve/internal/service"
	"skyserve/internal/testkit"
	"skyserve/lbd/core"
)

// moments collects the report times of each replica.
type moments struct {
	mu sync.Mutex
	of map[string][]time.Time
}

func (m *moments) take(ev core.Event) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.of[ev.Target] = append(m.of[ev.Target], time.Now())
}

// drain returns the times since the last drain.
func (m *moments) drain() map[string][]time.Time {
	m.mu.Lock()
	defer m.mu.Unlock()
	of := m.of
	m.of = map[string][]time.Time{}
	return of
}

func TestReplicasAreProbedTogether(t *testing.T) {
	testkit.NotUnderRace(t, "the detector of Go 1.26 crashes at times on its thousands of timers, inside its own runtime")
	synctest.Test(t, func(t *testing.T) {
		e := newEngine()
		e.delay = 0
		m := &moments{of: map[string][]time.Time{}}
		p := New(Options{Transport: e, Sink: m.take, Seed: 5})
		defer p.Close()
		const replicas = 2*groupSize + 1
		start := func() {
			for i := range replicas {
				p.Start(service.ReplicaConfig{ID: fmt.Sprint(i), URL: "http://engine", Model: "llama"})
			}
		}
		start()
		synctest.Wait()
		if n := len(m.drain()); n != replicas {
			t.Errorf("%d replicas were probed at once when they were added, want %d", n, replicas)
		}
		time.Sleep(200 * time.Millisecond)
		m.drain()
		time.Sleep(10 * time.Second)
		wantTogether(t, m.drain(), replicas, 3)

		// Stopped watches leave the others in place, and capacity for new ones.
		for i := range replicas - 1 {
			p.Stop(fmt.Sprint(i))
		}
		synctest.Wait()
		m.drain()
		time.Sleep(5 * time.Second)
		wantTogether(t, m.drain(), 1, 1)
		start()
		time.Sleep(200 * time.Millisecond)
		m.drain()
		time.Sleep(5 * time.Second)
		wantTogether(t, m.drain(), replicas, 3)
		for i := range replicas {
			p.Stop(fmt.Sprint(i))
		}
		synctest.Wait()
		m.drain()
		time.Sleep(time.Second)
		if got := m.drain(); len(got) > 0 || len(p.groups) > 0 {
			t.Errorf("%d replicas are probed and %d groups are left after all were stopped", len(got), len(p.groups))
		}
	})
}

// wantTogether fails unless this number of replicas was probed ten times per second, at the moments
// of this number of groups.
func wantTogether(t *testing.T, of map[string][]time.Time, replicas, groups int) {
	t.Helper()
	if len(of) != replicas {
		t.Errorf("%d replicas were probed, want %d", len(of), replicas)
	}
	series := map[time.Time]int{} // by the first moment
	for id, at := range of {
		series[at[0]]++
		for i := 1; i < len(at); i++ {
			if gap := at[i].Sub(at[i-1]); gap < 90*time.Millisecond || gap > 110*time.Millisecond {
				t.Fatalf("%s: %s between two probes, want 90..110 ms", id, gap)
			}
		}
	}
	if len(series) != groups {
		t.Errorf("%d groups, want %d", len(series), groups)
	}
	for _, n := range series {
		if n > groupSize {
			t.Errorf("%d replicas are probed at one moment, want at most %d", n, groupSize)
		}
	}
}

func TestGroupsAreSpreadOverTheInterval(t *testing.T) {
	const interval = 100 * time.Millisecond
	for n := 1; n <= 64; n++ {
		var at []float64
		for i := range n {
			first := firstTick(i, interval)
			if first <= 0 || first > interval {
				t.Fatalf("group %d begins after %s", i, first)
			}
			at = append(at, float64(first)/float64(interval))
		}
		slices.Sort(at)
		least := 1 - at[n-1] + at[0]
		for i := 1; i < n; i++ {
			least = min(least, at[i]-at[i-1])
		}
		if n > 1 && least < 1/(math.Phi*math.Phi*float64(n)) {
			t.Errorf("of %d groups two are %.3f of an interval from each other", n, least)
		}
	}
}

// An engine that is slower than the interval is probed again soon after its response, and one that
// is just within it at every tick.
func TestSlowEngines(t *testing.T) {
	for delay, want := range map[time.Duration]int{85 * time.Millisecond: 100, 150 * time.Millisecond: 62, 400 * time.Millisecond: 24} {
		e := newEngine()
		e.delay = delay
		probing(t, service.ReplicaConfig{Model: "llama"}, e, Options{Seed: 2}, func(t *testing.T, _ *Prober, r *reports) {
			time.Sleep(time.Second)
			r.drain()
			time.Sleep(10 * time.Second)
			if n := len(r.drain()); n < want-3 || n > want+3 {
				t.Errorf("an answer takes %s: %d reports in 10 s, want about %d", delay, n, want)
			}
		})
	}
}
