// Package health turns what a balancer observes into alerts: failing and slow replicas, unreachable balancers,
// rejected, late and long queued requests, full KV memory, plans that are not carried out. The thresholds and
// their reasons are the constants of rules.go and slow.go; docs/alerts.md lists the conditions. The caller passes
// the observations with their time; nothing here reads a clock.
//
// Other alerts of docs/alerts.md, such as those about the store, launches and identity certificates, are made in
// lbd and internal/controller (search for the constants telemetry.Alert...).
package health
