// Package policy holds the ways to choose where a request goes. A Policy gets
// facts (the request, every candidate with its load, how much of the prompt it
// holds and how old each fact is) and returns a choice with its reason. It
// knows no sockets, no queues and no clock, so that the balancer and the
// simulator run the very same code.
//
// Read policy.go first, and batch.go for policies that decide for many requests at
// once; every policy is one small file beside them.
package policy
