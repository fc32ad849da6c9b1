package barrier

import (
	"slices"
	"testing"

	"skyserve/lbd/bfio"
)

// steady returns the next decision of a fleet in steady state: workers with 72 slots balanced by BF-IO,
// with as many waiting jobs as the scenario reveals.
func steady(t testing.TB, workers, reveal, h, steps int, seed uint64) (*Sim, bfio.Instance) {
	t.Helper()
	scenario := Table1(seed)
	scenario.Workers, scenario.VisibleRequests, scenario.Warmup, scenario.Steps = workers, reveal, 0, steps
	sim := NewSim(scenario, bfio.Defaults(h))
	sim.Run(new(bfio.Solver).Solve)
	return sim, sim.Decision()
}

// clone returns a deep copy of an instance.
func clone(in bfio.Instance) bfio.Instance {
	in.Jobs, in.Workers = slices.Clone(in.Jobs), slices.Clone(in.Workers)
	for g := range in.Workers {
		in.Workers[g].Future = slices.Clone(in.Workers[g].Future)
	}
	return in
}
