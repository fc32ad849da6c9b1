// Package acme obtains the certificate of a service's public name from an authority that
// speaks ACME (RFC 8555), renews it, and answers the authority's challenges. The protocol,
// its retries and its rate limits are github.com/caddyserver/certmagic's.
//
// All balancers of a service are one cluster. What they share (the account, the
// certificate with its key, challenges that are open) is in the service's store, encrypted.
// One balancer at a time, by a lease, obtains and renews; every one answers challenges,
// since validation may reach any of them, takes up what was obtained, and keeps it in a
// file of its own, with which it serves while the store is away. A balancer without a
// store shares with nobody and keeps everything in its directory.
//
// Read manager.go first. storage.go is what certmagic keeps in the store, challenge.go how
// challenges are answered.
package acme
