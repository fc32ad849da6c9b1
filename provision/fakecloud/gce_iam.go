package fakecloud

import (
	"maps"
	"net/http"
	"slices"
	"strings"
)

// Allow leaves the caller these permissions and no others.
func (g *GCE) Allow(permissions ...string) { g.locked(func() { g.allowed = permissions }) }

// SetRole makes a role of the project, projects/PROJECT/roles/NAME, or a predefined one.
func (g *GCE) SetRole(role string, permissions ...string) {
	g.locked(func() { g.roles[role] = permissions })
}

// SetAccount makes a service account that has some roles in the project.
func (g *GCE) SetAccount(email string, roles ...string) {
	g.locked(func() { g.policy[email] = roles })
}

// tokenOf begins the access tokens of service accounts.
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

// has says whether the caller has a permission.
func (g *GCE) has(permission string) bool {
	return !slices.Contains(g.denied, permission) && (g.allowed == nil || slices.Contains(g.allowed, permission))
}

// require refuses a caller who lacks one of some permissions.
func (g *GCE) require(permissions ...string) *gceError {
	for _, permission := range permissions {
		if permission != "" && !g.has(permission) {
			return gceFail(http.StatusForbidden, "forbidden", "Required '%s' permission for 'projects/%s'", permission, g.project)
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

// gceBeside are the permissions that making an instance needs beside its own, by what it says.
func gceBeside(i GCEInstance) []string {
	needs := []string{"compute.disks.create", "compute.subnetworks.use"}
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
		if !g.has("iam.serviceAccounts.actAs") {
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
		if fail := g.require("resourcemanager.projects.getIamPolicy"); fail != nil {
			return nil, fail
		}
		var bindings []map[string]any
		for _, email := range slices.Sorted(maps.Keys(g.policy)) {
			for _, role := range g.policy[email] {
				bindings = append(bindings, map[string]any{"role": role, "members": []string{"serviceAccount:" + email}})
			}
		}
		return map[string]any{"version": 1, "bindings": bindings}, nil
	}
	return nil, gceFail(http.StatusNotFound, "notFound", "Method not found.")
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
	held := slices.DeleteFunc(asked.Permissions, func(p string) bool { return !g.has(p) })
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
