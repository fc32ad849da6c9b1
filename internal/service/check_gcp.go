package service

import (
	"fmt"
	"slices"
)

// checkGCP validates the settings that all Google Cloud regions share. A VPC network of Google
// Cloud is global, and balancers reach the replicas of all regions inside their own network.
func (c *checker) checkGCP() {
	first := -1
	for i, r := range c.spec.Regions {
		at := path("regions").index(i)
		switch {
		case r.Name.Cloud() != CloudGCP || !c.valid(at, at.key("network")):
		case first < 0:
			first = i
		case r.Network != c.spec.Regions[first].Network:
			c.rejectNetwork(at, c.spec.Regions[first])
		}
	}
	gcp := c.spec.GCP
	if p := path("gcp").key("replica_account"); gcp.ReplicaAccount != "" && gcp.ReplicaAccount == gcp.BalancerAccount && c.valid("gcp", p) {
		c.reportProblem(p, "must differ from balancer_account: with that service account replicas could create and delete machines")
	}
	if p := path("gcp").key("spare_account"); gcp.SpareAccount != "" && (gcp.SpareAccount == gcp.BalancerAccount || gcp.SpareAccount == gcp.ReplicaAccount) && c.valid("gcp", p) {
		c.reportProblem(p, "must differ from balancer_account and replica_account: spare balancers may launch replicas and no balancers")
	}
	none := c.validRegionNames() && !slices.ContainsFunc(c.spec.Regions, func(r RegionSpec) bool { return r.Name.Cloud() == CloudGCP })
	if p := path("gcp"); c.at[p] != nil && none && c.spec.GCP != (GCPSpec{}) {
		c.reportAtPath(p, Error{Problem: "is only valid for services with a Google Cloud region", Suggestion: "remove it"})
	}
}

// rejectNetwork rejects a Google Cloud region whose network differs from another's.
func (c *checker) rejectNetwork(at path, other RegionSpec) {
	network := "must be unset"
	if other.Network != "" {
		network = "must be " + other.Network
	}
	problem := fmt.Sprintf("%s, as for %s: balancers reach the replicas of all Google Cloud regions inside one network", network, other.Name)
	if key := at.key("network"); c.at[key] != nil {
		c.reportProblem(key, "%s", problem)
		return
	}
	c.reportAtPath(at, Error{Problem: "network " + problem})
}
