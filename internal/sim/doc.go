// Package sim runs a whole service in virtual time: clients in several regions
// (each asking on when it was answered, or sessions and traces that come when
// they come), the production balancer (lbd/core) with any policy, and one
// model engine (internal/sim/engine) a replica, joined by round trips. It has no clock,
// no goroutine and no global randomness: the same scenario, setup and seed give
// the same result, byte for byte.
//
// The balancers are told exactly what the proxy tells them: arrivals with the
// hashes of the prompt, first tokens, ends with the hashes of prompt and answer,
// cancellations, bounces, a report of every replica and a heartbeat of every
// peer, each as old as the wire makes it, the tokens that came, and ticks. So
// what wins here is the code that serves.
//
// A prompt is a sequence of the engine's tokens: the contents of its messages,
// one after the other, without what a chat template would put between them, as
// the lengths of the workloads are meant. A balancer sees four bytes
// of each token, so that matches and hits speak of the same tokens.
//
// What goes wrong is part of a scenario: replicas, balancers and links that fail
// and come back, slow replicas, probes that are lost or late. The laws hold all
// the same.
//
// Read scenario.go first (what can be said; validate.go, what cannot), then
// world.go (what happens when), client.go and arrivals.go (who asks), node.go and
// replica.go (who serves), fault.go and failing.go (what goes wrong), figures.go
// (what is measured) and audit.go (the laws that every run is held to at its end).
// scenarios.go and shapes_*.go are what ships, claim.go what papers say of it,
// settings.go, file.go and yaml.go how people change it. fleet.go and fleet_*.go are
// services of several models whose replicas come and go.
package sim
