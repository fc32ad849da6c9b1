// Package lbd assembles one balancer process: the runtime that serves traffic (lbd/proxy), the probes
// of its replicas (lbd/probe), the communication with its peers (lbd/peer), the admin API (lbd/admin)
// and the data written to the store. It makes no decisions about requests; lbd/core does.
//
// Read run.go first (a balancer's life), then check.go (configuration errors that are detected before
// listening), fleet.go (its replicas) and history.go (the store).
package lbd
