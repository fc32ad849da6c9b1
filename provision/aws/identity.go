package aws

import (
	"context"
	"fmt"
	"net/url"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/iam"
	iamtypes "github.com/aws/aws-sdk-go-v2/service/iam/types"

	"skyserve/provision"
)

// policyName is the inline policy of a role.
const policyName = "skyserve"

// maxTagValue is the most characters that a tag's value has.
const maxTagValue = 256

// The codes of IAM for what is there already, and for what is not.
const (
	codeExists   = "EntityAlreadyExists"
	codeNoEntity = "NoSuchEntity"
	codeConflict = "DeleteConflict" // something hangs on it
)

// launchIdentity makes a role with its policy and an instance profile that has it, or
// sets them right. Every step may have been done before.
func (p *Provider) launchIdentity(ctx context.Context, w provision.Want) (provision.Object, error) {
	role := w.Labels[labelRole]
	if role == "" || w.Region != globalRegion {
		return provision.Object{}, fmt.Errorf("reading what is wanted: an identity is in %s, and the label %s says whose it is", globalRegion, labelRole)
	}
	name, tags := roleName(w.Service, role), tagsOf(w)
	tags[tagGrants] = grantsTag(w.Grants) // also where it is empty: it may have been another
	if n := len(tags[tagGrants]); n > maxTagValue {
		return provision.Object{}, &provision.SpecError{Err: fmt.Errorf("granting %s to the %ss of %s: a tag holds %d characters of this, got %d: keep models below one folder", tags[tagGrants], role, w.Service, maxTagValue, n)}
	}
	policy, err := policyFor(w.Service, w.Owner, partitionOf(p.names[0]), w.Grants)
	if err != nil {
		return provision.Object{}, err
	}
	has, err := p.createRole(ctx, w, name, tags)
	if err != nil {
		return provision.Object{}, err
	}
	if err := p.settled(ctx, codeNoEntity, func() error { return p.setPolicy(ctx, name, policy) }); err != nil {
		return provision.Object{}, err
	}
	if err := p.createProfile(ctx, w, name, tags); err != nil {
		return provision.Object{}, err
	}
	if lack := missing(tags, has); len(lack) > 0 {
		if _, err := p.iam.TagRole(ctx, &iam.TagRoleInput{RoleName: aws.String(name), Tags: iamTags(lack)}); err != nil {
			return provision.Object{}, err
		}
	}
	return objectFor(w, name), nil
}

// createRole makes a role, and gives the tags that it, or the one that was there, has.
func (p *Provider) createRole(ctx context.Context, w provision.Want, name string, tags map[string]string) (map[string]string, error) {
	_, err := p.iam.CreateRole(ctx, &iam.CreateRoleInput{
		RoleName: aws.String(name), Path: aws.String(iamPath(w.Service)), AssumeRolePolicyDocument: aws.String(trustPolicy), Tags: iamTags(tags),
	})
	if codeOf(err) != codeExists {
		return tags, err
	}
	var has map[string]string
	_, err = p.appears(ctx, func() (bool, error) {
		var err error
		has, err = p.roleTags(ctx, name)
		return has != nil, err
	})
	if err != nil {
		return nil, err
	}
	return has, ownedError(w, has)
}

// roleTags are the tags of a role; nil where there is none.
func (p *Provider) roleTags(ctx context.Context, name string) (map[string]string, error) {
	out, err := p.iam.GetRole(ctx, &iam.GetRoleInput{RoleName: aws.String(name)})
	if err != nil {
		return nil, unless(codeNoEntity, err)
	}
	return fromIAMTags(out.Role.Tags), nil
}

// setPolicy gives a role its inline policy, or takes it away where it is empty.
func (p *Provider) setPolicy(ctx context.Context, role, policy string) error {
	if policy == "" {
		_, err := p.iam.DeleteRolePolicy(ctx, &iam.DeleteRolePolicyInput{RoleName: aws.String(role), PolicyName: aws.String(policyName)})
		return unless(codeNoEntity, err)
	}
	_, err := p.iam.PutRolePolicy(ctx, &iam.PutRolePolicyInput{RoleName: aws.String(role), PolicyName: aws.String(policyName), PolicyDocument: aws.String(policy)})
	return err
}

// createProfile makes an instance profile of the role's name that has the role.
func (p *Provider) createProfile(ctx context.Context, w provision.Want, name string, tags map[string]string) error {
	_, err := p.iam.CreateInstanceProfile(ctx, &iam.CreateInstanceProfileInput{
		InstanceProfileName: aws.String(name), Path: aws.String(iamPath(w.Service)), Tags: iamTags(tags),
	})
	if err := unless(codeExists, err); err != nil {
		return err
	}
	err = p.settled(ctx, codeNoEntity, func() error {
		_, err := p.iam.AddRoleToInstanceProfile(ctx, &iam.AddRoleToInstanceProfileInput{InstanceProfileName: aws.String(name), RoleName: aws.String(name)})
		return err
	})
	if codeOf(err) != "LimitExceeded" { // which says that it has one
		return err
	}
	var profile *iamtypes.InstanceProfile
	_, err = p.appears(ctx, func() (bool, error) {
		out, err := p.iam.GetInstanceProfile(ctx, &iam.GetInstanceProfileInput{InstanceProfileName: aws.String(name)})
		if err != nil {
			return false, unless(codeNoEntity, err)
		}
		profile = out.InstanceProfile
		return true, nil
	})
	if err != nil {
		return err
	}
	if !hasRole(profile, name) {
		return fmt.Errorf("giving the instance profile %s its role: it has another one", name)
	}
	return nil
}

// hasRole says whether a profile has the role of a name.
func hasRole(profile *iamtypes.InstanceProfile, name string) bool {
	return profile != nil && len(profile.Roles) == 1 && aws.ToString(profile.Roles[0].RoleName) == name
}

// identities lists the roles and profiles of a service, or of all. One that lacks
// a part, or whose policy is not the one that its tags tell of, has another Spec.
func (p *Provider) identities(ctx context.Context, service string) ([]provision.Object, error) {
	profiles, err := p.profiles(ctx, service)
	if err != nil {
		return nil, err
	}
	var names []string
	pages := iam.NewListRolesPaginator(p.iam, &iam.ListRolesInput{PathPrefix: aws.String(iamPath(service))})
	for pages.HasMorePages() {
		page, err := pages.NextPage(ctx)
		if err != nil {
			return nil, err
		}
		for _, r := range page.Roles {
			names = append(names, aws.ToString(r.RoleName))
		}
	}
	var objects []provision.Object
	for _, name := range withProfiles(names, profiles) {
		o, ours, err := p.identity(ctx, name, profiles[name])
		if err != nil {
			return nil, err
		}
		if ours {
			objects = append(objects, o)
		}
	}
	return objects, nil
}

// profiles are the instance profiles of a service by name.
func (p *Provider) profiles(ctx context.Context, service string) (map[string]*iamtypes.InstanceProfile, error) {
	all := map[string]*iamtypes.InstanceProfile{}
	pages := iam.NewListInstanceProfilesPaginator(p.iam, &iam.ListInstanceProfilesInput{PathPrefix: aws.String(iamPath(service))})
	for pages.HasMorePages() {
		page, err := pages.NextPage(ctx)
		if err != nil {
			return nil, err
		}
		for _, profile := range page.InstanceProfiles {
			all[aws.ToString(profile.InstanceProfileName)] = &profile
		}
	}
	return all, nil
}

// identity is one role with its profile as they are. The tags are the role's, or,
// where somebody has removed it, the profile's.
func (p *Provider) identity(ctx context.Context, name string, profile *iamtypes.InstanceProfile) (o provision.Object, ours bool, err error) {
	tags, err := p.roleTags(ctx, name)
	if err != nil {
		return o, false, err
	}
	whole := tags != nil && hasRole(profile, name)
	if tags == nil {
		out, err := p.iam.GetInstanceProfile(ctx, &iam.GetInstanceProfileInput{InstanceProfileName: aws.String(name)})
		if err != nil {
			return o, false, unless(codeNoEntity, err)
		}
		tags = fromIAMTags(out.InstanceProfile.Tags)
	}
	o, ours = objectOf(tags, globalRegion, name)
	if !ours || !whole {
		o.Spec += changedByHand
		return o, ours, nil
	}
	should, err := policyFor(o.Service, o.Owner, partitionOf(p.names[0]), grantsOf(tags[tagGrants]))
	if err != nil {
		return o, false, err
	}
	is, err := p.policy(ctx, name)
	if is != should {
		o.Spec += changedByHand
	}
	return o, true, err
}

// policy is the inline policy of a role; empty where there is none.
func (p *Provider) policy(ctx context.Context, role string) (string, error) {
	out, err := p.iam.GetRolePolicy(ctx, &iam.GetRolePolicyInput{RoleName: aws.String(role), PolicyName: aws.String(policyName)})
	if err != nil {
		return "", unless(codeNoEntity, err)
	}
	text, err := url.PathUnescape(aws.ToString(out.PolicyDocument))
	if err != nil {
		return "", fmt.Errorf("reading the policy of %s: %w", role, err)
	}
	return text, nil
}

// deleteIdentity removes a profile and its role, the role last, because its tags
// tell what is left.
func (p *Provider) deleteIdentity(ctx context.Context, o provision.Object) error {
	name := aws.String(o.Handle)
	has, err := p.roleTags(ctx, o.Handle)
	if err != nil {
		return err
	}
	if has != nil && (has[tagService] != o.Service || has[tagOwner] != o.Owner) {
		return &provision.OwnedError{What: "the role " + o.Handle, Where: string(globalRegion), Owner: has[tagOwner]}
	}
	for _, step := range []func() error{
		func() error {
			_, err := p.iam.RemoveRoleFromInstanceProfile(ctx, &iam.RemoveRoleFromInstanceProfileInput{InstanceProfileName: name, RoleName: name})
			return err
		},
		func() error {
			return p.settled(ctx, codeConflict, func() error {
				_, err := p.iam.DeleteInstanceProfile(ctx, &iam.DeleteInstanceProfileInput{InstanceProfileName: name})
				return err
			})
		},
		func() error { return p.setPolicy(ctx, o.Handle, "") },
		func() error { return p.settled(ctx, codeConflict, func() error { return p.deleteRole(ctx, name) }) },
	} {
		if err := unless(codeNoEntity, step()); err != nil {
			return err
		}
	}
	return nil
}

// deleteRole removes a role. What somebody gave it by hand keeps it from going, and is
// taken away then: whoever removes a service does not want its roles to stay.
func (p *Provider) deleteRole(ctx context.Context, name *string) error {
	_, err := p.iam.DeleteRole(ctx, &iam.DeleteRoleInput{RoleName: name})
	if codeOf(err) != codeConflict {
		return err
	}
	attached, e := p.iam.ListAttachedRolePolicies(ctx, &iam.ListAttachedRolePoliciesInput{RoleName: name})
	if e != nil {
		return e
	}
	for _, a := range attached.AttachedPolicies {
		_, e := p.iam.DetachRolePolicy(ctx, &iam.DetachRolePolicyInput{RoleName: name, PolicyArn: a.PolicyArn})
		if e := unless(codeNoEntity, e); e != nil {
			return e
		}
	}
	inline, e := p.iam.ListRolePolicies(ctx, &iam.ListRolePoliciesInput{RoleName: name})
	if e != nil {
		return e
	}
	for _, policy := range inline.PolicyNames {
		_, e := p.iam.DeleteRolePolicy(ctx, &iam.DeleteRolePolicyInput{RoleName: name, PolicyName: aws.String(policy)})
		if e := unless(codeNoEntity, e); e != nil {
			return e
		}
	}
	return err // deleting it is tried again
}
