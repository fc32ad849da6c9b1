package aws

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/url"
	"reflect"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/iam"
	iamtypes "github.com/aws/aws-sdk-go-v2/service/iam/types"

	"skyserve/provision"
)

// policyName is the name of the inline policy of a role.
const policyName = "skyserve"

// maxTagValue is the maximum length of a tag's value, in characters.
const maxTagValue = 256

// launchIdentity creates or repairs a role with its policy and, for machines, an instance profile with the role.
// Every step is idempotent.
func (p *Provider) launchIdentity(ctx context.Context, w provision.Desired) (provision.Object, error) {
	role := w.Labels[labelRole]
	if role == "" || w.Region != globalRegion {
		return provision.Object{}, fmt.Errorf("reading the desired identity: region must be %s, got %q, and label %s is required", globalRegion, w.Region, labelRole)
	}
	name, tags := roleName(w.Service, role), tagsOf(w)
	maps.Copy(tags, grantTags(w.Grants))
	if n := len(tags[tagGrants]); n > maxTagValue {
		return provision.Object{}, &provision.SpecError{Err: fmt.Errorf("granting %s to the %ss of %s: grants are limited to %d characters (one tag), got %d; store the weights of all models below one folder", tags[tagGrants], role, w.Service, maxTagValue, n)}
	}
	policy, err := policyFor(w.Service, w.Owner, partitionOf(p.home), w.Grants)
	if err != nil {
		return provision.Object{}, err
	}
	trusted, err := trustPolicyFor(role, w.Grants)
	if err != nil {
		return provision.Object{}, err
	}
	roleTags, err := p.createRole(ctx, w, name, trusted, tags)
	if err != nil {
		return provision.Object{}, err
	}
	if err := p.retryOnCode(ctx, codeNoEntity, func() error { return p.setPolicy(ctx, name, policy) }); err != nil {
		return provision.Object{}, err
	}
	if hasMachines(role) {
		if err := p.createProfile(ctx, w, name, tags); err != nil {
			return provision.Object{}, err
		}
	}
	if missing := missingTags(tags, roleTags); len(missing) > 0 {
		if _, err := p.iam.TagRole(ctx, &iam.TagRoleInput{RoleName: aws.String(name), Tags: iamTags(missing)}); err != nil {
			return provision.Object{}, err
		}
	}
	return objectOfDesired(w, name), nil
}

// createRole creates a role if it does not exist, or repairs its trust policy. It returns the tags of the role.
func (p *Provider) createRole(ctx context.Context, w provision.Desired, name, trusted string, tags map[string]string) (map[string]string, error) {
	_, err := p.iam.CreateRole(ctx, &iam.CreateRoleInput{
		RoleName: aws.String(name), Path: aws.String(iamPath(w.Service)), AssumeRolePolicyDocument: aws.String(trusted), Tags: iamTags(tags),
	})
	if codeOf(err) != codeExists {
		return tags, err
	}
	var existing existingRole
	_, err = p.waitVisible(ctx, func() (bool, error) {
		var err error
		existing, err = p.readRole(ctx, name)
		return existing.tags != nil, err
	})
	if err == nil {
		err = ownedError(w, existing.tags)
	}
	if err == nil && !equalDocuments(existing.trust, trusted) {
		_, err = p.iam.UpdateAssumeRolePolicy(ctx, &iam.UpdateAssumeRolePolicyInput{RoleName: aws.String(name), PolicyDocument: aws.String(trusted)})
	}
	return existing.tags, err
}

// existingRole is a role as it is now.
type existingRole struct {
	tags  map[string]string // nil = there is no role
	trust string            // its trust policy
}

// readRole returns a role; the zero value where there is none.
func (p *Provider) readRole(ctx context.Context, name string) (existingRole, error) {
	out, err := p.iam.GetRole(ctx, &iam.GetRoleInput{RoleName: aws.String(name)})
	if err != nil {
		return existingRole{}, ignoreCode(codeNoEntity, err)
	}
	text, err := url.PathUnescape(aws.ToString(out.Role.AssumeRolePolicyDocument))
	if err != nil {
		return existingRole{}, fmt.Errorf("reading the trust policy of IAM role %s: %w", name, err)
	}
	return existingRole{fromIAMTags(out.Role.Tags), text}, nil
}

// equalDocuments reports whether two JSON documents have the same values.
func equalDocuments(a, b string) bool {
	var x, y any
	return json.Unmarshal([]byte(a), &x) == nil && json.Unmarshal([]byte(b), &y) == nil && reflect.DeepEqual(x, y)
}

// setPolicy sets the inline policy of a role; an empty policy deletes it.
func (p *Provider) setPolicy(ctx context.Context, role, policy string) error {
	if policy == "" {
		_, err := p.iam.DeleteRolePolicy(ctx, &iam.DeleteRolePolicyInput{RoleName: aws.String(role), PolicyName: aws.String(policyName)})
		return ignoreCode(codeNoEntity, err)
	}
	_, err := p.iam.PutRolePolicy(ctx, &iam.PutRolePolicyInput{RoleName: aws.String(role), PolicyName: aws.String(policyName), PolicyDocument: aws.String(policy)})
	return err
}

// createProfile creates an instance profile with the role's name and adds the role.
func (p *Provider) createProfile(ctx context.Context, w provision.Desired, name string, tags map[string]string) error {
	_, err := p.iam.CreateInstanceProfile(ctx, &iam.CreateInstanceProfileInput{
		InstanceProfileName: aws.String(name), Path: aws.String(iamPath(w.Service)), Tags: iamTags(tags),
	})
	if err := ignoreCode(codeExists, err); err != nil {
		return err
	}
	err = p.retryOnCode(ctx, codeNoEntity, func() error {
		_, err := p.iam.AddRoleToInstanceProfile(ctx, &iam.AddRoleToInstanceProfileInput{InstanceProfileName: aws.String(name), RoleName: aws.String(name)})
		return err
	})
	if codeOf(err) != codeLimit { // the profile already has a role
		return err
	}
	var profile *iamtypes.InstanceProfile
	_, err = p.waitVisible(ctx, func() (bool, error) {
		out, err := p.iam.GetInstanceProfile(ctx, &iam.GetInstanceProfileInput{InstanceProfileName: aws.String(name)})
		if err != nil {
			return false, ignoreCode(codeNoEntity, err)
		}
		profile = out.InstanceProfile
		return true, nil
	})
	if err != nil {
		return err
	}
	if !hasRole(profile, name) {
		return fmt.Errorf("adding the role to instance profile %s: it contains another role; remove that role from the profile", name)
	}
	return nil
}

// hasRole reports whether a profile contains the role of a name.
func hasRole(profile *iamtypes.InstanceProfile, name string) bool {
	return profile != nil && len(profile.Roles) == 1 && aws.ToString(profile.Roles[0].RoleName) == name
}

// listIdentities lists the identities of a service, or of all services. If the role or the instance
// profile of an identity is missing, or one of its policies does not match its tags, driftSuffix is appended to
// SpecHash.
func (p *Provider) listIdentities(ctx context.Context, service string) ([]provision.Object, error) {
	profiles, err := p.listProfiles(ctx, service)
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
	for _, name := range mergeNames(names, profiles) {
		o, owned, err := p.readIdentity(ctx, name, profiles[name])
		if err != nil {
			return nil, err
		}
		if owned {
			objects = append(objects, o)
		}
	}
	return objects, nil
}

// listProfiles returns the instance profiles of a service by name.
func (p *Provider) listProfiles(ctx context.Context, service string) (map[string]*iamtypes.InstanceProfile, error) {
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

// readIdentity returns the identity that consists of a role and its profile. owned is false when skyserve
// did not create it. The tags are those of the role or, if the role was deleted, those of the profile.
func (p *Provider) readIdentity(ctx context.Context, name string, profile *iamtypes.InstanceProfile) (o provision.Object, owned bool, err error) {
	role, err := p.readRole(ctx, name)
	if err != nil {
		return o, false, err
	}
	tags := role.tags
	if tags == nil {
		out, err := p.iam.GetInstanceProfile(ctx, &iam.GetInstanceProfileInput{InstanceProfileName: aws.String(name)})
		if err != nil {
			return o, false, ignoreCode(codeNoEntity, err)
		}
		tags = fromIAMTags(out.InstanceProfile.Tags)
	}
	o, owned = objectFromTags(tags, globalRegion, name)
	if complete := role.tags != nil && (hasRole(profile, name) || !hasMachines(o.Labels[labelRole])); !owned || !complete {
		o.SpecHash += driftSuffix
		return o, owned, nil
	}
	desired, err := policyFor(o.Service, o.Owner, partitionOf(p.home), grantsOf(tags))
	if err != nil {
		return o, false, err
	}
	trusted, err := trustPolicyFor(o.Labels[labelRole], grantsOf(tags))
	if err != nil {
		return o, false, err
	}
	observed, err := p.readPolicy(ctx, name)
	if observed != desired || !equalDocuments(role.trust, trusted) {
		o.SpecHash += driftSuffix
	}
	return o, true, err
}

// readPolicy returns the inline policy of a role; empty where there is none.
func (p *Provider) readPolicy(ctx context.Context, role string) (string, error) {
	out, err := p.iam.GetRolePolicy(ctx, &iam.GetRolePolicyInput{RoleName: aws.String(role), PolicyName: aws.String(policyName)})
	if err != nil {
		return "", ignoreCode(codeNoEntity, err)
	}
	text, err := url.PathUnescape(aws.ToString(out.PolicyDocument))
	if err != nil {
		return "", fmt.Errorf("reading the policy of IAM role %s: %w", role, err)
	}
	return text, nil
}

// deleteIdentity removes a profile and its role. The role is last, because its tags identify the
// remaining parts.
func (p *Provider) deleteIdentity(ctx context.Context, o provision.Object) error {
	name := aws.String(o.Handle)
	role, err := p.readRole(ctx, o.Handle)
	if err != nil {
		return err
	}
	tags := role.tags
	if tags != nil && (tags[tagService] != o.Service || tags[tagOwner] != o.Owner) {
		return &provision.OwnedError{Resource: "IAM role " + o.Handle, Where: string(globalRegion), Owner: tags[tagOwner]}
	}
	for _, step := range []func() error{
		func() error {
			_, err := p.iam.RemoveRoleFromInstanceProfile(ctx, &iam.RemoveRoleFromInstanceProfileInput{InstanceProfileName: name, RoleName: name})
			return err
		},
		func() error {
			return p.retryOnCode(ctx, codeConflict, func() error {
				_, err := p.iam.DeleteInstanceProfile(ctx, &iam.DeleteInstanceProfileInput{InstanceProfileName: name})
				return err
			})
		},
		func() error { return p.setPolicy(ctx, o.Handle, "") },
		func() error { return p.retryOnCode(ctx, codeConflict, func() error { return p.deleteRole(ctx, name) }) },
	} {
		if err := ignoreCode(codeNoEntity, step()); err != nil {
			return err
		}
	}
	return nil
}

// deleteRole deletes a role. Policies that were attached by hand prevent the deletion. It detaches them,
// so that no role of a removed service remains.
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
		if e := ignoreCode(codeNoEntity, e); e != nil {
			return e
		}
	}
	inline, e := p.iam.ListRolePolicies(ctx, &iam.ListRolePoliciesInput{RoleName: name})
	if e != nil {
		return e
	}
	for _, policy := range inline.PolicyNames {
		_, e := p.iam.DeleteRolePolicy(ctx, &iam.DeleteRolePolicyInput{RoleName: name, PolicyName: aws.String(policy)})
		if e := ignoreCode(codeNoEntity, e); e != nil {
			return e
		}
	}
	return err // the caller deletes the role again
}
