package testcloud

import (
	"maps"
	"net/http"
	"path"
	"slices"
	"strings"
)

// Allow leaves the caller these permissions and no others.
func (g *GCE) Allow(permissions ...string) { g.locked(func() { g.allowed = permissions }) }

// SetRole makes a role of the project, projects/PROJECT/roles/NAME, or a predefined one.
func (g *GCE) SetRole(role string, permissions ...string) {
	g.locked(func() { g.roles[role] = permissions })
}

// gceBinding is a role that an account has in the project, under a condition where it has one.
type gceBinding struct{ role, condition string }

// SetAccount makes a service account that has some roles in the project.
func (g *GCE) SetAccount(email string, roles ...string) {
	g.locked(func() {
		g.policy[email] = nil
		for _, role := range roles {
			g.policy[email] = append(g.policy[email], gceBinding{role: role})
		}
	})
}

// Bind gives an account that there is a role in the project under a condition; an empty one always
// holds.
func (g *GCE) Bind(email, role, condition string) {
	g.locked(func() { g.policy[email] = append(g.policy[email], gceBinding{role, condition}) })
}

// LetActAs lets an account have machines run as another, or as itself.
func (g *GCE) LetActAs(account, user string) {
	g.locked(func() { g.users[account] = append(g.users[account], user) })
}

// tokenOf is the prefix of the access tokens of service accounts.
const tokenOf = "ya29.account."

// Credentials are the service account that a machine of a name runs as, and an access token of
// it; both empty where it runs as nobody.
func (g *GCE) Credentials(name string) (email, token string) {
	g.locked(func() {
		for _, at := range g.instances.keys() {
			if i, _ := g.instances.get(at); i.Name == name && len(i.ServiceAccounts) > 0 {
				email = g.emailOf(i.ServiceAccounts[0])
				token = tokenOf + email
			}
		}
	})
	return email, token
}

// emailOf is the address of an account that an instance names.
func (g *GCE) emailOf(a GCEServiceAccount) string {
	if a.Email == "default" {
		return g.account
	}
	return a.Email
}

// caller is the account that a request is of; empty = the operator's.
func caller(r *http.Request) string {
	email, isAccount := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer "+tokenOf)
	if !isAccount {
		return ""
	}
	return email
}

// has reports whether the operator has a permission.
func (g *GCE) has(permission string) bool {
	return !slices.Contains(g.denied, permission) && (g.allowed == nil || slices.Contains(g.allowed, permission))
}

// may reports whether the caller of a request has a permission on a resource.
func (g *GCE) may(r *http.Request, on gceResource, permission string) (bool, *gceError) {
	email := caller(r)
	if email == "" {
		return g.has(permission), nil
	}
	for _, b := range g.policy[email] {
		if !slices.Contains(g.roles[b.role], permission) {
			continue
		}
		holds, err := on.holds(b.condition)
		if err != nil {
			return false, gceFail(http.StatusInternalServerError, "backendError", "%v", err)
		}
		if holds {
			return true, nil
		}
	}
	return false, nil
}

// require refuses a caller who lacks one of some permissions on a resource.
func (g *GCE) require(r *http.Request, on gceResource, permissions ...string) *gceError {
	for _, permission := range permissions {
		if permission == "" {
			continue
		}
		may, fail := g.may(r, on, permission)
		if fail != nil {
			return fail
		}
		if !may {
			return gceFail(http.StatusForbidden, "forbidden", "Required '%s' permission for '%s'", permission, on.name)
		}
	}
	return nil
}

// whole is the project as a resource.
func (g *GCE) whole() gceResource {
	return gceResource{"cloudresourcemanager.googleapis.com/Project", "projects/" + g.project}
}

// thing is something in a zone or a region as a resource: Instance, zones/us-central1-a/instances/x.
func (g *GCE) thing(kind, path string) gceResource {
	return gceResource{"compute.googleapis.com/" + kind, "projects/" + g.project + "/" + path}
}

// resourceOf is what a request is about.
func (g *GCE) resourceOf(r *http.Request) gceResource {
	if zone, name := r.PathValue("zone"), r.PathValue("name"); zone != "" && name != "" && strings.Contains(r.URL.Path, "/instances/") {
		return g.thing("Instance", "zones/"+zone+"/instances/"+name)
	}
	return g.whole()
}

// mayInsert refuses a caller who may not make an instance with all that belongs to it.
func (g *GCE) mayInsert(r *http.Request, zone string, i GCEInstance) *gceError {
	for _, needed := range append([]string{"compute.instances.create"}, gceBeside(i)...) {
		on := g.thing("Instance", "zones/"+zone+"/instances/"+i.Name)
		switch {
		case strings.HasPrefix(needed, "compute.disks."):
			on = g.thing("Disk", "zones/"+zone+"/disks/"+i.Name)
		case strings.HasPrefix(needed, "compute.subnetworks."):
			on = g.thing("Subnetwork", "regions/"+gceRegion(zone)+"/subnetworks/"+path.Base(i.NetworkInterfaces[0].Subnet))
		}
		if fail := g.require(r, on, needed); fail != nil {
			return fail
		}
	}
	return nil
}

// gcePermission is what a caller needs for an action.
func gcePermission(action string) string {
	for verb, permission := range map[string]string{".insert": ".create", ".aggregatedList": ".list", ".getFromFamily": ".get"} {
		if noun, ok := strings.CutSuffix(action, verb); ok {
			action = noun + permission
		}
	}
	if action == "compute.images.get" {
		return "" // everybody may look at public images
	}
	return action
}

// gceBeside returns the permissions that creating an instance needs in addition, by its fields.
func gceBeside(i GCEInstance) []string {
	needs := []string{"compute.disks.create", "compute.subnetworks.use"}
	if len(i.Disks) != 1 || len(i.NetworkInterfaces) != 1 {
		return needs // it is refused for that
	}
	for permission, needed := range map[string]bool{
		"compute.disks.setLabels":             len(i.Disks[0].InitializeParams.Labels) > 0,
		"compute.instances.setLabels":         len(i.Labels) > 0,
		"compute.instances.setMetadata":       len(i.Metadata.Items) > 0,
		"compute.instances.setServiceAccount": len(i.ServiceAccounts) > 0,
		"compute.instances.setTags":           len(i.Tags.Items) > 0,
		"compute.subnetworks.useExternalIp":   len(i.NetworkInterfaces[0].AccessConfigs) > 0,
	} {
		if needed {
			needs = append(needs, permission)
		}
	}
	slices.Sort(needs)
	return needs
}

// gceEditor are the permissions that the fake knows.
func gceEditor() []string {
	all := map[string]bool{"compute.networks.updatePolicy": true}
	for _, route := range gceRoutes {
		if permission := gcePermission(route.action); strings.HasPrefix(permission, "compute.") {
			all[permission] = true
		}
	}
	for _, permission := range gceBeside(GCEInstance{
		Disks:  []GCEDisk{{InitializeParams: GCEDiskParams{Labels: map[string]string{"a": "b"}}}},
		Labels: map[string]string{"a": "b"}, Metadata: GCEMetadata{Items: make([]GCEMetadataItem, 1)}, Tags: GCETags{Items: make([]string, 1)},
		ServiceAccounts: make([]GCEServiceAccount, 1), NetworkInterfaces: []GCEInterface{{AccessConfigs: make([]GCEAccessConfig, 1)}},
	}) {
		all[permission] = true
	}
	return slices.Sorted(maps.Keys(all))
}

// actsAs is how an operation ends whose caller may not run machines as an account.
func (g *GCE) actsAs(i GCEInstance) *GCEFailure {
	for _, account := range i.ServiceAccounts {
		email := g.emailOf(account)
		if _, known := g.policy[email]; !known {
			return &GCEFailure{Code: "EXTERNAL_RESOURCE_NOT_FOUND", Message: "The resource '" + email + "' of type 'serviceAccount' was not found."}
		}
		if i.maker == "" && !g.has("iam.serviceAccounts.actAs") || i.maker != "" && !slices.Contains(g.users[email], i.maker) {
			return &GCEFailure{Code: "SERVICE_ACCOUNT_ACCESS_DENIED", Message: "The user does not have access to service account '" + email + "'. Ask a project owner to grant you the iam.serviceAccountUser role on the service account"}
		}
	}
	return nil
}

// askProject answers which of some permissions the caller has, or who has which roles.
func (g *GCE) askProject(r *http.Request) (any, *gceError) {
	switch _, verb, _ := strings.Cut(r.PathValue("verb"), ":"); verb {
	case "testIamPermissions":
		return g.testPermissions(r)
	case "getIamPolicy":
		if fail := g.require(r, g.whole(), "resourcemanager.projects.getIamPolicy"); fail != nil {
			return nil, fail
		}
		var asked struct {
			Options struct {
				Version int `json:"requestedPolicyVersion"`
			} `json:"options"`
		}
		if fail := readGCE(r, &asked); fail != nil {
			return nil, fail
		}
		var bindings []map[string]any
		for _, email := range slices.Sorted(maps.Keys(g.policy)) {
			for _, b := range g.policy[email] {
				bindings = append(bindings, b.document(email, asked.Options.Version))
			}
		}
		return map[string]any{"version": 3, "bindings": bindings}, nil
	}
	return nil, gceFail(http.StatusNotFound, "notFound", "Method not found.")
}

// document is a binding of an account as policies of a version show it: those before 3 know of no
// conditions, and show that there is one by the role's name.
func (b gceBinding) document(email string, version int) map[string]any {
	d := map[string]any{"role": b.role, "members": []string{"serviceAccount:" + email}}
	switch {
	case b.condition != "" && version < 3:
		d["role"] = b.role + "_withcond_0123456789abcdef"
	case b.condition != "":
		d["condition"] = map[string]string{"title": "of " + email, "expression": b.condition}
	}
	return d
}

// askAccount answers which of some permissions the caller has on a service account.
func (g *GCE) askAccount(r *http.Request) (any, *gceError) {
	email, verb, _ := strings.Cut(r.PathValue("account"), ":")
	if verb != "testIamPermissions" {
		return nil, gceFail(http.StatusNotFound, "notFound", "Method not found.")
	}
	if _, known := g.policy[email]; !known {
		return nil, gceFail(http.StatusNotFound, "notFound", "Unknown service account")
	}
	return g.testPermissions(r)
}

func (g *GCE) testPermissions(r *http.Request) (any, *gceError) {
	var asked struct {
		Permissions []string `json:"permissions"`
	}
	if fail := readGCE(r, &asked); fail != nil {
		return nil, fail
	}
	held := slices.DeleteFunc(asked.Permissions, func(p string) bool { may, _ := g.may(r, g.whole(), p); return !may })
	return map[string]any{"permissions": held}, nil
}

func (g *GCE) getRole(r *http.Request) (any, *gceError) {
	name := strings.TrimPrefix(r.URL.Path, "/v1/")
	permissions, ok := g.roles[name]
	if !ok {
		return nil, gceFail(http.StatusNotFound, "notFound", "The role named %s was not found.", name)
	}
	return map[string]any{"name": name, "includedPermissions": permissions}, nil
}
