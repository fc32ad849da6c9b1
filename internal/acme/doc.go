// Package acme obtains and renews the certificate of a service's DNS name from an ACME
// (RFC 8555) certificate authority, and solves the authority's challenges.
// github.com/caddyserver/certmagic implements the protocol, its retries and its rate limits.
//
// All balancers of a service are one cluster. They share the ACME account, the certificate
// with its key, and open challenges, encrypted, in the service's store. The balancer that
// holds a lease obtains and renews the certificate. Every balancer solves challenges, since
// the authority may connect to any of them. Every balancer also stores the certificate in a
// file, which it uses while the store is unavailable. A balancer without a store shares
// nothing: its directory contains everything.
//
// Read manager.go first, then challenge.go (challenges), storage.go (certmagic's storage in
// the store), closing.go (its end) and log.go (certmagic's logs).
package acme
