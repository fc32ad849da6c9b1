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
	unseen            int // reads that do not show it yet
	unknown           int // calls that name it and find it unknown yet
	held              int // tries to delete it that still see what was taken from it
}

// iamProfile is an instance profile.
type iamProfile struct {
	name, path, role string
	tags             awsTags
	lag              int // launches that do not know it yet
	empty            int // launches that do not know its role yet
	unseen           int
	held             int // tries to delete it that still see its role
}

// iamActions are the actions of IAM that the fake has.
var iamActions = map[string]func(*AWS, awsForm) (any, error){
	"CreateRole":                    (*AWS).createRole,
	"GetRole":                       (*AWS).getRole,
	"ListRoles":                     (*AWS).listRoles,
	"TagRole":                       (*AWS).tagRole,
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

// iamARN names something of the account.
func iamARN(kind, path, name string) string {
	return fmt.Sprintf("arn:aws:iam::%s:%s%s%s", AWSAccount, kind, path, name)
}

type iamTags struct {
	Tags []struct{ Key, Value string } `xml:"member"`
}

func (t awsTags) iam() *iamTags {
	var tags iamTags
	for _, tag := range t.wire() {
		tags.Tags = append(tags.Tags, struct{ Key, Value string }{tag.Key, tag.Value})
	}
	return &tags
}

type iamRoleDoc struct {
	Path, RoleName, Arn, CreateDate, AssumeRolePolicyDocument string
	RoleID                                                    string   `xml:"RoleId"`
	Tags                                                      *iamTags `xml:",omitempty"`
}

// doc is the role on the wire; lists leave the tags out.
func (r *iamRole) doc(tags bool) iamRoleDoc {
	d := iamRoleDoc{r.path, r.name, iamARN("role", r.path, r.name), iamBirth, iamText(r.trust), "AROA" + r.name, nil}
	if tags {
		d.Tags = r.tags.iam()
	}
	return d
}

// iamText is a document as IAM writes it, by RFC 3986: a space is %20, a plus %2B.
func iamText(document string) string {
	return strings.ReplaceAll(url.QueryEscape(document), "+", "%20")
}

// iamBirth is when everything of IAM was made; nobody asks.
const iamBirth = "2026-01-01T00:00:00Z"

type roleAnswer struct{ Role iamRoleDoc }

// noSuchEntity is the error of a thing that IAM does not have.
func noSuchEntity(kind, name string) error {
	return awsRefusal(http.StatusNotFound, "NoSuchEntity", "The %s with name %s cannot be found.", kind, name)
}

func entityExists(kind, name string) error {
	return awsRefusal(http.StatusConflict, "EntityAlreadyExists", "%s with name %s already exists.", kind, name)
}

// maxIAMName is the longest name that a role may have.
const maxIAMName = 64

func (a *AWS) createRole(f awsForm) (any, error) {
	name, wrong := f.get("RoleName"), f.readTags("Tags.member").check(true)
	switch {
	case wrong != nil:
		return nil, badRequest("ValidationError", "%v", wrong)
	case a.roles[name] != nil:
		return nil, entityExists("Role", name)
	case len(name) > maxIAMName:
		return nil, badRequest("ValidationError", "Value at 'roleName' failed to satisfy constraint: Member must have length less than or equal to 64")
	}
	r := &iamRole{
		name: name, path: f.get("Path"), trust: f.get("AssumeRolePolicyDocument"), policies: map[string]string{},
		tags: f.readTags("Tags.member"), unseen: a.faults.Unseen, unknown: a.faults.Unseen,
	}
	a.roles[name] = r
	return roleAnswer{r.doc(true)}, nil
}

// role finds the role of a request, for reading only if it is seen yet.
func (a *AWS) role(f awsForm, reads bool) (*iamRole, error) {
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
	r, err := a.role(f, true)
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
	part, next := cutPage(a, docs, f.get("Marker"), f.get("MaxItems"))
	return rolesAnswer{part, next != "", next}, nil
}

// fresh finds the role of a request that builds on it: IAM may not know everywhere yet
// what it made a moment ago.
func (a *AWS) fresh(f awsForm) (*iamRole, error) {
	r, err := a.role(f, false)
	if err == nil && r.unknown > 0 {
		r.unknown--
		return nil, noSuchEntity("role", r.name)
	}
	return r, err
}

func (a *AWS) tagRole(f awsForm) (any, error) {
	r, err := a.role(f, false)
	if err != nil {
		return nil, err
	}
	maps.Copy(r.tags, f.readTags("Tags.member"))
	return struct{}{}, nil
}

func (a *AWS) deleteRole(f awsForm) (any, error) {
	r, err := a.role(f, false)
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
	case r.held > 0:
		r.held--
		return nil, deleteConflict("must delete policies first.")
	}
	delete(a.roles, r.name)
	return struct{}{}, nil
}

// deleteConflict is the error of a thing that something else hangs on.
func deleteConflict(what string) error {
	return awsRefusal(http.StatusConflict, "DeleteConflict", "Cannot delete entity, %s", what)
}

func (a *AWS) putRolePolicy(f awsForm) (any, error) {
	r, err := a.fresh(f)
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

// policy finds the inline policy of a request.
func (a *AWS) policy(f awsForm) (*iamRole, string, error) {
	r, err := a.role(f, false)
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
	r, name, err := a.policy(f)
	if err != nil {
		return nil, err
	}
	return policyAnswer{r.name, name, iamText(r.policies[name])}, nil
}

func (a *AWS) deleteRolePolicy(f awsForm) (any, error) {
	r, name, err := a.policy(f)
	if err != nil {
		return nil, err
	}
	delete(r.policies, name)
	r.held = a.faults.Unseen
	return struct{}{}, nil
}

// Grant sets the inline policies of a role as a person would by hand.
func (a *AWS) Grant(role, policy, document string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.roles[role].policies[policy] = document
}

// Policy is an inline policy of a role, empty where there is none.
func (a *AWS) Policy(role, policy string) string {
	a.mu.Lock()
	defer a.mu.Unlock()
	if r := a.roles[role]; r != nil {
		return r.policies[policy]
	}
	return ""
}
