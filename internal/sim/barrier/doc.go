// Package barrier simulates decode fleets with a step barrier, in which every step waits for the
// slowest worker, and evaluates the BF-IO paper on them with the solver that balancers use (lbd/bfio).
//
// Read sim.go first: a Scenario, its Sim and the Figures of a run with a Policy; baseline.go has the
// paper's other policies, power.go and lengths.go its models of energy and of requests. table.go
// replays section 6 of the paper; open.go and experiments.go go beyond it: fleets that are not
// overloaded, binding on arrival (7.3), other drift (5.1), and the gain by fleet size.
package barrier
