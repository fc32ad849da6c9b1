// Package plan decides how many replicas of each model run on each GPU in each region, by default for the
// next hour. It forecasts load from a history, builds the integer program of SageServe (arXiv 2502.14617,
// section 5), solves it, and returns the result as text for people and as targets for scaling
// strategies. The package is pure: it reads no clock and does no I/O, random numbers come only from
// streams with a stated seed, and the solver's effort is limited by a number of operations, not by
// time.
//
// A review is one planning run. An endpoint is the replicas of one model in one region. An offering
// is a GPU type and count with one capacity type in one cloud; the program has an index k for each. A
// row is a linear constraint of the program.
//
// Read review.go first: it makes a plan from a history. review_load.go computes the forecast,
// review_backlog.go adds accepted batches, review_count.go counts the running replicas,
// review_offer.go, review_price.go and review_reserved.go list the offerings and their costs,
// review_reach.go the round trips, review_egress.go the cost of forwarded load. budget.go cuts a plan
// to the budget, review_targets.go returns its targets, and review_watch.go compares its forecast
// with actual load. backtest_review.go repeats reviews over a past period and backtest.go replays
// them; reserve_review.go and reserve.go compare reservations.
//
// For the integer program read problem.go and extras.go first (its statement), then verify.go
// (the conditions for a feasible solution), then cover.go and constraint_checker.go (the rows for
// load that several regions serve together, as the solver uses them).
//
// The solver: solve.go (order of the steps, and the independent subproblems), effort.go (the limit of
// its work), integer_program.go (a subproblem as blocks, each one model in one region, and the rows
// that couple them), block.go (exact search of one block), ascent.go (the lower bound: Lagrangian
// relaxation with subgradients), anneal.go (neighbourhood search over the candidates of candidates.go
// near the relaxation), and dynamic_program.go with model_choices.go (the exact method: dynamic
// programming over the blocks of each model, then over all models). redistribute.go chooses between equally cheap
// solutions, and conflict.go names the constraints that cannot be met together. write.go writes a
// problem for other solvers, and external.go reads and assesses their counts.
//
// proposal.go and reason.go describe the result in text, html.go as a page. strategy.go and
// strategy_*.go scale between two plans; tracker.go follows the load for the strategy predictive.
package plan
