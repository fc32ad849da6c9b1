// Package static describes machines that an operator already has: the endpoints of a static region are
// replicas by URL. Nothing is provisioned for them. They are attached to a balancer on the operator's
// machine, and keep running when the service is taken down.
package static
