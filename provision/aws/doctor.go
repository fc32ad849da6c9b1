package aws

import (
	"context"
	"fmt"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	ec2types "github.com/aws/aws-sdk-go-v2/service/ec2/types"
	"github.com/aws/aws-sdk-go-v2/service/iam"
	"github.com/aws/aws-sdk-go-v2/service/sts"

	"skyserve/internal/printable"
	"skyserve/internal/service"
	"skyserve/provision"
)

// maxSkew is the maximum difference between this machine's clock and AWS's. AWS rejects signatures whose
// time differs by five minutes.
const maxSkew = 4 * time.Minute

// Doctor checks the caller, the clock, and in each region the network and the permission to launch
// machines. It changes nothing: EC2 calls that would create something are dry runs.
func (p *Provider) Doctor(ctx context.Context) []provision.CheckResult {
	findings := []provision.CheckResult{p.checkCaller(ctx)}
	findings = append(findings, p.checkClock()...)
	if !findings[0].OK {
		return findings // all other checks would fail for the same reason
	}
	findings = append(findings, p.checkList(ctx))
	for _, name := range p.names {
		findings = append(findings, p.regions[name].doctor(ctx)...)
	}
	return findings
}

// failedFinding returns the finding of a failed check.
func failedFinding(where, what string, err error) provision.CheckResult {
	f := provision.CheckResult{Where: where, Message: fmt.Sprintf("%s: %v", what, plainError(err))}
	if e := credentialsError(err); e != nil {
		f.Hint, f.Message = e.Hint, fmt.Sprintf("%s: %v", what, e.Err)
	}
	return f
}

func (p *Provider) checkCaller(ctx context.Context) provision.CheckResult {
	who, err := p.sts.GetCallerIdentity(ctx, &sts.GetCallerIdentityInput{})
	if err != nil {
		return failedFinding(service.CloudAWS, "credentials", err)
	}
	return provision.CheckResult{Where: service.CloudAWS, OK: true, Message: "credentials: " + aws.ToString(who.Arn)}
}

// checkClock compares the clocks; no finding before the first response of AWS.
func (p *Provider) checkClock() []provision.CheckResult {
	ahead, known := p.clock.aheadBy()
	if !known {
		return nil
	}
	f := provision.CheckResult{Where: service.CloudAWS, OK: ahead.Abs() < maxSkew, Message: provision.DescribeClock(ahead, "AWS")}
	if !f.OK {
		f.Hint = "correct this machine's clock: AWS rejects requests whose time differs by five minutes"
	}
	return []provision.CheckResult{f}
}

func (p *Provider) checkList(ctx context.Context) provision.CheckResult {
	const what = "listing IAM roles"
	if _, err := p.iam.ListRoles(ctx, &iam.ListRolesInput{PathPrefix: aws.String(iamPath(""))}); err != nil {
		return failedFinding(service.CloudAWS, what, err)
	}
	return provision.CheckResult{Where: service.CloudAWS, OK: true, Message: what}
}

// doctor checks one region.
func (r *region) doctor(ctx context.Context) []provision.CheckResult {
	where := string(r.regionID())
	n, err := r.network(ctx)
	if err != nil {
		return []provision.CheckResult{failedFinding(where, "network", err)}
	}
	findings := []provision.CheckResult{{Where: where, OK: true, Message: fmt.Sprintf("network: %s with subnets in %s", n.vpc, printable.Count(len(n.subnets), "availability zone"))}}
	return append(findings, r.checkLaunch(ctx, n), r.checkFirewall(ctx, n))
}

// checkLaunch checks with a dry run whether a small machine could be launched.
func (r *region) checkLaunch(ctx context.Context, n *network) provision.CheckResult {
	tags := ec2Tags(map[string]string{tagService: "doctor"})
	_, err := r.ec2.RunInstances(ctx, &ec2.RunInstancesInput{
		DryRun: aws.Bool(true), MinCount: aws.Int32(1), MaxCount: aws.Int32(1), ImageId: aws.String(imagesPlain[0]), InstanceType: ec2types.InstanceTypeC7iLarge,
		SubnetId:          aws.String(n.firstSubnet()),
		TagSpecifications: []ec2types.TagSpecification{{ResourceType: ec2types.ResourceTypeInstance, Tags: tags}},
	})
	return r.dryRunFinding("dry run of launching a machine", err)
}

// checkFirewall checks with a dry run whether a security group could be created.
func (r *region) checkFirewall(ctx context.Context, n *network) provision.CheckResult {
	_, err := r.ec2.CreateSecurityGroup(ctx, &ec2.CreateSecurityGroupInput{
		DryRun: aws.Bool(true), GroupName: aws.String("skyserve-doctor"), Description: aws.String("dry run"), VpcId: aws.String(n.vpc),
	})
	return r.dryRunFinding("dry run of creating a security group", err)
}

// dryRunFinding converts the result of a dry run.
func (r *region) dryRunFinding(what string, err error) provision.CheckResult {
	if codeOf(err) == codeDryRunSucceeded {
		return provision.CheckResult{Where: string(r.regionID()), OK: true, Message: what}
	}
	return failedFinding(string(r.regionID()), what, err)
}
