package provision

// Network is the network of a region's machines, from regions[].network and regions[].subnets of
// service.yaml. The zero Network is the cloud's default network.
type Network struct {
	// Name is the cloud's name for it: the id of a VPC at AWS, the name of a network at Google.
	Name string `json:"name"`
	// Subnets are the ids or names of the subnets to use: at AWS one per zone; at Google one, or none
	// for the region's own subnet.
	Subnets []string `json:"subnets,omitempty"`
}
