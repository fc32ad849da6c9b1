package eval

import (
	"math"
	"reflect"
	"testing"

	"skyserve/internal/sim"
)

// The number of concurrent draws does not affect a search, and each draw equals the one that its seed
// repeats.
func TestFuzzRepeats(t *testing.T) {
	f := PolicyFuzz{Policy: "least-load", Others: []string{"round-robin"}, Draws: 3, SeedBase: 33, Workers: 3}
	search := func() *FuzzReport {
		r, err := RunFuzz(t.Context(), f)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	all := search()
	f.Draws, f.SeedBase, f.Workers = 1, 34, 1
	if one := search(); !reflect.DeepEqual(one.Draws[0], all.Draws[1]) {
		t.Errorf("seed 35 yields\n%+v\nalone, and\n%+v\nas the second of three", one.Draws[0], all.Draws[1])
	}
}

// With several seeds, a draw has the means of the runs that each seed gives alone.
func TestFuzzSeeds(t *testing.T) {
	search := func(base uint64, seeds int) FuzzDraw {
		d, err := (&PolicyFuzz{Policy: "least-load", Others: []string{"round-robin"}, Draws: 1, SeedBase: base, Seeds: seeds}).draw(t.Context(), 34)
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	one, three := search(33, 0), search(33, 3)
	if len(three.Rows) != 6 || len(three.Summary) != 2 || !reflect.DeepEqual(three.Rows[0], one.Rows[0]) || !reflect.DeepEqual(three.Rows[3], one.Rows[1]) {
		t.Fatalf("three seeds yield\n%+v\none\n%+v", three, one)
	}
	rows := three.Rows
	want := (rows[0].OutputTokensPerSecond + rows[1].OutputTokensPerSecond + rows[2].OutputTokensPerSecond) / (rows[3].OutputTokensPerSecond + rows[4].OutputTokensPerSecond + rows[5].OutputTokensPerSecond)
	if math.Abs(*three.Throughput-want) > 1e-12 || rows[0].Seed != 34 || rows[2].Seed != 36 {
		t.Errorf("the ratio is %g, that of the sums %g", *three.Throughput, want)
	}
	f := PolicyFuzz{Policy: "cost", Draws: 1, Seeds: -1}
	if err := f.Check(); err == nil {
		t.Error("-1 seeds")
	}
	f.Seeds = 4
	if got := f.replay(42); got != "skyserve sim fuzz-policy --policy cost --seeds 4 --scenarios 1 --seed-base 41" {
		t.Errorf("repeated by %s", got)
	}
}

// The ratios compare with the best other policy and with skylb; the summary counts the draws behind.
func TestFuzzRatios(t *testing.T) {
	row := func(policy string, throughput, p90 float64) Summary {
		figures := sim.RunFigures{OutputTokensPerSecond: throughput}
		if p90 > 0 {
			figures.TTFT = &sim.Percentiles{P90: p90}
		}
		return Summary{Policy: policy, Mean: figures}
	}
	draws := []FuzzDraw{
		{Seed: 1, Summary: []Summary{row("cost", 96, 10), row("skylb", 80, 20), row("least-load", 100, 40)}},
		{Seed: 2, Summary: []Summary{row("cost", 98, 10), row("skylb", 100, 5), row("least-load", 50, 40)}},
		{Seed: 3, Summary: []Summary{row("cost", 0, 0), row("skylb", 0, 0), row("least-load", 0, 0)}},
	}
	for i := range draws {
		draws[i].compare()
	}
	r := newFuzzReport("cost", draws)
	if d := &r.Draws[0]; d.Best != "least-load" || *d.Throughput != 0.96 || *d.TTFT != 0.25 || *d.ThroughputSkyLB != 1.2 || *d.TTFTSkyLB != 0.5 {
		t.Errorf("the first draw is %+v", d)
	}
	if d := &r.Draws[2]; d.Throughput != nil || d.TTFT != nil {
		t.Errorf("a draw without responses has ratios: %+v", d)
	}
	if r.Throughput != (FuzzRatios{2, 0.97, 0.96}) || r.TTFT.Worst != 2 || r.Behind != 0.5 || r.BehindSkyLB != 0.5 {
		t.Errorf("the summary is %+v", r)
	}
	if worst := r.Worst(2); worst[0].Seed != 1 || worst[1].Seed != 2 {
		t.Errorf("the worst draws have seeds %d and %d", worst[0].Seed, worst[1].Seed)
	}
}
