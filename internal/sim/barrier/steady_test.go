package barrier

import (
	"slices"
	"testing"

	"skyserve/lbd/bfio"
)

// steady is the decision that a fleet in steady state takes next: workers of 72
// slots that BF-IO has balanced, with as many waiting jobs as the scenario reveals.
func steady(t testing.TB, workers, reveal, h, steps int, seed uint64) (*Sim, bfio.Instance) {
	t.Helper()
	scenario := Table1(seed)
	scenario.Workers, scenario.Reveal, scenario.Warmup, scenario.Steps = workers, reveal, 0, steps
	sim := NewSim(scenario, bfio.Defaults(h))
	sim.Run(new(bfio.Solver).Solve)
	return sim, sim.Decision()
}

// clone is an instance that shares nothing with the simulation it came from.
func clone(in bfio.Instance) bfio.Instance {
	in.Jobs, in.Workers = slices.Clone(in.Jobs), slices.Clone(in.Workers)
	for g := range in.Workers {
		in.Workers[g].Future = slices.Clone(in.Workers[g].Future)
	}
	return in
}
