// Package dns publishes the DNS name of a service. The name resolves to the balancers of the nearest healthy
// region of each client.
//
// There are two implementations. Route53 manages the name in a hosted zone of Amazon Route 53, which serves
// DNS and checks the balancers. Server is an embedded name server with the same rules, for services that run
// on the operator's own machines.
//
// For Route53, read tree.go first (the record sets of a name), then route53.go (the changes to a hosted
// zone). For the server, read choose.go (the selection of records for a client), then server.go. place.go
// contains the locations of regions.
package dns
