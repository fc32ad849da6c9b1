package service

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// The formats of IDs that AWS assigns. Google Cloud uses names that the user chooses.
var (
	awsVPC    = regexp.MustCompile(`^vpc-[0-9a-f]{8,32}$`)
	awsSubnet = regexp.MustCompile(`^subnet-[0-9a-f]{8,32}$`)
)

// checkNetwork validates the network of a cloud region's machines.
func (c *checker) checkNetwork(r *RegionSpec, p path) {
	if !r.Name.Rented() {
		c.rejectUnlessRented(r, p, "network", "subnets", "images")
	}
	if access := p.key("access"); r.Name.Cloud() != CloudAWS && c.at[access] != nil {
		c.reportAtPath(access, Error{Problem: fmt.Sprintf("is only valid for AWS regions, but the region is %s", r.Name)})
	}
	if !r.Name.Rented() {
		return
	}
	subnets := p.key("subnets")
	if c.at[subnets] != nil && c.at[p.key("network")] == nil {
		c.reportAtPath(subnets, Error{Problem: "requires network", Suggestion: "set the network that contains the subnets"})
	}
	if r.Name.Cloud() == CloudGCP {
		if len(r.Subnets) > 1 && c.valid(subnets) {
			c.reportAtPath(subnets, Error{Problem: "must be a single subnet on Google Cloud, where a subnet spans all zones of its region"})
		}
		return
	}
	if at := p.key("network"); r.Network != "" && c.valid(at) && !awsVPC.MatchString(r.Network) {
		c.reportProblem(at, "must be the id of a VPC such as vpc-0a1b2c3d4e5f60718")
	}
	if r.Network != "" && len(r.Subnets) == 0 && c.valid(subnets) {
		c.reportAtPath(subnets, Error{Problem: "is required with network on AWS", Suggestion: "list one subnet per availability zone, each with a route to an internet gateway"})
	}
	for i, s := range r.Subnets {
		if at := subnets.index(i); c.valid(subnets, at) && !awsSubnet.MatchString(s) {
			c.reportProblem(at, "must be the id of a subnet such as subnet-0a1b2c3d4e5f60718")
		}
	}
}

// checkWeights checks that the machines of a model can download it from its bucket.
func (c *checker) checkWeights(m *Model, p path) {
	at := p.key("weights")
	if m.Engine.Weights == "" || !c.valid(p, p.key("kind"), at) {
		return
	}
	if kind := m.Engine.Kind; kind != EngineVLLM && kind != EngineSGLang {
		c.reportProblem(at, "is only valid for kinds vllm and sglang, but the kind is %s", kind)
		return
	}
	c.checkBucket(m, p.parent(), m.Engine.Weights, at)
}

// checkBucket checks that all machines of a model, whose path is model, can download a folder of a bucket.
func (c *checker) checkBucket(m *Model, model path, folder string, at path) {
	bucketCloud, otherCloud, title := CloudAWS, CloudGCP, "AWS"
	if strings.HasPrefix(folder, "gs://") {
		bucketCloud, otherCloud, title = CloudGCP, CloudAWS, "Google Cloud"
	}
	if i := c.firstRegionWith(m, otherCloud); i >= 0 {
		c.reportAtPath(at, Error{
			Problem: fmt.Sprintf("requires machines on %s to download it, but regions[%d] is %s", title, i, c.spec.Regions[i].Name),
			Found:   c.describePath(at), Suggestion: fmt.Sprintf("set %s to {min: 0, max: 0}", model.key("regions").key(string(c.spec.Regions[i].Name))),
		})
		return
	}
	if i := c.firstRegionWith(m, CloudGCP); i >= 0 && bucketCloud == CloudGCP && c.spec.GCP.ReplicaAccount == "" && c.valid("gcp", path("gcp").key("replica_account")) {
		c.reportAtPath(at, Error{
			Problem: fmt.Sprintf("requires gcp.replica_account, because regions[%d] is %s", i, c.spec.Regions[i].Name),
			Found:   c.describePath(at), Suggestion: "set gcp.replica_account to a service account that can read the bucket",
		})
	}
}

// firstRegionWith returns the index of the first region of a cloud that may have replicas of a
// model; -1 = none.
func (c *checker) firstRegionWith(m *Model, cloud string) int {
	return slices.IndexFunc(c.spec.Regions, func(r RegionSpec) bool {
		own, named := m.Regions[r.Name]
		return r.Name.Cloud() == cloud && (!named || own.Max > 0)
	})
}
