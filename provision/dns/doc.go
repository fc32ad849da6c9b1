// Package dns gives a service its public name: the name resolves to the balancer
// that is best for whoever asks.
//
// Route53 keeps the name in a hosted zone of Amazon Route 53, which answers and
// checks the balancers itself. Server answers it from this machine, for services
// that run here or on machines that are already there, by the same rules.
//
// Of Route53, read tree.go first (which record sets a name is made of, and why),
// then route53.go (how a zone becomes that). Of the server, choose.go (which
// records a client is given, and pure), then server.go. place.go knows where
// regions are.
package dns
