package catalogue

import (
	"path"
	"slices"
)

// EC2Quota is an EC2 limit on the vCPUs of some families of instance types.
type EC2Quota struct {
	// Code is the quota code of AWS. Name is a description.
	Code, Name string
	// Types are patterns of the instance types that count against the quota. Spot is true for a quota
	// of spot instances, false for one of on-demand instances.
	Types []string
	Spot  bool
}

// standard are EC2's standard instance families: A, C, D, H, I, M, R, T and Z.
var standard = []string{"[acdhimrtz][0-9]*", "im[0-9]*", "is[0-9]*"}

var ec2Quotas = []EC2Quota{
	{"L-DB2E81BA", "G and VT instances on demand", []string{"g[0-9]*", "gr[0-9]*", "vt[0-9]*"}, false},
	{"L-3819A6DF", "G and VT instances as spot", []string{"g[0-9]*", "gr[0-9]*", "vt[0-9]*"}, true},
	{"L-417A185B", "P instances on demand", []string{"p[0-9]*"}, false},
	{"L-7212CCBC", "P4, P3 and P2 instances as spot", []string{"p[234]*"}, true},
	{"L-C4BD4855", "P5 instances as spot", []string{"p5*"}, true},
	{"L-1216C47A", "standard instances on demand", standard, false},
	{"L-34B43A08", "standard instances as spot", standard, true},
}

// EC2Quotas returns the quotas that machines of services count against.
func EC2Quotas() []EC2Quota { return slices.Clone(ec2Quotas) }

// EC2QuotaOf returns the quota that an instance type counts against; false if the table has none.
func EC2QuotaOf(instanceType string, spot bool) (EC2Quota, bool) {
	i := slices.IndexFunc(ec2Quotas, func(q EC2Quota) bool { return q.Spot == spot && q.Covers(instanceType) })
	if i < 0 {
		return EC2Quota{}, false
	}
	return ec2Quotas[i], true
}

// Covers reports whether an instance type counts against the quota.
func (q EC2Quota) Covers(instanceType string) bool {
	return slices.ContainsFunc(q.Types, func(pattern string) bool {
		ok, err := path.Match(pattern, instanceType)
		return ok && err == nil
	})
}
