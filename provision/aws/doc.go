// Package aws creates the machines of a service in Amazon EC2, and their prerequisites: for each role
// of machine (balancer, replica) a security group per region, and an IAM role with its instance profile
// for all regions.
//
// The observed state is read from tags, in every region of the provider. Names of groups, roles and
// profiles contain the service and the role, but not the owner, so that two owners of one service name
// collide before either has created a machine. A machine is launched with a client token that is
// derived from its whole configuration except its price, and from an attempt number that increases only
// when the machine of the previous attempt has ended: a repeated launch, by any process, creates
// nothing twice. Every object gets its tags in the call that creates it.
//
// Read aws.go first, then tags.go, then machine.go.
package aws
