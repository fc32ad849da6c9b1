package aws

import (
	"context"
	"fmt"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	ec2types "github.com/aws/aws-sdk-go-v2/service/ec2/types"
	"github.com/aws/aws-sdk-go-v2/service/servicequotas"
	quotatypes "github.com/aws/aws-sdk-go-v2/service/servicequotas/types"

	"skyserve/internal/catalogue"
	"skyserve/internal/service"
	"skyserve/provision"
)

// Quotas returns the AWS account's vCPU limit and use of each instance family in a region. The use includes
// machines of other services and other tools. With an error it returns the quotas that could be read.
func (p *Provider) Quotas(ctx context.Context, name service.Region) ([]provision.Quota, error) {
	r, err := p.region(name)
	if err != nil {
		return nil, err
	}
	all, err := r.listQuotas(ctx)
	return all, wrapError(fmt.Sprintf("reading the quotas of %s", name), err)
}

func (r *region) listQuotas(ctx context.Context) ([]provision.Quota, error) {
	running, err := r.listInstances(ctx, filter("instance-state-name", "pending", "running"))
	if err != nil {
		return nil, err
	}
	var all []provision.Quota
	var unsupported []string // codes of quotas that this endpoint does not support
	var cause error
	for _, q := range catalogue.EC2Quotas() {
		limit, err := r.quotaLimit(ctx, q.Code)
		if codeOf(err) == codeNoQuota {
			unsupported, cause = append(unsupported, q.Code), plainError(err)
			continue
		}
		if err != nil {
			return all, fmt.Errorf("%s: %w", q.Code, err)
		}
		all = append(all, provision.Quota{Region: r.regionID(), Name: q.Name, Code: q.Code, Unit: "vcpus", Limit: limit, Used: usedVCPUs(q, running)})
	}
	if len(unsupported) > 0 {
		return all, fmt.Errorf("%s: %w", strings.Join(unsupported, ", "), cause)
	}
	return all, nil
}

// quotaLimit returns the limit of a quota: the limit of the AWS account, else AWS's default.
func (r *region) quotaLimit(ctx context.Context, code string) (float64, error) {
	granted, err := r.quotas.GetServiceQuota(ctx, &servicequotas.GetServiceQuotaInput{ServiceCode: aws.String(quotaService), QuotaCode: aws.String(code)})
	if err == nil {
		return quotaValue(granted.Quota), nil
	}
	if codeOf(err) != codeNoQuota {
		return 0, err
	}
	byDefault, err := r.quotas.GetAWSDefaultServiceQuota(ctx, &servicequotas.GetAWSDefaultServiceQuotaInput{ServiceCode: aws.String(quotaService), QuotaCode: aws.String(code)})
	if err != nil {
		return 0, err
	}
	return quotaValue(byDefault.Quota), nil
}

func quotaValue(q *quotatypes.ServiceQuota) float64 {
	if q == nil {
		return 0
	}
	return aws.ToFloat64(q.Value)
}

// usedVCPUs returns how many vCPUs of instances count against a quota.
func usedVCPUs(q catalogue.EC2Quota, running []ec2types.Instance) float64 {
	sum := 0.0
	for _, i := range running {
		if spot := i.InstanceLifecycle == ec2types.InstanceLifecycleTypeSpot; spot == q.Spot && q.Covers(string(i.InstanceType)) {
			sum += vcpus(i)
		}
	}
	return sum
}

// vcpus returns the number of vCPUs of an instance.
func vcpus(i ec2types.Instance) float64 {
	if i.CpuOptions == nil {
		return 0
	}
	return float64(aws.ToInt32(i.CpuOptions.CoreCount) * aws.ToInt32(i.CpuOptions.ThreadsPerCore))
}
