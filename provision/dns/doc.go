// Package dns publishes the public name of a service: the name resolves to the best balancer for each
// client.
//
// Route53 manages the name in a hosted zone of Amazon Route 53, which serves DNS and checks the
// balancers itself. Server serves it from this machine by the same rules, for services that run here or
// on machines that already exist.
//
// For Route53, read tree.go first (the record sets of a name, and why), then route53.go (how a zone is
// changed to them). For the server, read choose.go (the pure selection of records for a client), then
// server.go. place.go contains the locations of regions.
package dns
