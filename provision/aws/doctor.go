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

	"skyserve/internal/service"
	"skyserve/provision"
)

// maxSkew is the maximum difference between this machine's clock and AWS's, which refuses signatures
// that are five minutes off.
const maxSkew = 4 * time.Minute

// Doctor checks whether AWS can be used: the caller, the clock, and in each region the network and the
// permission to launch. It changes nothing: EC2 calls are dry runs.
func (p *Provider) Doctor(ctx context.Context) []provision.Finding {
	findings := []provision.Finding{p.caller(ctx)}
	findings = append(findings, p.clockFinding()...)
	if !findings[0].OK {
		return findings // all other checks would fail for the same reason
	}
	findings = append(findings, p.mayList(ctx))
	for _, name := range p.names {
		findings = append(findings, p.regions[name].doctor(ctx)...)
	}
	return findings
}

// failed returns the finding of an error.
func failed(where, what string, err error) provision.Finding {
	f := provision.Finding{Where: where, What: fmt.Sprintf("%s: %v", what, plain(err))}
	if e := credentialsError(err); e != nil {
		f.Hint = e.Hint
	}
	return f
}

func (p *Provider) caller(ctx context.Context) provision.Finding {
	who, err := p.sts.GetCallerIdentity(ctx, &sts.GetCallerIdentityInput{})
	if err != nil {
		return failed(service.CloudAWS, "credentials", err)
	}
	return provision.Finding{Where: service.CloudAWS, OK: true, What: "credentials: " + aws.ToString(who.Arn)}
}

// clockFinding compares the clocks; none before AWS has answered.
func (p *Provider) clockFinding() []provision.Finding {
	ahead, known := p.clock.ahead()
	if !known {
		return nil
	}
	f := provision.Finding{Where: service.CloudAWS, OK: ahead.Abs() < maxSkew, What: fmt.Sprintf("clock: %s ahead of AWS", ahead)}
	if !f.OK {
		f.Hint = "set this machine's clock: AWS refuses signatures that are five minutes off"
	}
	return []provision.Finding{f}
}

func (p *Provider) mayList(ctx context.Context) provision.Finding {
	const what = "listing identities"
	if _, err := p.iam.ListRoles(ctx, &iam.ListRolesInput{PathPrefix: aws.String(iamPath(""))}); err != nil {
		return failed(service.CloudAWS, what, err)
	}
	return provision.Finding{Where: service.CloudAWS, OK: true, What: what}
}

// doctor checks one region.
func (r *region) doctor(ctx context.Context) []provision.Finding {
	where := string(r.place())
	n, err := r.network(ctx)
	if err != nil {
		return []provision.Finding{failed(where, "network", err)}
	}
	findings := []provision.Finding{{Where: where, OK: true, What: fmt.Sprintf("network: %s with subnets in %d zones", n.vpc, len(n.subnets))}}
	return append(findings, r.mayLaunch(ctx, n), r.mayFirewall(ctx, n))
}

// mayLaunch checks with a dry run whether a small machine could be launched.
func (r *region) mayLaunch(ctx context.Context, n *network) provision.Finding {
	tags := ec2Tags(map[string]string{tagService: "doctor"})
	_, err := r.ec2.RunInstances(ctx, &ec2.RunInstancesInput{
		DryRun: aws.Bool(true), MinCount: aws.Int32(1), MaxCount: aws.Int32(1), ImageId: aws.String(imagePlain), InstanceType: ec2types.InstanceTypeC7iLarge,
		SubnetId:          aws.String(n.first()),
		TagSpecifications: []ec2types.TagSpecification{{ResourceType: ec2types.ResourceTypeInstance, Tags: tags}},
	})
	return r.dryRun("launching machines", err)
}

// mayFirewall checks with a dry run whether a security group could be created.
func (r *region) mayFirewall(ctx context.Context, n *network) provision.Finding {
	_, err := r.ec2.CreateSecurityGroup(ctx, &ec2.CreateSecurityGroupInput{
		DryRun: aws.Bool(true), GroupName: aws.String("skyserve-doctor"), Description: aws.String("never made"), VpcId: aws.String(n.vpc),
	})
	return r.dryRun("creating firewalls", err)
}

// dryRun converts the result of a dry run.
func (r *region) dryRun(what string, err error) provision.Finding {
	if codeOf(err) == "DryRunOperation" {
		return provision.Finding{Where: string(r.place()), OK: true, What: what}
	}
	return failed(string(r.place()), what, err)
}
