// Package bfio decides, once per decode step, which waiting requests start on
// which worker of a barrier-synchronised fleet: BF-IO, "Balance a Short Future
// with Integer Optimisation" (section 4 of the BF-IO paper).
//
// All workers of such a fleet wait for the slowest one at every step, so what
// one step wastes is its imbalance, equation (2) of the paper:
//
//	Imbalance = sum over g of (max over g' of L_g' - L_g) = G * max L - sum L
//
// with L_g the tokens resident on worker g. A decision minimises what the
// integer programme (IO) of the paper accumulates over a window of H steps,
// here with a weight per step:
//
//	J = sum over h = 0..H of w_h * (G * max over g of L_g(h) - sum over g of L_g(h))
//
// subject to (IO)'s constraints: a job goes to at most one worker, a worker
// takes at most its free slots, and exactly min(jobs, free slots) jobs are
// placed. The paper has w_h = 1; the default here is 0.9^h, since the loads
// predicted far ahead leave out the jobs that will refill the slots falling
// free in between. The second term of J is constant where every waiting job is
// placed; then J is least where the sum of w_h * max L_g(h) is, which Evaluate
// reports beside it as Cost.Peak.
//
// Read instance.go for the problem and its objective, then solver.go for the
// stages: seed.go, descent.go, swap.go, lift.go. The evaluation of the paper is
// internal/sim/barrier's.
package bfio
