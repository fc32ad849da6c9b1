// Package bfio decides which waiting requests start on which worker of a
// barrier-synchronised fleet: BF-IO, "Balance Future with Integer
// Optimization" (section 4 of the paper "A Universal Load Balancing Principle and Its
// Application to Large Language Model Serving").
//
// The words are the paper's. In lbd/policy, a fleet is an engine, a worker is one of its
// data-parallel ranks, and a job is a request. The paper decides once per decode step. A
// balancer does not see these steps: core.Config.PoolInterval says when it decides.
//
// All workers of such a fleet wait for the slowest one at every step. The waste of a step
// is its imbalance, equation (2) of the paper:
//
//	Imbalance = sum over g of (max over g' of L_g' - L_g) = G * max L - sum L
//
// with L_g the tokens resident on worker g. A decision approximately minimises the
// objective of the paper's integer programme (IO): the imbalance over a window of H steps,
// here with a weight per step:
//
//	J = sum over h = 0..H of w_h * (G * max over g of L_g(h) - sum over g of L_g(h))
//
// subject to (IO)'s constraints: a job is placed on at most one worker, a worker receives at most
// as many jobs as it has free slots, and exactly min(jobs, free slots) jobs are placed. The paper
// has w_h = 1. The default here is 0.9^h, because predicted loads exclude the jobs that will fill
// the slots that become free in between. If every waiting job is placed, the second term of J is
// constant. Then J is minimal where the sum of w_h * max L_g(h)
// is minimal; Evaluate reports this sum as Cost.Peak.
//
// Read instance.go for the problem and its objective, then solver.go for the stages:
// seed.go, descent.go, swap.go, lift.go. The paper's evaluation is in
// internal/sim/barrier.
package bfio
