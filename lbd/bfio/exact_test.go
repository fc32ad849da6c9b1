package bfio

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

func TestNeverBetterThanExact(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := instance(drawRapid(t), 3, 5)
		_, got := solved(t, in)
		if best, _ := exact(in); got.Imbalance < best.Imbalance-1e-9*(1+best.Imbalance) {
			t.Fatalf("solver found %v, enumeration only %v: one of them does not solve %+v", got, best, in)
		}
	})
}

// The gap of the search over a fixed sample of tiny instances, in which a single job is a large
// part of a worker and near optima are rare.
func TestGapToExactOnTinyInstances(t *testing.T) {
	var gaps []float64
	n := drawSeeded(1)
	for range 1000 {
		in := instance(n, 3, 5)
		_, got := solved(t, in)
		best, _ := exact(in)
		gaps = append(gaps, max(0, gap(in, got, best)))
	}
	slices.Sort(gaps)
	optimal, sum := 0, 0.0
	for _, g := range gaps {
		if g < 1e-9 {
			optimal++
		}
		sum += g
	}
	t.Logf("optimal %d of %d, mean gap %.5f, p95 %.5f, p99 %.5f, max %.5f",
		optimal, len(gaps), sum/float64(len(gaps)), gaps[949], gaps[989], gaps[999])
	if optimal < 960 || sum/float64(len(gaps)) > 0.002 || gaps[989] > 0.04 {
		t.Error("want 96 % optimal, a mean gap of at most 0.2 %, and of at most 4 % in 99 %")
	}
}

// recorded is a steady-state decision of 16 workers, with its optimum as proven by an integer
// optimiser to within 0.01 % from the output of WriteMPS. The name of its file begins with the number of waiting jobs:
// r256 has 256.
type recorded struct {
	H       int
	Optimum float64
	Workers []Worker
	Jobs    [][2]int64 // prefill, waited
}

func TestGapToRecordedOptima(t *testing.T) {
	files, err := filepath.Glob("testdata/steady/*.json")
	if err != nil || len(files) == 0 {
		t.Fatal("no recorded instances", err)
	}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var r recorded
		if err := json.Unmarshal(data, &r); err != nil {
			t.Fatal(file, err)
		}
		in := Instance{Workers: r.Workers, Options: Defaults(r.H)}
		for _, j := range r.Jobs {
			in.Jobs = append(in.Jobs, Job{Prefill: j[0], Waited: int(j[1])})
		}
		_, got := solved(t, in)
		missed := gap(in, got, Cost{Imbalance: r.Optimum, Peak: got.Peak})
		t.Logf("%s: %.1f, optimum %.1f: gap %.5f %%, of the imbalance alone %.3f %%",
			file, got.Imbalance, r.Optimum, 100*missed, 100*(got.Imbalance/r.Optimum-1))
		if missed > 0.001 || missed < -0.0001 || got.Imbalance > 1.01*r.Optimum {
			t.Errorf("%s: want at most 0.1 %% of the barrier's cost and 1 %% of the imbalance", file)
		}
	}
}
