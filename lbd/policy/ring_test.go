package policy

import (
	"fmt"
	"testing"

	"pgregory.net/rapid"
)

func fleet(n int) []Candidate {
	cs := make([]Candidate, n)
	for i := range cs {
		cs[i] = replica(fmt.Sprintf("r%02d", i), 0, 0)
	}
	return cs
}

func session(i int) string { return fmt.Sprintf("session-%d", i) }

func available(c *Candidate) bool { return c.Available }

// ringPolicies returns the two policies that hash sessions.
func ringPolicies() []Policy { return []Policy{NewConsistentHash(), NewSkyLBCH()} }

func TestRemovedTargetMovesOnlyItsSessions(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		cs := fleet(rapid.IntRange(2, 12).Draw(rt, "targets"))
		gone := rapid.IntRange(0, len(cs)-1).Draw(rt, "gone")
		how := rapid.SampledFrom([]string{"unavailable", "absent", "absent from a new ring"}).Draw(rt, "how")
		for _, p := range ringPolicies() {
			before := make([]string, 200)
			for i := range before {
				before[i] = cs[p.Choose(&Facts{Session: session(i), Candidates: cs}).Index].ID
			}
			rest := append([]Candidate(nil), cs...)
			if how == "unavailable" {
				rest[gone].Available = false
			} else {
				rest = append(rest[:gone], rest[gone+1:]...)
			}
			if how == "absent from a new ring" {
				p, _ = New(p.Name())
			}
			for i, was := range before {
				now := rest[p.Choose(&Facts{Session: session(i), Candidates: rest}).Index].ID
				if was != cs[gone].ID && now != was {
					rt.Fatalf("%s: %s went away (%s), and %s moved from %s to %s", p.Name(), cs[gone].ID, how, session(i), was, now)
				}
			}
		}
	})
}

func TestSessionsSpreadEvenlyOverTheRing(t *testing.T) {
	for _, n := range []int{2, 3, 8, 64} {
		cs := fleet(n)
		p := NewSkyLBCH()
		count := make([]int, n)
		const each = 4000
		for i := range n * each {
			count[p.Choose(&Facts{Session: session(i), Candidates: cs}).Index]++
		}
		for i, got := range count {
			if got < each*80/100 || got > each*120/100 {
				t.Errorf("%d targets: %s has %d sessions, want %d give or take a fifth", n, cs[i].ID, got, each)
			}
		}
	}
}

// The ring only skips unavailable targets: a ring over all targets equals a plain search for the
// next point.
func TestRingMatchesReference(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		cs := fleet(rapid.IntRange(1, 5).Draw(rt, "targets"))
		for i := range cs {
			cs[i].Available = rapid.Bool().Draw(rt, "available")
		}
		ids := []string{"gone"}
		for i := range cs {
			ids = append(ids, cs[i].ID)
		}
		r := newRing(ids)
		if !r.mapCandidates(cs) {
			rt.Fatalf("the ring of %v lacks a candidate", ids)
		}
		key := rapid.String().Draw(rt, "key")
		if got, want := r.nextTarget(mix(hashKey(key)), cs, available), nearestPoint(key, cs); got != want {
			rt.Fatalf("key %q goes to %d, want %d", key, got, want)
		}
	})
}

// nearestPoint checks every point of every available candidate and returns the one with the
// shortest distance after the key.
func nearestPoint(key string, cs []Candidate) int {
	best, way := Wait, uint64(0)
	for i := range cs {
		for n := range uint64(ringPoints) {
			ahead := ringPosition(mix(hashKey(cs[i].ID)+n*0x9e3779b97f4a7c15)) - ringPosition(mix(hashKey(key)))
			if cs[i].Available && (best == Wait || ahead < way) {
				best, way = i, ahead
			}
		}
	}
	return best
}

func TestBoundedLoadMovesOverflow(t *testing.T) {
	bounded, free := NewConsistentHash(), NewSkyLBCH()
	cs := fleet(4)
	home := free.Choose(&Facts{Session: "busy", Candidates: cs}).Index
	for range 100 {
		i := bounded.Choose(&Facts{Session: "busy", Candidates: cs}).Index
		total := 1
		for _, c := range cs {
			total += c.Outstanding
		}
		cs[i].Outstanding++
		if got, most := float64(cs[i].Outstanding), 1+loadFactor*float64(total)/4; got >= most {
			t.Fatalf("%s has %v of %d requests, want fewer than %v", cs[i].ID, got, total, most)
		}
		if again := free.Choose(&Facts{Session: "busy", Candidates: cs}).Index; again != home {
			t.Fatalf("skylb-ch left %s for %s because of load", cs[home].ID, cs[again].ID)
		}
	}
	for i, c := range cs {
		if c.Outstanding > cs[home].Outstanding {
			t.Errorf("%d has %d requests, more than the session's own place (%d)", i, c.Outstanding, cs[home].Outstanding)
		}
	}
}

func TestSessionsAreHashedToPeers(t *testing.T) {
	for _, p := range ringPolicies() {
		cs := []Candidate{full(replica("a", 0, 0)), peer("asia", 0, 0), peer("eu", 0, 0), peer("sa", 0, 0)}
		seen := map[int]bool{}
		for i := range 40 {
			f := &Facts{Session: session(i), Candidates: cs}
			first, again := p.Choose(f), p.Choose(f)
			if first != again || first.Reason != ReasonForward {
				t.Errorf("%s: %s went to %+v, then %+v", p.Name(), session(i), first, again)
			}
			seen[first.Index] = true
		}
		if len(seen) != 3 {
			t.Errorf("%s: 40 sessions went to %d of 3 peers", p.Name(), len(seen))
		}
	}
}

func TestChoiceDoesNotAllocate(t *testing.T) {
	cs := fleet(64)
	for i := range 40 {
		cs[i].Available = false
	}
	for _, name := range Names() {
		p, _ := New(name)
		f := &Facts{Model: "m", Session: "someone", PromptBytes: 256, Candidates: cs}
		if n := testing.AllocsPerRun(100, func() { p.Choose(f) }); n != 0 {
			t.Errorf("%s: %v allocations a choice", name, n)
		}
	}
}

// Requests with restrictions have only some of the targets; this does not cause a new ring.
func TestRingServesSubsetsOfTargets(t *testing.T) {
	cs := fleet(6)
	var s rings
	whole := s.ringFor("m", false, cs)
	if s.ringFor("m", false, cs[1:4]) != whole || s.ringFor("m", false, cs) != whole {
		t.Error("a part of the targets built a new ring")
	}
	if s.ringFor("m", true, cs) == whole || s.ringFor("n", false, cs) == whole {
		t.Error("two layers or models share a ring")
	}
}

func TestRingsDropRemovedTargets(t *testing.T) {
	var s rings
	for i := range 200 {
		cs := []Candidate{replica(fmt.Sprintf("a%04d", i), 0, 0), replica(fmt.Sprintf("b%04d", i), 0, 0)}
		if r := s.ringFor("m", false, cs); len(r.ids) > 2*len(cs)+ringSlack {
			t.Fatalf("after %d replacements the ring holds %d targets", i, len(r.ids))
		}
	}
	for i := range 2 * maxRings {
		s.ringFor(fmt.Sprintf("model-%d", i), false, nil)
		if len(s.byLayer) > maxRings {
			t.Fatalf("%d rings", len(s.byLayer))
		}
	}
}

// BenchmarkRing measures the addition of a target, during which all other requests wait.
func BenchmarkRing(b *testing.B) {
	var ids []string
	for _, c := range fleet(64) {
		ids = append(ids, c.ID)
	}
	b.ReportAllocs()
	for b.Loop() {
		newRing(ids)
	}
}
