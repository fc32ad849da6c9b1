package provision

// Network is where the machines of a region stand, as a service.yaml says it: regions[].network
// and regions[].subnets. The zero Network is the cloud's default one.
type Network struct {
	// Name is what the cloud calls it: the id of a VPC at AWS, the name of a network at
	// Google.
	Name string `json:"name"`
	// Subnets are the ids or names of its subnets to use: at AWS one a zone, at Google one
	// or none, which is then the region's.
	Subnets []string `json:"subnets,omitempty"`
}
