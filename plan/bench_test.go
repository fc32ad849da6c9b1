package plan

import (
	"math"
	"math/rand/v2"
	"testing"
)

// paperSize is the greater of the two sizes that SageServe times, l=20, r=20,
// g=5.
var paperSize = size{models: 20, regions: 20, gpus: 5, windows: 12, most: 20}

// withCapacity gives every region and GPU a capacity: about share times what
// the region's models need at their mean throughput, spread over the GPUs.
func withCapacity(p *Problem, r *rand.Rand, share float64) *Problem {
	p.Capacity = nil
	for j := range p.Regions {
		var units float64
		for i := range p.Models {
			mean, kinds := 0.0, 0.0
			for _, t := range p.Theta[i] {
				if t > 0 {
					mean += t
					kinds++
				}
			}
			units += p.Peak(i, j) * kinds / mean
		}
		row := make([]*int, len(p.GPUs))
		for k := range row {
			row[k] = ptr(int(math.Ceil(share * units / float64(len(row)) * (0.5 + r.Float64()))))
		}
		p.Capacity = append(p.Capacity, row)
	}
	return p
}

// aSecond is the work that one core of a small machine does in about a second.
const aSecond = 75_000_000

// timed is a problem that is solved to a gap with some effort.
type timed struct {
	name   string
	gap    float64
	effort int64
	p      *Problem
}

// benchmarked are the problems that are timed.
func benchmarked(seed uint64) []timed {
	caps := func(share float64) *Problem {
		return withCapacity(random(rand.New(rand.NewPCG(seed, 9)), paperSize), rand.New(rand.NewPCG(seed, 10)), share)
	}
	small := func(gpus int) *Problem {
		return random(rand.New(rand.NewPCG(seed, 9)), size{models: 4, regions: 3, gpus: gpus, windows: 12, most: 20})
	}
	out := []timed{
		{"4x3x1", 0, DefaultEffort, small(1)},
		{"4x3x3", 0, DefaultEffort, small(3)},
		{"4x3x3-tight", 0, DefaultEffort, withCapacity(small(3), rand.New(rand.NewPCG(seed, 10)), 1.1)},
		{"20x20x5", 0, DefaultEffort, random(rand.New(rand.NewPCG(seed, 9)), paperSize)},
	}
	for _, c := range []struct {
		name  string
		share float64
	}{{"loose", 3}, {"medium", 1.6}, {"tight", 1.1}} {
		out = append(out, timed{"20x20x5-" + c.name + "-1s", 0.001, aSecond, caps(c.share)}, timed{"20x20x5-" + c.name + "-5s", 0.001, 5 * aSecond, caps(c.share)})
	}
	for _, k := range kinds[2:8] {
		r := rand.New(rand.NewPCG(seed, 12))
		out = append(out, timed{"20x20x5-" + k.name, 0.001, 5 * aSecond, k.make(random(rand.New(rand.NewPCG(seed, 9)), paperSize), r)})
	}
	return out
}

// BenchmarkSolve reports how far the answers are proven, on average and at worst,
// beside their time; none found counts as a gap of all.
func BenchmarkSolve(b *testing.B) {
	for at, c := range benchmarked(1) {
		b.Run(c.name, func(b *testing.B) {
			var gap, worst, proven, work float64
			for n := 0; b.Loop(); n++ {
				b.StopTimer()
				c := benchmarked(uint64(n%8 + 1))[at]
				b.StartTimer()
				scaled, unit := scale(c.p)
				s := newSolver(scaled, Options{Gap: c.gap, Effort: c.effort})
				s.run()
				r, err := s.result(c.p, unit)
				if err != nil {
					b.Fatal(err)
				}
				if r.X == nil && r.Status == StatusUnknown {
					r.Gap = 1
				}
				gap, worst = gap+r.Gap, math.Max(worst, r.Gap)
				work += float64(c.effort - s.work.left)
				if r.Status == StatusOptimal || r.Status == StatusInfeasible {
					proven++
				}
			}
			b.ReportMetric(proven/float64(b.N), "proven")
			b.ReportMetric(100*gap/float64(b.N), "gap%")
			b.ReportMetric(100*worst, "worst%")
			b.ReportMetric(work/1e6/float64(b.N), "Mwork/op")
		})
	}
}
