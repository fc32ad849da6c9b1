// Package rollout brings a service up, tells how it does and takes it down: it
// joins what provision says exists with what the balancers say works.
//
// Read plan.go first (what would change), then apply.go (changing it), wait.go
// (until it works), scale.go (other replicas of a running service, as a plan or an
// operator wants them), status.go and down.go.
package rollout
