// Package lbd puts one balancer process together: the runtime that carries
// traffic (lbd/proxy), the probes of its replicas (lbd/probe), the talk with
// its peers (lbd/peer), the admin API (lbd/admin) and what it writes to the
// store. It decides nothing about requests; lbd/core does.
//
// Read run.go first (a balancer's life), then check.go (what is refused before
// anything listens), fleet.go (its replicas) and history.go (the store).
package lbd
