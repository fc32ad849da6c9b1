// Package sim simulates a whole service in virtual time: clients in several regions (closed loops, or
// open loops of sessions and traces), the production balancer (lbd/core) with any policy, and one
// simulated engine (internal/sim/engine) per replica, connected by links with round-trip times. It has
// no clock, no goroutines and no global randomness: the same scenario, setup and seed yield the same
// result, byte for byte.
//
// Balancers receive the same events as from the proxy: arrivals with the hashes of the prompt, first
// tokens, ends with the hashes of prompt and response, cancellations, bounces, a report of every replica
// and a heartbeat of every peer, each with its network delay, token progress, and ticks. So
// the simulation runs the production code.
//
// A prompt is a sequence of engine tokens: the contents of its messages, one after the other, without a
// chat template, which is how workloads define lengths. A balancer receives four bytes of
// each token, so that its prefix matches and the engine's cache hits refer to the same
// tokens.
//
// A leg is a request's time at one balancer. A forwarded request has two: one at the balancer that forwarded it, and one
// at the peer that serves it.
//
// Faults are part of a scenario: replicas, balancers and links that fail and recover, slow replicas,
// probes that are lost or delayed. The invariants hold with faults too.
//
// Read scenario.go first (scenarios; validate.go for their limits), then world.go (the event loop),
// client.go and arrivals.go (load), node.go and replica.go (balancers and replicas), fault.go and
// failing.go (fault injection), figures.go (measurements) and audit.go (the invariants that are checked after
// every run). scenarios.go and shapes_*.go are the built-in scenarios, claim.go the papers' claims
// about them, settings.go, file.go and yaml.go the user's changes to them. fleet.go and fleet_*.go
// simulate services of several models with scaling.
package sim
