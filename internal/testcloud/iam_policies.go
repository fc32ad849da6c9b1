package testcloud

import (
	"maps"
	"slices"
	"strings"
)

// managedPolicies is the ARN prefix of the policies that AWS manages.
const managedPolicies = "arn:aws:iam::aws:policy/"

type policyNamesAnswer struct {
	PolicyNames []string `xml:"PolicyNames>member"`
	IsTruncated bool
}

func (a *AWS) listRolePolicies(f awsForm) (any, error) {
	r, err := a.findRole(f, false)
	if err != nil {
		return nil, err
	}
	return policyNamesAnswer{PolicyNames: slices.Sorted(maps.Keys(r.policies))}, nil
}

type attachedDoc struct {
	PolicyName string
	PolicyArn  string
}

type attachedAnswer struct {
	AttachedPolicies []attachedDoc `xml:"AttachedPolicies>member"`
	IsTruncated      bool
}

func (a *AWS) listAttached(f awsForm) (any, error) {
	r, err := a.findRole(f, false)
	if err != nil {
		return nil, err
	}
	var answer attachedAnswer
	for _, name := range r.attached {
		answer.AttachedPolicies = append(answer.AttachedPolicies, attachedDoc{name, managedPolicies + name})
	}
	return answer, nil
}

func (a *AWS) attachPolicy(f awsForm) (any, error) {
	r, err := a.findVisibleRole(f)
	name, managed := strings.CutPrefix(f.get("PolicyArn"), managedPolicies)
	switch {
	case err != nil:
		return nil, err
	case !managed:
		return nil, noSuchEntity("policy", f.get("PolicyArn"))
	case !slices.Contains(r.attached, name):
		r.attached = append(r.attached, name)
	}
	return struct{}{}, nil
}

func (a *AWS) detachPolicy(f awsForm) (any, error) {
	r, err := a.findRole(f, false)
	if err != nil {
		return nil, err
	}
	name := strings.TrimPrefix(f.get("PolicyArn"), managedPolicies)
	if !slices.Contains(r.attached, name) {
		return nil, noSuchEntity("policy", name)
	}
	r.attached = slices.DeleteFunc(r.attached, func(have string) bool { return have == name })
	r.deleteConflicts = a.faults.StaleLists
	return struct{}{}, nil
}

// AttachManagedPolicy attaches a managed policy to a role, like a user in the console.
func (a *AWS) AttachManagedPolicy(role, policy string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.roles[role].attached = append(a.roles[role].attached, policy)
}

// ManagedPolicies returns the managed policies of a role.
func (a *AWS) ManagedPolicies(role string) []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	if r := a.roles[role]; r != nil {
		return slices.Clone(r.attached)
	}
	return nil
}
