// Package policy contains the load balancing policies. A Policy receives facts (the request, and
// for every candidate its load, its prefix match and the age of these figures) and returns a choice
// with its reason. The package has no sockets, queues or clock, so that the balancer and the
// simulator run the same code.
//
// The replicas of this balancer are SkyLB's first layer of candidates, its peers the second. Most policies choose in one
// layer: among the replicas while any is available, else among the peers.
//
// Read policy.go first, and pool.go for policies that decide for many requests at once. Every
// policy is in one small file. SkyLB, SageServe and BF-IO are papers; README.md lists them.
package policy
