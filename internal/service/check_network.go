package service

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// AWS names networks by ids, which it alone gives; Google by names of the user's.
var (
	awsVPC    = regexp.MustCompile(`^vpc-[0-9a-f]{8,32}$`)
	awsSubnet = regexp.MustCompile(`^subnet-[0-9a-f]{8,32}$`)
)

// network checks where the machines of a rented region are to stand.
func (c *checker) network(r *RegionSpec, p path) {
	if !r.Name.rented() {
		c.rentedOnly(r, p, "network", "subnets")
	}
	if access := p.key("access"); r.Name.Cloud() != CloudAWS && c.at[access] != nil {
		c.failPath(access, Error{Problem: fmt.Sprintf("belongs to regions of AWS only, and this is %s", r.Name)})
	}
	if !r.Name.rented() {
		return
	}
	subnets := p.key("subnets")
	if c.at[subnets] != nil && c.at[p.key("network")] == nil {
		c.failPath(subnets, Error{Problem: "needs network", Suggestion: "name the network that they are of"})
	}
	if r.Name.Cloud() == CloudGCP {
		if len(r.Subnets) > 1 && c.fine(subnets) {
			c.failPath(subnets, Error{Problem: "must be one at Google, where a subnet is in all zones of its region"})
		}
		return
	}
	if at := p.key("network"); r.Network != "" && c.fine(at) && !awsVPC.MatchString(r.Network) {
		c.problem(at, "must be the id of a VPC such as vpc-0a1b2c3d4e5f60718")
	}
	if r.Network != "" && len(r.Subnets) == 0 && c.fine(subnets) {
		c.failPath(subnets, Error{Problem: "is missing: at AWS machines stand in the subnets that are named", Suggestion: "name one with a route to an internet gateway for each zone"})
	}
	for i, s := range r.Subnets {
		if at := subnets.index(i); c.fine(subnets, at) && !awsSubnet.MatchString(s) {
			c.problem(at, "must be the id of a subnet such as subnet-0a1b2c3d4e5f60718")
		}
	}
}

// weights checks that whoever is to fetch a model from a bucket can.
func (c *checker) weights(m *Model, p path) {
	at := p.key("weights")
	if m.Engine.Weights == "" || !c.fine(p, p.key("kind"), at) {
		return
	}
	if kind := m.Engine.Kind; kind != EngineVLLM && kind != EngineSGLang {
		c.problem(at, "belongs to kinds vllm and sglang only, and the kind is %s", kind)
		return
	}
	here, there, where := CloudAWS, CloudGCP, "AWS"
	if strings.HasPrefix(m.Engine.Weights, "gs://") {
		here, there, where = CloudGCP, CloudAWS, "Google"
	}
	if i := c.holds(m, there); i >= 0 {
		c.problem(at, "is fetched with the identity of a machine at %s, and regions[%d] is %s: keep the model out of it with max: 0", where, i, c.spec.Regions[i].Name)
		return
	}
	if i := c.holds(m, CloudGCP); i >= 0 && here == CloudGCP && c.spec.GCP.ReplicaAccount == "" && c.fine("gcp", path("gcp").key("replica_account")) {
		c.failPath(at, Error{
			Problem: fmt.Sprintf("is fetched as the account of replicas, and those of regions[%d], %s, have none", i, c.spec.Regions[i].Name),
			Found:   c.foundAt(at), Suggestion: "name one that may read the bucket in gcp.replica_account",
		})
	}
}

// holds is the first region of a cloud that a model may have replicas in; -1 = none.
func (c *checker) holds(m *Model, cloud string) int {
	return slices.IndexFunc(c.spec.Regions, func(r RegionSpec) bool {
		own, named := m.Regions[r.Name]
		return r.Name.Cloud() == cloud && (!named || own.Max > 0)
	})
}
