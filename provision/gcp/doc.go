// Package gcp creates the objects of a service in Google Cloud with Compute Engine's API: machines,
// firewall rules, and the service accounts of machines.
//
// The observed state is read from the cloud only. Every object has a note, which contains all fields that
// List returns. The note of a machine is a metadata entry. A machine also has labels, for people and
// bills. A firewall rule has no labels; its note is its description. Every name is derived from the
// object's configuration, so that the cloud itself rejects a duplicate.
//
// Networks are global in Google Cloud. A firewall consists of up to three rules of one network: the ports
// open to any address, the ports open to balancers, and a last rule that denies all other traffic, which
// the default network would admit. Rules match network tags. So a rule for balancers matches the balancers
// of the service on the same network, in every region. It does not match balancers in other clouds: their
// requests reach replicas in Google Cloud through the balancers there.
//
// Machines use service accounts that an operator created. This package creates none, because permissions
// of service accounts are set in the project's IAM policy, which the operator manages. Balancers use a
// service account of their service, with only the scopes for Compute Engine, for reading prices and for
// downloading the binary. Replicas have one if it is configured, or if machines download the binary from the
// service's bucket. The IAM policy of that bucket is the only one that this package changes.
//
// accounts.go generates the commands that create the service accounts, the balancers' with the permissions of a
// controller (balancerPermissions), under a condition on names. Machine names start with their kind and
// service, so the service account can create, change and delete only replicas of its service, and its balancers
// where controllers replace them (Config.ReplaceBalancers). The kind of a machine is read from its name. Its note is not trusted for that, because the machine's creator writes it.
//
// Read gcp.go first, then instance.go, firewall.go and binary.go. errors.go classifies error responses about
// capacity, denied.go those about credentials and permissions.
package gcp
