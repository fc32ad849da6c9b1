// Package health turns what a balancer observes into alerts: failing and slow replicas, unreachable balancers,
// rejected and late requests, full queues and KV memory, plans that are not carried out. The thresholds and
// their reasons are in the table of docs/alerts.md. Observations come from the shell; nothing here reads a clock.
package health
