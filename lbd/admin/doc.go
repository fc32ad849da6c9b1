// Package admin serves a balancer's admin API: snapshots for top, changes by the controller and
// operators, metrics, decisions, history and profiles. It listens on its own address, on loopback
// or protected by a token or certificates.
//
// Read server.go first (routes and authorization), then snapshot.go and workers.go.
package admin
