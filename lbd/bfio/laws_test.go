package bfio

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// Enough workers and jobs for a non-trivial search.
func drawLarge(t *rapid.T) Instance { return instance(drawRapid(t), 8, 30) }

func TestPermutingWorkersKeepsTheObjective(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := drawLarge(t)
		_, before := solved(t, in)
		in.Workers = rapid.Permutation(in.Workers).Draw(t, "workers")
		if _, after := solved(t, in); after != before {
			t.Fatalf("%v became %v", before, after)
		}
	})
}

func TestScalingLoadsScalesTheObjective(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := drawLarge(t)
		before, cost := solved(t, in)
		before = slices.Clone(before)
		in.Options.Drift *= 4
		for i := range in.Jobs {
			in.Jobs[i].Prefill *= 4
		}
		for g := range in.Workers {
			in.Workers[g].Load *= 4
			in.Workers[g].Future = slices.Clone(in.Workers[g].Future)
			for h := range in.Workers[g].Future {
				in.Workers[g].Future[h] *= 4
			}
		}
		after, scaled := solved(t, in)
		if !slices.Equal(before, after) || scaled.Imbalance != 4*cost.Imbalance || scaled.Peak != 4*cost.Peak {
			t.Fatalf("%v at %v became %v at %v", before, cost, after, scaled)
		}
	})
}

// If every job already has a slot, one more slot only adds choices. If it allows one more job, that
// job must be placed and may increase the cost.
func TestExtraFreeSlotRarelyWorsens(t *testing.T) {
	const cases = 2000
	worse := 0
	n := drawSeeded(2)
	for range cases {
		in := instance(n, 3, 4)
		in.Workers[0].Free += len(in.Jobs)
		before, _ := exact(in)
		_, found := solved(t, in)
		in.Workers[len(in.Workers)-1].Free++
		after, _ := exact(in)
		_, now := solved(t, in)
		if after.Imbalance > before.Imbalance*(1+1e-12) {
			t.Fatalf("the optimum rose from %v to %v: %+v", before, after, in)
		}
		if now.Imbalance > found.Imbalance*(1+1e-12) {
			worse++
		}
	}
	t.Logf("what the search found rose in %d of %d cases", worse, cases)
	if worse > cases/100 {
		t.Error("want at most one in a hundred")
	}
}

func TestJobsOverTheWaitBoundGoFirst(t *testing.T) {
	workers := []Worker{{Load: 100, Free: 1}, {Load: 100, Free: 1}, {Load: 5000}}
	jobs := []Job{{Prefill: 9000, Waited: 200}, {Prefill: 4900, Waited: 199}, {Prefill: 4900, Waited: 1}, {Prefill: 8000, Waited: 200}}
	for _, c := range []struct {
		bound int
		stay  []int
	}{
		{0, []int{0, 3}},
		{201, []int{0, 3}},
		{200, []int{1, 2}},
		{199, []int{1, 2}},
		{1, []int{1, 2}},
	} {
		in := Instance{Workers: workers, Jobs: jobs, Options: Defaults(0)}
		in.Options.WaitBound = c.bound
		answer, _ := solved(t, in)
		var stay []int
		for job, g := range answer {
			if g == Unplaced {
				stay = append(stay, job)
			}
		}
		if !slices.Equal(stay, c.stay) {
			t.Errorf("bound %d: %v stay, want %v", c.bound, stay, c.stay)
		}
	}
}

func TestOlderOfEqualJobsGoesFirst(t *testing.T) {
	in := Instance{
		Workers: []Worker{{Load: 700, Free: 1}, {Load: 1000}},
		Jobs:    []Job{{Prefill: 300, Waited: 1}, {Prefill: 300, Waited: 5}, {Prefill: 300, Waited: 5}, {Prefill: 10, Waited: 9}},
		Options: Defaults(0),
	}
	if answer, _ := solved(t, in); !slices.Equal(answer, []int{Unplaced, 0, Unplaced, Unplaced}) {
		t.Errorf("got %v", answer)
	}
}

func TestLookaheadPrefersLoadThatEndsSoon(t *testing.T) {
	// Worker 0 has the higher load now, but nearly all of it is about to end.
	in := Instance{
		Workers: []Worker{{Load: 1000, Free: 1, Future: []int64{100, 100, 100}}, {Load: 900, Free: 1, Future: []int64{900, 900, 900}}},
		Jobs:    []Job{{Prefill: 500}},
	}
	for h, want := range []int{1, 0, 0, 0} {
		in.Options = Defaults(h)
		if answer, _ := solved(t, in); answer[0] != want {
			t.Errorf("H=%d: job on worker %d, want %d", h, answer[0], want)
		}
	}
}

func TestDecisionDependsOnlyOnInstance(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		used := new(Solver)
		used.Solve(drawLarge(t))
		in := drawLarge(t)
		again := slices.Clone(used.Solve(in))
		if fresh, _ := solved(t, in); !slices.Equal(again, fresh) {
			t.Fatalf("a used solver decides %v, a new one %v", again, fresh)
		}
	})
}

func TestCheckFindsEveryViolation(t *testing.T) {
	in := Instance{
		Workers: []Worker{{Free: 1}, {Free: 1}},
		Jobs:    []Job{{Waited: 5}, {Waited: 9}, {Waited: 1}},
		Options: Defaults(0),
	}
	in.Options.WaitBound = 5
	for name, answer := range map[string][]int{
		"too short":        {0, 1},
		"no such worker":   {0, 2, Unplaced},
		"slots":            {0, 0, Unplaced},
		"too few":          {0, Unplaced, Unplaced},
		"wait bound":       {0, Unplaced, 1},
		"one of the older": {Unplaced, 0, 1},
	} {
		if Check(in, answer) == nil {
			t.Errorf("%s: %v passes", name, answer)
		}
	}
	if err := Check(in, []int{1, 0, Unplaced}); err != nil {
		t.Error(err)
	}
}

func TestBitsetAgainstASet(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.Int32Range(1, 200).Draw(t, "n")
		var b bitset
		b.reset(int(n))
		in := map[int32]bool{}
		for _, i := range rapid.SliceOf(rapid.Int32Range(0, n-1)).Draw(t, "set") {
			b.setBit(i)
			in[i] = true
		}
		for _, i := range rapid.SliceOf(rapid.Int32Range(0, n-1)).Draw(t, "unset") {
			b.clearBit(i)
			delete(in, i)
		}
		from, to := rapid.Int32Range(0, n).Draw(t, "from"), rapid.Int32Range(0, n).Draw(t, "to")
		next, prev := int32(-1), int32(-1)
		for i := from; i < to; i++ {
			if in[i] {
				prev = i
				if next < 0 {
					next = i
				}
			}
		}
		if b.nextBit(from, to) != next || b.prevBit(from, to) != prev {
			t.Fatalf("[%d,%d) of %v: %d and %d", from, to, in, b.nextBit(from, to), b.prevBit(from, to))
		}
	})
}

func TestTopLoadsMatchFullScan(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := &Solver{steps: 2, load: make([]float64, 12), top: make([]topLoads, 2)}
		s.findTopLoads()
		for range rapid.IntRange(1, 20).Draw(t, "changes") {
			k := rapid.Int32Range(0, 5).Draw(t, "worker")
			for h := range 2 {
				s.row(k)[h] = float64(rapid.IntRange(0, 9).Draw(t, "load"))
			}
			s.updateTopLoads(k)
			kept := slices.Clone(s.top)
			s.findTopLoads()
			for h := range kept {
				if kept[h].load != s.top[h].load {
					t.Fatalf("step %d: %v, full scan %v", h, kept[h], s.top[h])
				}
			}
			copy(s.top, kept)
		}
	})
}

// FuzzSolve reads an instance out of bytes: extreme loads, negative ones, huge
// and negative counts of slots, windows of at most 14 steps, predictions shorter or longer than them.
func FuzzSolve(f *testing.F) {
	rng := rand.New(rand.NewPCG(1, 2))
	for n := range 20 {
		data := make([]byte, 40*n)
		for i := range data {
			data[i] = byte(rng.UintN(256))
		}
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		in := fromBytes(data)
		answer, cost := solved(t, in)
		if cost.Imbalance < 0 || math.IsNaN(cost.Imbalance) {
			t.Errorf("imbalance %v of %v for %+v", cost.Imbalance, answer, in)
		}
	})
}

func fromBytes(data []byte) Instance {
	take := func() int64 {
		var b [4]byte
		n := copy(b[:], data)
		data = data[n:]
		return int64(int32(binary.LittleEndian.Uint32(b[:])))
	}
	in := Instance{Options: Defaults(int(take()&15 - 1))}
	in.Options.Drift, in.Options.WaitBound = take()>>20, int(take()>>16)
	workers := int(take() & 7)
	for range workers {
		w := Worker{Load: take(), Free: int(take())}
		if w.Free < 1<<20 {
			w.Free %= 4
		}
		for range take() & 7 {
			w.Future = append(w.Future, take())
		}
		in.Workers = append(in.Workers, w)
	}
	for len(data) > 0 && len(in.Jobs) < 100 {
		in.Jobs = append(in.Jobs, Job{Prefill: take(), Waited: int(take() >> 16), Remaining: int(take() >> 24)})
	}
	return in
}
