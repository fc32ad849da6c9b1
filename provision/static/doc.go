// Package static knows the machines that an operator already has: the endpoints
// of a static region are replicas by URL. Nothing is provisioned for them; they
// are attached to a balancer that runs on the operator's machine and go on
// running when the service is taken down.
package static
