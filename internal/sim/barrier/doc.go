// Package barrier simulates fleets whose workers wait for the slowest at every step, and
// evaluates the BF-IO paper on them with the solver that balancers use (lbd/bfio).
//
// Read sim.go first: a Scenario, its Sim and the Figures of a run under a Policy; baseline.go
// holds the paper's other policies, power.go and lengths.go its models of energy and of
// requests. table.go replays section 6 of the paper; open.go and experiments.go ask what it
// leaves open: fleets that are not overloaded, binding on arrival (7.3), other drift (5.1),
// and how the gain grows with the fleet.
package barrier
