package aws

import (
	"context"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	ec2types "github.com/aws/aws-sdk-go-v2/service/ec2/types"
	"github.com/aws/aws-sdk-go-v2/service/servicequotas"
	quotatypes "github.com/aws/aws-sdk-go-v2/service/servicequotas/types"

	"skyserve/internal/service"
	"skyserve/provision"
)

// quota is a limit of EC2 on the vCPUs of a family of instance types.
type quota struct {
	code, name string
	types      []string // patterns of the types that count
	spot       bool
}

// limits are those that the machines of a service count against.
var limits = []quota{
	{"L-DB2E81BA", "G and VT instances on demand", []string{"g[0-9]*", "gr[0-9]*", "vt[0-9]*"}, false},
	{"L-3819A6DF", "G and VT instances as spot", []string{"g[0-9]*", "gr[0-9]*", "vt[0-9]*"}, true},
	{"L-417A185B", "P instances on demand", []string{"p[0-9]*"}, false},
	{"L-C4BD4855", "P5 instances as spot", []string{"p5*"}, true},
	{"L-1216C47A", "standard instances on demand", standard, false},
	{"L-34B43A08", "standard instances as spot", standard, true},
}

// standard are the types that EC2 calls so: A, C, D, H, I, M, R, T and Z.
var standard = []string{"[acdhimrtz][0-9]*", "im[0-9]*", "is[0-9]*"}

// Quotas is how many vCPUs of each family the account may have in a region, and has,
// those of other services and other tools included. Beside an error are those that
// could be read.
func (p *Provider) Quotas(ctx context.Context, name service.Region) ([]provision.Quota, error) {
	r, err := p.region(name)
	if err != nil {
		return nil, err
	}
	all, err := r.allQuotas(ctx)
	return all, explain(fmt.Sprintf("asking for the quotas of %s", name), err)
}

func (r *region) allQuotas(ctx context.Context) ([]provision.Quota, error) {
	running, err := r.instances(ctx, filter("instance-state-name", "pending", "running"))
	if err != nil {
		return nil, err
	}
	var all []provision.Quota
	var unknown []string // codes that this endpoint does not have
	var why error
	for _, q := range limits {
		limit, err := r.limit(ctx, q.code)
		if codeOf(err) == "NoSuchResourceException" {
			unknown, why = append(unknown, q.code), plain(err)
			continue
		}
		if err != nil {
			return all, fmt.Errorf("%s: %w", q.code, err)
		}
		all = append(all, provision.Quota{Region: r.place(), Name: q.name, Code: q.code, Unit: "vcpus", Limit: limit, Used: q.used(running)})
	}
	if len(unknown) > 0 {
		return all, fmt.Errorf("%s: %w", strings.Join(unknown, ", "), why)
	}
	return all, nil
}

// limit is what a quota allows: what the account was granted, else what every account has.
func (r *region) limit(ctx context.Context, code string) (float64, error) {
	own, err := r.quotas.GetServiceQuota(ctx, &servicequotas.GetServiceQuotaInput{ServiceCode: aws.String("ec2"), QuotaCode: aws.String(code)})
	if err == nil {
		return valueOf(own.Quota), nil
	}
	if codeOf(err) != "NoSuchResourceException" {
		return 0, err
	}
	usual, err := r.quotas.GetAWSDefaultServiceQuota(ctx, &servicequotas.GetAWSDefaultServiceQuotaInput{ServiceCode: aws.String("ec2"), QuotaCode: aws.String(code)})
	if err != nil {
		return 0, err
	}
	return valueOf(usual.Quota), nil
}

func valueOf(q *quotatypes.ServiceQuota) float64 {
	if q == nil {
		return 0
	}
	return aws.ToFloat64(q.Value)
}

// used is how many vCPUs of instances count against a quota.
func (q quota) used(running []ec2types.Instance) float64 {
	sum := 0.0
	for _, i := range running {
		if spot := i.InstanceLifecycle == ec2types.InstanceLifecycleTypeSpot; spot == q.spot && q.covers(string(i.InstanceType)) {
			sum += vcpus(i)
		}
	}
	return sum
}

// covers says whether an instance type counts against the quota.
func (q quota) covers(instanceType string) bool {
	return slices.ContainsFunc(q.types, func(pattern string) bool {
		ok, err := path.Match(pattern, instanceType)
		return ok && err == nil
	})
}

// vcpus is how many vCPUs an instance has.
func vcpus(i ec2types.Instance) float64 {
	if i.CpuOptions == nil {
		return 0
	}
	return float64(aws.ToInt32(i.CpuOptions.CoreCount) * aws.ToInt32(i.CpuOptions.ThreadsPerCore))
}
