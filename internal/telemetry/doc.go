// Package telemetry defines the data that a running service reports: the snapshot that
// `skyserve top` draws, the per-minute history that forecasts use, and the client of the
// admin API that returns both.
package telemetry
