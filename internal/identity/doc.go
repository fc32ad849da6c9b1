// Package identity is who is who in a service: a certificate authority of the
// service's own, the certificates that it signs, and TLS that goes by the role that
// a certificate names and never by host names or addresses, which clouds reuse.
//
// The authority's key stays on the machine that made it. Whoever holds a
// certificate is one Name: an operator, a controller, a balancer or a replica of
// one service. A controller may hold a delegated authority, whose certificates name
// replicas and balancers only; that bound is a name constraint (RFC 5280, section
// 4.2.1.10), so any verifier keeps it.
//
// Read name.go first, then authority.go and tls.go; pin.go is how a machine that
// has no certificate yet is told from an impostor, files.go how all of it is kept.
package identity
