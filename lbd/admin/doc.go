// Package admin serves a balancer's admin API: what top draws, what the
// controller and operators change, metrics, decisions, history and profiles.
// It listens on an address of its own, on loopback or behind a token.
//
// Read server.go first (routes and who may use them), then snapshot.go and
// workers.go.
package admin
