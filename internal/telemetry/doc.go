// Package telemetry defines the data that a running service reports, and the client of the admin
// API of balancers that reads them. The most important ones are Snapshot (snapshot.go), which
// `skyserve top` shows, and Point (point.go), the per-minute history that forecasts use. The
// controller writes Alerts, Review (forecast and plan) and Scaling to the store; balancers include
// them in their snapshots.
package telemetry
