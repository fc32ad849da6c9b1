package provision

// Network is the network of a region's machines, from regions[].network and regions[].subnets of
// service.yaml. The zero Network is the cloud's default network.
type Network struct {
	// Name identifies the network in its cloud: the id of a VPC in AWS, the name of a network in Google
	// Cloud.
	Name string `json:"name"`
	// Subnets are the ids (AWS) or names (Google) of the subnets to use. AWS: one per availability zone.
	// Google: one, or none for the subnet that the network creates in each region.
	Subnets []string `json:"subnets,omitempty"`
}
