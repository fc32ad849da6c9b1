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

// benchmarked are the problems that are timed, by name.
func benchmarked(seed uint64) []struct {
	name string
	gap  float64
	p    *Problem
} {
	caps := func(share float64) *Problem {
		return withCapacity(random(rand.New(rand.NewPCG(seed, 9)), paperSize), rand.New(rand.NewPCG(seed, 10)), share)
	}
	type timed = struct {
		name string
		gap  float64
		p    *Problem
	}
	out := []timed{
		{"4x3x1", 0, random(rand.New(rand.NewPCG(seed, 9)), size{models: 4, regions: 3, gpus: 1, windows: 12, most: 20})},
		{"4x3x3", 0, random(rand.New(rand.NewPCG(seed, 9)), size{models: 4, regions: 3, gpus: 3, windows: 12, most: 20})},
		{"4x3x3-tight", 0, withCapacity(random(rand.New(rand.NewPCG(seed, 9)), size{models: 4, regions: 3, gpus: 3, windows: 12, most: 20}), rand.New(rand.NewPCG(seed, 10)), 1.1)},
		{"20x20x5", 0, random(rand.New(rand.NewPCG(seed, 9)), paperSize)},
		{"20x20x5-loose", 0.001, caps(3)},
		{"20x20x5-medium", 0.001, caps(1.6)},
		{"20x20x5-tight", 0.001, caps(1.1)},
	}
	for _, k := range kinds[2:8] {
		r := rand.New(rand.NewPCG(seed, 12))
		out = append(out, timed{"20x20x5-" + k.name, 0.001, k.make(random(rand.New(rand.NewPCG(seed, 9)), paperSize), r)})
	}
	return out
}

// BenchmarkSolve reports how far the answer is proven beside its time.
func BenchmarkSolve(b *testing.B) {
	for at, c := range benchmarked(1) {
		b.Run(c.name, func(b *testing.B) {
			var gap, proven, work float64
			for n := 0; b.Loop(); n++ {
				b.StopTimer()
				c := benchmarked(uint64(n%8 + 1))[at]
				b.StartTimer()
				scaled, unit := scale(c.p)
				s := newSolver(scaled, Options{Gap: c.gap, Effort: DefaultEffort})
				s.run()
				r, err := s.result(c.p, unit)
				if err != nil {
					b.Fatal(err)
				}
				gap += r.Gap
				work += float64(DefaultEffort - s.work.left)
				if r.Status == StatusOptimal || r.Status == StatusInfeasible {
					proven++
				}
			}
			b.ReportMetric(proven/float64(b.N), "proven")
			b.ReportMetric(100*gap/float64(b.N), "gap%")
			b.ReportMetric(work/1e6/float64(b.N), "Mwork/op")
		})
	}
}
