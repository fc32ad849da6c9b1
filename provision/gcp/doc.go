// Package gcp makes the objects of a service in Google Cloud: machines, firewall
// rules and what the machines run as, by Compute Engine's API.
//
// What a service has is read from the cloud alone. A machine carries its note, all
// that List has to know of it, in a metadata entry, and labels for people and bills; a
// firewall rule, which has no labels, carries it in its description. Every name is
// derived from what the object is, so that the cloud itself refuses a second one of
// the same.
//
// Networks are global in Google Cloud. A firewall is up to three rules of one network:
// what the world may reach, what the balancers may reach, and a last one that keeps
// out the rest, which the default network would let in. It goes by network tags, so a
// rule for balancers holds for balancers of the service on the same network, in
// every region. Balancers of other clouds are outside: they reach replicas
// here through the balancers here.
//
// Machines run as service accounts that an operator made; none is made here, since what an
// account may do is decided in the project's policy, which belongs to the operator. Balancers run
// as an account of their service, with no scopes but those of Compute Engine and of reading
// prices; replicas run as nobody unless one is named. accounts.go prints the commands that make
// the account of balancers, with the permissions that a controller needs (balancerPermissions)
// under a condition on names: machines are named after their kind and their service, so that
// the account may make, change and end replicas of its service alone. What a machine is follows
// from its name before its note, which whoever makes it can write.
//
// Read gcp.go first, then instance.go and firewall.go. errors.go says which refusal of a
// launch means what, denied.go which are about who calls.
package gcp
