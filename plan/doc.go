// Package plan decides how many replicas of each model run on each GPU in each
// region for the next hour: it forecasts a history, states SageServe's integer
// programme (section 5 of the paper), solves it, and puts the answer in words for people
// and in targets for strategies. It is pure: no
// clock, no I/O, random numbers only from streams of a stated seed; effort is
// bounded by counted work.
//
// Read review.go first: Review is the one way from a history to targets, for `skyserve
// plan`, the controller, `plan backtest` and simulated fleets alike. review_load.go is the
// forecast, review_count.go the replicas that run, review_offer.go and review_price.go the
// columns and what they cost, review_reach.go and review_egress.go the distances,
// review_targets.go the targets, review_watch.go what came of a forecast.
// backtest_review.go repeats reviews over a past, backtest.go follows them;
// reserve_review.go and reserve.go compare commitments.
//
// Of the programme read problem.go and extras.go first (the programme), verify.go (what satisfies
// it) and cover.go with rules.go (its rows of coverage as the solver has them).
// The solver is solve.go (the order of attack, and the parts that nothing couples),
// programme.go (a part as blocks, one model in one region, and the rows that couple
// them), block.go (one block solved to the last unit), ascent.go (the bound:
// Lagrangian relaxation by subgradients), anneal.go (the search for counts, over
// the options of options.go near the relaxation), and join.go with models.go (the
// exact method: whole models by dynamic programming over their blocks, then all
// models). conflict.go names what cannot be met. proposal.go and reason.go are the
// answer in words, html.go a page of it. strategy.go and strategy_*.go decide between two
// plans.
package plan
