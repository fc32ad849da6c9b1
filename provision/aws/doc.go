// Package aws makes the machines of a service in Amazon EC2, and what they stand
// on: for each role of machine (balancer, replica) a security group in each region,
// and an IAM role with its instance profile for all of them.
//
// What exists is read from tags, in every region that the provider was made for.
// Names of groups, roles and profiles are made of service and role, so that
// two owners of one service name meet before either has made a machine. A machine
// is launched with a client token that derives from all that it is made of, its price
// apart, and a number that goes up only when the machine of the number before has
// ended: a launch that is repeated, by whomever, makes nothing twice. Everything gets
// its tags in the call that makes it.
//
// Read aws.go first, then tags.go, then machine.go.
package aws
