// Package plan decides how many replicas of each model run on each GPU in each
// region for the next hour: SageServe's integer programme (section 5 of the
// paper), its exact solver, and the proposal that people read. It is pure: no
// clock, no I/O, random numbers only from streams of a stated seed; effort is
// bounded by counted work.
//
// Read problem.go and extras.go first (the programme), verify.go (what keeps it),
// then rules.go (its rows as the search sees them) and solve.go (the order
// of attack), block.go (one model in one region), model.go and search.go (one
// model over its regions). couple.go says how rows over several models, and
// cover.go how other rows of coverage, are priced; ascent.go, bundle.go and refine.go
// raise the bound, ring.go bounds one model among others and region.go one region
// (knapsack.go), anneal.go finds counts, which exchange.go improves by models and
// renew.go by regions; large.go is their order. exact.go branches where a problem is
// small and conflict.go names what cannot be met. proposal.go and reason.go are the
// answer in words, html.go a page of it. backtest.go follows plans over a past, and
// reserve.go compares commitments.
// targets.go plans an hour; strategy.go and strategy_*.go decide between two plans.
package plan
