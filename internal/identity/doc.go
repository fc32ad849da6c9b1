// Package identity authenticates the parties of a service. It contains the service's own
// certificate authority (CA), the certificates that the CA signs, and TLS configurations that
// verify the role in a certificate. They ignore host names and addresses, which clouds reuse.
//
// The authority's key stays on the machine that created it. Each certificate identifies one
// Name: an operator, a controller, a balancer or a replica of one service. A controller may
// have a delegated authority for certificates of replicas and balancers only. A name
// constraint (RFC 5280, section 4.2.1.10) limits it, which every verifier enforces.
//
// Read name.go first, then authority.go and tls.go. pin.go authenticates a machine without a
// certificate, files.go stores keys and certificates, controller.go and operators.go manage
// those of controllers and operators, invite.go adds operators, and revoke.go contains the
// revocation list.
package identity
