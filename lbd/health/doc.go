// Package health turns what a balancer observes into alerts about replicas, other balancers, public certificates,
// clients' requests, plans and forecasts. The thresholds and their reasons are the constants of rules.go and slow.go;
// docs/alerts.md lists the conditions. The caller passes the observations with their time; nothing here reads a clock.
//
// Other alerts of docs/alerts.md, such as those about the store, launches and identity certificates, are made in
// lbd and internal/controller (search for the constants telemetry.Alert...).
package health
