// Package static lists replicas on machines that an operator already has. The endpoints of a static region
// in service.yaml are the URLs of these replicas. Nothing is provisioned for them. They are attached to a
// balancer on the operator's machine, and continue to run after `skyserve down`.
package static
