// Package aws creates the machines of a service in Amazon EC2, and their prerequisites: for each role
// of machine (balancer, replica) a security group per region, and an IAM role with its instance profile
// for all regions.
//
// The observed state is read from tags, in every region of the provider. Every object gets its tags in
// the call that creates it. Names of security groups, IAM roles and instance profiles contain the service
// and the role, but not the owner. So two owners of one service name collide before either has created a
// machine.
//
// A machine is launched with a client token. The token is derived from the machine's whole configuration
// except its price, and from an attempt number. The attempt number increases only when the machine of
// the previous attempt has ended. So a repeated launch, by any process, creates nothing twice.
//
// Read aws.go first, then tags.go, then machine.go.
package aws
