// Package telemetry holds what a running service says about itself: the
// snapshot that `skyserve top` draws, the per-minute history that forecasts are
// made from, and the client of the admin API that both come through.
package telemetry
