package bfio_test

import (
	"fmt"
	"slices"
	"testing"

	"skyserve/internal/sim/barrier"
	"skyserve/lbd/bfio"
)

// steady returns the next decision of a fleet in steady state: workers of 72 slots that BF-IO has
// balanced, with this number of waiting jobs.
func steady(t testing.TB, workers, waiting, h, steps int, seed uint64) (*barrier.Sim, bfio.Instance) {
	t.Helper()
	scenario := barrier.Table1(seed)
	scenario.Workers, scenario.VisibleRequests, scenario.Warmup, scenario.Steps = workers, waiting, 0, steps
	sim := barrier.NewSim(scenario, bfio.Defaults(h))
	sim.Run(new(bfio.Solver).Solve)
	return sim, sim.Decision()
}

// clone returns an instance that shares no memory with its simulation.
func clone(in bfio.Instance) bfio.Instance {
	in.Jobs, in.Workers = slices.Clone(in.Jobs), slices.Clone(in.Workers)
	for g := range in.Workers {
		in.Workers[g].Future = slices.Clone(in.Workers[g].Future)
	}
	return in
}

// BenchmarkSolve solves steady-state instances in which four jobs wait for each free slot, and the
// paper's own (16 workers, 256 waiting jobs).
func BenchmarkSolve(b *testing.B) {
	for _, c := range []struct{ workers, waiting int }{{16, 0}, {16, 256}, {64, 0}, {256, 0}} {
		for _, h := range []int{0, 20} {
			name := fmt.Sprintf("G=%d/H=%d/pool=%s", c.workers, h, map[bool]string{true: "4x", false: "256"}[c.waiting == 0])
			b.Run(name, func(b *testing.B) { benchmarkSolve(b, c.workers, c.waiting, h) })
		}
	}
}

// benchmarkSolve cycles through instances of one run, so that no single instance dominates.
func benchmarkSolve(b *testing.B, workers, waiting, h int) {
	const cycle = 8
	free := max(4, workers*72/255) // slots that fall free per step at 255 tokens an answer
	if waiting == 0 {
		waiting = 4 * free
	}
	var instances []bfio.Instance
	solver := new(bfio.Solver)
	sim, in := steady(b, workers, waiting, h, 300, 1)
	for range cycle {
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
		in := instances[i%cycle]
		solver.Solve(in)
		placed += in.Places()
	}
	b.ReportMetric(float64(placed)/float64(b.N), "placed/op")
}

func TestSolverDoesNotAllocate(t *testing.T) {
	solver := new(bfio.Solver)
	_, in := steady(t, 16, 256, 20, 200, 1)
	solver.Solve(in)
	if n := testing.AllocsPerRun(50, func() { solver.Solve(in) }); n != 0 {
		t.Errorf("a decision allocates %v times", n)
	}
}
