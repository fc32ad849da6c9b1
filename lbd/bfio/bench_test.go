package bfio

import (
	"fmt"
	"testing"
)

// BenchmarkSolve decides steady-state instances in which four jobs wait for each
// free slot, and the paper's own (16 workers, 256 jobs that wait).
func BenchmarkSolve(b *testing.B) {
	for _, c := range []struct{ workers, reveal int }{{16, 0}, {16, 256}, {64, 0}, {256, 0}} {
		for _, h := range []int{0, 20} {
			name := fmt.Sprintf("G=%d/H=%d/pool=%s", c.workers, h, map[bool]string{true: "4x", false: "256"}[c.reveal == 0])
			b.Run(name, func(b *testing.B) { benchmarkSolve(b, c.workers, c.reveal, h) })
		}
	}
}

// benchmarkSolve cycles through instances of one run, so that no single one decides.
func benchmarkSolve(b *testing.B, workers, reveal, h int) {
	const window = 8
	free := max(4, workers*72/255) // slots that fall free per step at 255 tokens an answer
	if reveal == 0 {
		reveal = 4 * free
	}
	var instances []Instance
	solver := new(Solver)
	sim, in := steady(b, workers, reveal, h, 300, 1)
	for range window {
		instances = append(instances, clone(in))
		sim.Apply(solver.Solve(in))
		in = sim.Decision()
	}
	for _, in := range instances {
		solver.Solve(in)
	}
	placed := 0
	b.ReportAllocs()
	b.ResetTimer()
	for i := 0; b.Loop(); i++ {
		in := instances[i%window]
		solver.Solve(in)
		placed += in.Places()
	}
	b.ReportMetric(float64(placed)/float64(b.N), "placed/op")
}

func TestSteadyUseAllocatesNothing(t *testing.T) {
	solver := new(Solver)
	_, in := steady(t, 16, 256, 20, 200, 1)
	solver.Solve(in)
	if n := testing.AllocsPerRun(50, func() { solver.Solve(in) }); n != 0 {
		t.Errorf("a decision allocates %v times", n)
	}
}
