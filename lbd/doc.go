// Package lbd assembles one balancer process: the runtime that serves traffic (lbd/proxy), the probes
// of its replicas (lbd/probe), the communication with its peers (lbd/peer), the admin API (lbd/admin)
// and the data written to the store. Decisions about requests are made in lbd/core.
//
// Read run.go first (start to shutdown), then check.go (configuration errors that are detected before
// listening), fleet.go (the replicas) and history.go (the store).
package lbd
