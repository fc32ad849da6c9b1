package service

import "fmt"

// google checks what all regions of Google Cloud have in common. Networks are global
// there, and balancers reach the replicas of each region inside of theirs.
func (c *checker) google() {
	first := -1
	for i, r := range c.spec.Regions {
		at := path("regions").index(i)
		switch {
		case r.Name.Cloud() != CloudGCP || !c.fine(at, at.key("network")):
		case first < 0:
			first = i
		case r.Network != c.spec.Regions[first].Network:
			c.oneNetwork(at, c.spec.Regions[first])
		}
	}
	accounts := c.spec.GCP
	if p := path("gcp").key("replica_account"); accounts.ReplicaAccount != "" && accounts.ReplicaAccount == accounts.BalancerAccount && c.fine("gcp", p) {
		c.problem(p, "must be another account than balancer_account: replicas could launch and end machines with it")
	}
	if p := path("gcp"); c.at[p] != nil && first < 0 && c.spec.GCP != (GCPSpec{}) {
		c.failPath(p, Error{Problem: "belongs to services with a region of Google Cloud", Suggestion: "remove it"})
	}
}

// oneNetwork refuses a region at Google whose network is not that of another.
func (c *checker) oneNetwork(at path, other RegionSpec) {
	network := "must be left out"
	if other.Network != "" {
		network = "must be " + other.Network
	}
	problem := fmt.Sprintf("%s, as for %s: balancers reach the replicas of all regions at Google inside one network", network, other.Name)
	if key := at.key("network"); c.at[key] != nil {
		c.problem(key, "%s", problem)
		return
	}
	c.failPath(at, Error{Problem: "network " + problem})
}
