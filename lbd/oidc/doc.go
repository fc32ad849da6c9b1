// Package oidc verifies the identity tokens of clients: JSON Web Tokens of OpenID Connect.
//
// Read verifier.go first. A Verifier has a set of signing keys for each configured issuer (keys.go), which
// a goroutine refreshes. A token is parsed (token.go), checked against the configuration of its issuer,
// and then its signature is verified. Claims map it to a tenant, tiers and limits (grant.go).
// metrics.go exports results and the age of keys.
package oidc
