// Package identity authenticates the parties of a service: the service's own certificate
// authority, the certificates that it signs, and TLS that verifies the role in a
// certificate and never host names or addresses, which clouds reuse.
//
// The authority's key stays on the machine that created it. Each certificate identifies one
// Name: an operator, a controller, a balancer or a replica of one service. A controller may
// have a delegated authority, limited to certificates of replicas and balancers by a name
// constraint (RFC 5280, section 4.2.1.10), which any verifier enforces.
//
// Read name.go first, then authority.go and tls.go; pin.go authenticates a machine that has
// no certificate yet, and files.go stores keys and certificates.
package identity
