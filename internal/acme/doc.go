// Package acme obtains and renews the certificate of a service's public name from an ACME
// (RFC 8555) authority, and answers the authority's challenges. The protocol, its retries
// and its rate limits are implemented by github.com/caddyserver/certmagic.
//
// All balancers of a service are one cluster. They share the account, the certificate with
// its key and open challenges, encrypted, in the service's store. The balancer that holds a
// lease obtains and renews the certificate. Every balancer answers challenges, since
// validation may reach any of them, and keeps a copy of the certificate in a file, which it
// uses while the store is unreachable. A balancer without a store shares nothing and keeps
// everything in its directory.
//
// Read manager.go first. storage.go is certmagic's storage in the store, challenge.go
// answers challenges.
package acme
