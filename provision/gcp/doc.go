// Package gcp creates the objects of a service in Google Cloud with Compute Engine's API: machines,
// firewall rules, and the service accounts of machines.
//
// The observed state is read from the cloud alone. A machine carries its note, which contains
// everything that List needs, in a metadata entry, plus labels for people and bills. A firewall rule
// has no labels and carries the note in its description. Every name is derived from the object's
// configuration, so that the cloud itself rejects a duplicate.
//
// Networks are global in Google Cloud. A firewall is up to three rules of one network: the ports open
// to the world, the ports open to balancers, and a last rule that denies all other traffic, which the
// default network would admit. Rules match network tags, so a rule for balancers matches balancers of
// the service on the same network, in every region. Balancers of other clouds are outside: they reach
// replicas here through the balancers here.
//
// Machines run as service accounts that an operator created; this package creates none, because the
// permissions of an account are set in the project's IAM policy, which belongs to the operator.
// Balancers run as an account of their service, with only the scopes of Compute Engine and of reading
// prices; replicas run without an account unless one is configured. accounts.go prints the commands
// that create the account of balancers, with the permissions that a controller needs
// (balancerPermissions) under a condition on names: machine names start with their kind and service, so
// that the account can create, change and delete replicas of its service only. The kind of a machine
// follows from its name rather than its note, which whoever creates it can write.
//
// Read gcp.go first, then instance.go and firewall.go. errors.go classifies refusals of a launch,
// denied.go those that concern the caller.
package gcp
