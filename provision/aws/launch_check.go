package aws

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"

	"skyserve/provision"
)

var _ provision.LaunchChecker = (*Provider)(nil)

// CheckLaunch checks a launch with a dry run of the same request, and with the list of types of the zone,
// which a dry run does not use. EC2's dry run checks the permissions, image, subnet, disk, instance profile
// and user data, but neither capacity nor quotas. A security group or instance profile that does not exist
// yet is left out of the request, as the message says.
func (p *Provider) CheckLaunch(ctx context.Context, w provision.Desired) provision.LaunchCheck {
	c := provision.LaunchCheck{CheckResult: provision.CheckResult{Where: string(w.Region), Message: provision.DescribeLaunch(w)}}
	r, err := p.region(w.Region)
	if err == nil {
		err = checkMachine(w)
	}
	var omitted []string
	if err == nil {
		c.Image, omitted, err = r.dryRunLaunch(ctx, w)
	}
	if err == nil {
		err = r.checkTypeInZone(ctx, w)
	}
	if err != nil {
		c.Err = wrapError("checking the launch", err)
		c.Message += ": " + plainError(err).Error()
		c.Hint = hintOf(c.Err)
		return c
	}
	c.OK = true
	c.Message += ": accepted with boot image " + c.Image
	if len(omitted) > 0 {
		c.Message += "; not checked because 'up' has not created it yet: " + strings.Join(omitted, ", ")
	}
	return c
}

// hintOf returns the next step after a failed check; empty if the error contains it.
func hintOf(err error) string {
	var denied *provision.CredentialsError
	if errors.As(err, &denied) {
		return denied.Hint
	}
	return ""
}

// dryRunLaunch makes a dry run of a launch. It returns the image, and the prerequisites that were left out.
func (r *region) dryRunLaunch(ctx context.Context, w provision.Desired) (image string, omitted []string, err error) {
	group, err := r.findGroup(ctx, groupName(w.Service, string(w.Machine.Role)))
	if err != nil {
		return "", nil, err
	}
	id := ""
	if group == nil {
		omitted = append(omitted, "the security group")
	} else {
		id = aws.ToString(group.GroupId)
	}
	in, err := r.requestWithGroup(ctx, w, id)
	if err != nil {
		return "", nil, err
	}
	in.DryRun = aws.Bool(true)
	for {
		image, err = r.runWithImages(in, imagesOf(w), func() error {
			_, err := r.ec2.RunInstances(ctx, in)
			return err
		})
		if in.IamInstanceProfile == nil || codeOf(err) != codeInvalidParameter || !strings.Contains(err.Error(), textNoInstanceProfile) {
			break
		}
		in.IamInstanceProfile = nil
		omitted = append(omitted, "the instance profile")
	}
	if codeOf(err) == codeDryRunSucceeded {
		return image, omitted, nil
	}
	if missing := imageError(w, err); missing != nil {
		return "", nil, missing
	}
	if noCapacity := capacityError(w.Offerings[0], err); noCapacity != nil {
		return "", nil, noCapacity
	}
	return "", nil, err
}

// checkTypeInZone returns a *provision.CapacityError if a zone does not have the type of a launch.
func (r *region) checkTypeInZone(ctx context.Context, w provision.Desired) error {
	o := w.Offerings[0]
	if o.Zone == "" {
		return nil
	}
	zones, err := r.typesByZone.Get(ctx, r.name, r.p.cfg.Now(), func(ctx context.Context) (map[string][]string, error) { return r.zonesOf(ctx) })
	if err != nil || slices.Contains(zones[o.Type], o.Zone) {
		return err
	}
	return &provision.CapacityError{
		Offering: o, Scope: provision.ScopeZone, Code: "Unsupported",
		Err: fmt.Errorf("zone %s does not have %s; zones of the region that have it: %s", o.Zone, o.Type, orNone(zones[o.Type])),
	}
}

func orNone(names []string) string {
	if len(names) == 0 {
		return "none"
	}
	return strings.Join(names, ", ")
}
