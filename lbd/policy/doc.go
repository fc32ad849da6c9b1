// Package policy contains the load balancing policies. A Policy receives facts (the request, and
// for every candidate its load, its prefix match and the age of these figures) and returns a choice
// with its reason. The package has no sockets, queues or clock, so that the balancer and the
// simulator run the same code.
//
// Candidates are in two layers, as in the paper SkyLB (arXiv 2505.24095): the replicas of this
// balancer, and its peers, which are the other balancers of the service. Most policies
// choose in one layer: among the replicas while any is available, else among the peers.
//
// Read policy.go first, and pool.go for policies that decide for many requests at once. Every
// policy is in a file of its own. Its comment names the paper or project that it comes from, if any.
// A test's comment that begins with "Complaint:" describes a fault; the test fails if the fault occurs.
package policy
