package testcloud

import (
	"maps"
	"net/http"
	"slices"
	"strings"
)

type iamProfileDoc struct {
	Path, InstanceProfileName, Arn, CreateDate string
	InstanceProfileID                          string       `xml:"InstanceProfileId"`
	Roles                                      []iamRoleDoc `xml:"Roles>member"`
	Tags                                       *iamTags     `xml:",omitempty"`
}

// profileDoc returns a profile on the wire; lists omit the tags.
func (a *AWS) profileDoc(p *iamProfile, tags bool) iamProfileDoc {
	d := iamProfileDoc{
		Path: p.path, InstanceProfileName: p.name, InstanceProfileID: iamID("AIPA", p.name),
		Arn: iamARN("instance-profile", p.path, p.name), CreateDate: iamCreateDate,
	}
	if r := a.roles[p.role]; r != nil {
		d.Roles = []iamRoleDoc{r.doc(false)}
	}
	if tags {
		d.Tags = p.tags.iam()
	}
	return d
}

type profileAnswer struct{ InstanceProfile iamProfileDoc }

func (a *AWS) createProfile(f awsForm) (any, error) {
	name := f.get("InstanceProfileName")
	if a.profiles[name] != nil {
		return nil, entityExists("Instance Profile", name)
	}
	p := &iamProfile{name: name, path: f.get("Path"), tags: f.readTags("Tags.member"), notFoundLaunches: a.ProfileLagLaunches, unseen: a.faults.StaleLists}
	a.profiles[name] = p
	return profileAnswer{a.profileDoc(p, true)}, nil
}

// findProfile returns the instance profile of a request. With reads set, it does not find a profile that
// is not visible yet.
func (a *AWS) findProfile(f awsForm, reads bool) (*iamProfile, error) {
	p := a.profiles[f.get("InstanceProfileName")]
	if p != nil && reads && p.unseen > 0 {
		p.unseen--
		p = nil
	}
	if p == nil {
		return nil, noSuchEntity("instance profile", f.get("InstanceProfileName"))
	}
	return p, nil
}

func (a *AWS) getProfile(f awsForm) (any, error) {
	p, err := a.findProfile(f, true)
	if err != nil {
		return nil, err
	}
	return profileAnswer{a.profileDoc(p, true)}, nil
}

type profilesAnswer struct {
	InstanceProfiles []iamProfileDoc `xml:"InstanceProfiles>member"`
	IsTruncated      bool
	Marker           string `xml:",omitempty"`
}

func (a *AWS) listProfiles(f awsForm) (any, error) {
	var docs []iamProfileDoc
	for _, name := range slices.Sorted(maps.Keys(a.profiles)) {
		if p := a.profiles[name]; p.unseen > 0 {
			p.unseen--
		} else if strings.HasPrefix(p.path, f.get("PathPrefix")) {
			docs = append(docs, a.profileDoc(p, false))
		}
	}
	part, next := paginate(a, docs, f.get("Marker"), f.get("MaxItems"))
	return profilesAnswer{part, next != "", next}, nil
}

func (a *AWS) addRole(f awsForm) (any, error) {
	p, err := a.findProfile(f, false)
	if err != nil {
		return nil, err
	}
	r, err := a.findVisibleRole(f)
	if err != nil {
		return nil, err
	}
	if p.role != "" {
		return nil, newAWSError(http.StatusConflict, "LimitExceeded", "Cannot exceed quota for InstanceSessionsPerInstanceProfile: 1")
	}
	p.role, p.noRoleLaunches = r.name, a.ProfileLagLaunches
	return struct{}{}, nil
}

func (a *AWS) removeRole(f awsForm) (any, error) {
	p, err := a.findProfile(f, false)
	if err != nil {
		return nil, err
	}
	if p.role != f.get("RoleName") {
		return nil, noSuchEntity("role", f.get("RoleName"))
	}
	p.role, p.deleteConflicts = "", a.faults.StaleLists
	return struct{}{}, nil
}

func (a *AWS) deleteProfile(f awsForm) (any, error) {
	p, err := a.findProfile(f, false)
	if err != nil {
		return nil, err
	}
	if p.role != "" || p.deleteConflicts > 0 {
		p.deleteConflicts--
		return nil, deleteConflict("must remove roles from instance profile first.")
	}
	delete(a.profiles, p.name)
	return struct{}{}, nil
}

// DetachRole removes the role from an instance profile, like a user in the console.
func (a *AWS) DetachRole(profile string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.profiles[profile].role = ""
}

// DeleteProfile deletes an instance profile, like a user in the console.
func (a *AWS) DeleteProfile(profile string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.profiles, profile)
}
