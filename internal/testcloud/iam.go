package testcloud

import (
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
)

// iamRole is a role with its inline policies.
type iamRole struct {
	name, path, trust string
	policies          map[string]string
	attached          []string // managed policies, by their names
	tags              awsTags
	unseen            int // remaining reads that do not find it
	notFoundCalls     int // remaining dependent calls that fail as not found
	deleteConflicts   int // remaining deletions that fail because a removed policy is still visible
}

// iamProfile is an instance profile.
type iamProfile struct {
	name, path, role string
	tags             awsTags
	notFoundLaunches int // remaining launches that do not find it
	noRoleLaunches   int // remaining launches that do not find its role
	unseen           int
	deleteConflicts  int // remaining deletions that fail because its role is still visible
}

// iamActions are the emulated actions of IAM.
var iamActions = map[string]func(*AWS, awsForm) (any, error){
	"CreateRole":                    (*AWS).createRole,
	"GetRole":                       (*AWS).getRole,
	"ListRoles":                     (*AWS).listRoles,
	"TagRole":                       (*AWS).tagRole,
	"UpdateAssumeRolePolicy":        (*AWS).updateTrust,
	"DeleteRole":                    (*AWS).deleteRole,
	"PutRolePolicy":                 (*AWS).putRolePolicy,
	"GetRolePolicy":                 (*AWS).getRolePolicy,
	"DeleteRolePolicy":              (*AWS).deleteRolePolicy,
	"ListRolePolicies":              (*AWS).listRolePolicies,
	"ListAttachedRolePolicies":      (*AWS).listAttached,
	"AttachRolePolicy":              (*AWS).attachPolicy,
	"DetachRolePolicy":              (*AWS).detachPolicy,
	"CreateInstanceProfile":         (*AWS).createProfile,
	"GetInstanceProfile":            (*AWS).getProfile,
	"ListInstanceProfiles":          (*AWS).listProfiles,
	"AddRoleToInstanceProfile":      (*AWS).addRole,
	"RemoveRoleFromInstanceProfile": (*AWS).removeRole,
	"DeleteInstanceProfile":         (*AWS).deleteProfile,
}

// iamARN returns the ARN of an IAM resource of the AWS account.
func iamARN(kind, path, name string) string {
	return fmt.Sprintf("arn:aws:iam::%s:%s%s%s", AWSAccount, kind, path, name)
}

type iamTags struct {
	Tags []struct{ Key, Value string } `xml:"member"`
}

func (t awsTags) iam() *iamTags {
	var tags iamTags
	for _, tag := range t.xmlTags() {
		tags.Tags = append(tags.Tags, struct{ Key, Value string }{tag.Key, tag.Value})
	}
	return &tags
}

type iamRoleDoc struct {
	Path, RoleName, Arn, CreateDate, AssumeRolePolicyDocument string
	RoleID                                                    string   `xml:"RoleId"`
	Tags                                                      *iamTags `xml:",omitempty"`
}

// doc returns the role on the wire; lists omit the tags.
func (r *iamRole) doc(tags bool) iamRoleDoc {
	d := iamRoleDoc{r.path, r.name, iamARN("role", r.path, r.name), iamCreateDate, iamEncode(r.trust), iamID("AROA", r.name), nil}
	if tags {
		d.Tags = r.tags.iam()
	}
	return d
}

// iamEncode encodes a document as IAM does, by RFC 3986: a space is %20, a plus is %2B.
func iamEncode(document string) string {
	return strings.ReplaceAll(url.QueryEscape(document), "+", "%20")
}

// iamCreateDate is the creation date of every IAM resource; clients do not read it.
const iamCreateDate = "2026-01-01T00:00:00Z"

type roleAnswer struct{ Role iamRoleDoc }

// noSuchEntity returns the error for an IAM resource that does not exist.
func noSuchEntity(kind, name string) error {
	return newAWSError(http.StatusNotFound, "NoSuchEntity", "The %s with name %s cannot be found.", kind, name)
}

func entityExists(kind, name string) error {
	return newAWSError(http.StatusConflict, "EntityAlreadyExists", "%s with name %s already exists.", kind, name)
}

// maxIAMName is the maximum length of a role's name.
const maxIAMName = 64

func (a *AWS) createRole(f awsForm) (any, error) {
	name, err := f.get("RoleName"), f.readTags("Tags.member").validate(true)
	switch {
	case err != nil:
		return nil, badRequest("ValidationError", "%v", err)
	case a.roles[name] != nil:
		return nil, entityExists("Role", name)
	case len(name) > maxIAMName:
		return nil, badRequest("ValidationError", "Value at 'roleName' failed to satisfy constraint: Member must have length less than or equal to 64")
	}
	r := &iamRole{
		name: name, path: f.get("Path"), trust: f.get("AssumeRolePolicyDocument"), policies: map[string]string{},
		tags: f.readTags("Tags.member"), unseen: a.faults.StaleLists, notFoundCalls: a.faults.StaleLists,
	}
	a.roles[name] = r
	return roleAnswer{r.doc(true)}, nil
}

// findRole returns the role of a request. With reads set, it does not find a role that is not visible yet.
func (a *AWS) findRole(f awsForm, reads bool) (*iamRole, error) {
	r := a.roles[f.get("RoleName")]
	if r != nil && reads && r.unseen > 0 {
		r.unseen--
		r = nil
	}
	if r == nil {
		return nil, noSuchEntity("role", f.get("RoleName"))
	}
	return r, nil
}

func (a *AWS) getRole(f awsForm) (any, error) {
	r, err := a.findRole(f, true)
	if err != nil {
		return nil, err
	}
	return roleAnswer{r.doc(true)}, nil
}

type rolesAnswer struct {
	Roles       []iamRoleDoc `xml:"Roles>member"`
	IsTruncated bool
	Marker      string `xml:",omitempty"`
}

func (a *AWS) listRoles(f awsForm) (any, error) {
	var docs []iamRoleDoc
	for _, name := range slices.Sorted(maps.Keys(a.roles)) {
		if r := a.roles[name]; r.unseen > 0 {
			r.unseen--
		} else if strings.HasPrefix(r.path, f.get("PathPrefix")) {
			docs = append(docs, r.doc(false))
		}
	}
	part, next := paginate(a, docs, f.get("Marker"), f.get("MaxItems"))
	return rolesAnswer{part, next != "", next}, nil
}

// findVisibleRole returns the role of a request that depends on it. A new role may not be visible
// everywhere in IAM yet.
func (a *AWS) findVisibleRole(f awsForm) (*iamRole, error) {
	r, err := a.findRole(f, false)
	if err == nil && r.notFoundCalls > 0 {
		r.notFoundCalls--
		return nil, noSuchEntity("role", r.name)
	}
	return r, err
}

func (a *AWS) tagRole(f awsForm) (any, error) {
	r, err := a.findRole(f, false)
	if err != nil {
		return nil, err
	}
	maps.Copy(r.tags, f.readTags("Tags.member"))
	return struct{}{}, nil
}

func (a *AWS) updateTrust(f awsForm) (any, error) {
	r, err := a.findRole(f, false)
	if err != nil {
		return nil, err
	}
	r.trust = f.get("PolicyDocument")
	return struct{}{}, nil
}

func (a *AWS) deleteRole(f awsForm) (any, error) {
	r, err := a.findRole(f, false)
	if err != nil {
		return nil, err
	}
	inProfile := false
	for _, p := range a.profiles {
		inProfile = inProfile || p.role == r.name
	}
	switch {
	case inProfile:
		return nil, deleteConflict("must remove roles from instance profile first.")
	case len(r.policies) > 0:
		return nil, deleteConflict("must delete policies first.")
	case len(r.attached) > 0:
		return nil, deleteConflict("must detach all policies first.")
	case r.deleteConflicts > 0:
		r.deleteConflicts--
		return nil, deleteConflict("must delete policies first.")
	}
	delete(a.roles, r.name)
	return struct{}{}, nil
}

// deleteConflict returns the error for deleting a resource that is still in use.
func deleteConflict(what string) error {
	return newAWSError(http.StatusConflict, "DeleteConflict", "Cannot delete entity, %s", what)
}

func (a *AWS) putRolePolicy(f awsForm) (any, error) {
	r, err := a.findVisibleRole(f)
	if err != nil {
		return nil, err
	}
	if _, err := readPolicy(f.get("PolicyDocument")); err != nil {
		return nil, badRequest("MalformedPolicyDocument", "%v", err)
	}
	r.policies[f.get("PolicyName")] = f.get("PolicyDocument")
	return struct{}{}, nil
}

type policyAnswer struct{ RoleName, PolicyName, PolicyDocument string }

// findPolicy returns the inline policy of a request.
func (a *AWS) findPolicy(f awsForm) (*iamRole, string, error) {
	r, err := a.findRole(f, false)
	if err != nil {
		return nil, "", err
	}
	name := f.get("PolicyName")
	if _, has := r.policies[name]; !has {
		return nil, "", noSuchEntity("role policy", name)
	}
	return r, name, nil
}

func (a *AWS) getRolePolicy(f awsForm) (any, error) {
	r, name, err := a.findPolicy(f)
	if err != nil {
		return nil, err
	}
	return policyAnswer{r.name, name, iamEncode(r.policies[name])}, nil
}

func (a *AWS) deleteRolePolicy(f awsForm) (any, error) {
	r, name, err := a.findPolicy(f)
	if err != nil {
		return nil, err
	}
	delete(r.policies, name)
	r.deleteConflicts = a.faults.StaleLists
	return struct{}{}, nil
}

// SetRolePolicy sets an inline policy of a role, like a user in the console.
func (a *AWS) SetRolePolicy(role, policy, document string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.roles[role].policies[policy] = document
}

// TrustPolicy returns the trust policy of a role; SetTrustPolicy changes it, like a user in the console.
func (a *AWS) TrustPolicy(role string) string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.roles[role].trust
}

// SetTrustPolicy changes the trust policy of a role.
func (a *AWS) SetTrustPolicy(role, document string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.roles[role].trust = document
}

// RolePolicy returns an inline policy of a role; empty if there is none.
func (a *AWS) RolePolicy(role, policy string) string {
	a.mu.Lock()
	defer a.mu.Unlock()
	if r := a.roles[role]; r != nil {
		return r.policies[policy]
	}
	return ""
}
