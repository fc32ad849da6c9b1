package provision

// Network is the network of a region's machines, from regions[].network and regions[].subnets of
// service.yaml. The zero Network is the cloud's default network.
type Network struct {
	// Name is the cloud's name for it: the id of a VPC at AWS, the name of a network at Google.
	Name string `json:"name"`
	// Subnets are the ids (AWS) or names (Google) of the subnets to use. AWS: one per availability zone.
	// Google: one, or none for the subnet that the network creates in each region.
	Subnets []string `json:"subnets,omitempty"`
}
