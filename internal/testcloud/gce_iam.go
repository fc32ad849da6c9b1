package testcloud

import (
	"maps"
	"net/http"
	"path"
	"slices"
	"strings"
)

// SetOperatorPermissions restricts the operator to these permissions.
func (g *GCE) SetOperatorPermissions(permissions ...string) {
	g.withLock(func() { g.allowed = permissions })
}

// SetRole creates or replaces an IAM role of the project, projects/PROJECT/roles/NAME, or a predefined role.
func (g *GCE) SetRole(role string, permissions ...string) {
	g.withLock(func() { g.roles[role] = permissions })
}

// gceBinding is an IAM role of a service account in the project, with an optional condition.
type gceBinding struct{ role, condition string }

// CreateServiceAccount creates a service account with IAM roles in the project.
func (g *GCE) CreateServiceAccount(email string, roles ...string) {
	g.withLock(func() {
		g.policy[email] = nil
		for _, role := range roles {
			g.policy[email] = append(g.policy[email], gceBinding{role: role})
		}
	})
}

// BindRole grants an IAM role in the project to an existing service account, under a condition. An empty
// condition is always true.
func (g *GCE) BindRole(email, role, condition string) {
	g.withLock(func() { g.policy[email] = append(g.policy[email], gceBinding{role, condition}) })
}

// AllowActAs allows a user to attach a service account to machines.
func (g *GCE) AllowActAs(account, user string) {
	g.withLock(func() { g.users[account] = append(g.users[account], user) })
}

// accountTokenPrefix is the prefix of the access tokens of service accounts.
const accountTokenPrefix = "ya29.account."

// MachineCredentials returns the service account of the machine with a name, and an access token for it; both
// are empty if the machine has none.
func (g *GCE) MachineCredentials(name string) (email, token string) {
	g.withLock(func() {
		for _, at := range g.instances.keys() {
			if i, _ := g.instances.get(at); i.Name == name && len(i.ServiceAccounts) > 0 {
				email = g.emailOf(i.ServiceAccounts[0])
				token = accountTokenPrefix + email
			}
		}
	})
	return email, token
}

// emailOf returns the email address of an instance's service account.
func (g *GCE) emailOf(a GCEServiceAccount) string {
	if a.Email == "default" {
		return g.account
	}
	return a.Email
}

// callerAccount returns the service account that sent a request; empty = the operator.
func callerAccount(r *http.Request) string {
	email, isAccount := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer "+accountTokenPrefix)
	if !isAccount {
		return ""
	}
	return email
}

// operatorHas reports whether the operator has a permission.
func (g *GCE) operatorHas(permission string) bool {
	return !slices.Contains(g.denied, permission) && (g.allowed == nil || slices.Contains(g.allowed, permission))
}

// isAllowed reports whether the caller of a request has a permission on a resource.
func (g *GCE) isAllowed(r *http.Request, on gceResource, permission string) (bool, *gceError) {
	email := callerAccount(r)
	if email == "" {
		return g.operatorHas(permission), nil
	}
	for _, b := range g.policy[email] {
		if !slices.Contains(g.roles[b.role], permission) {
			continue
		}
		holds, err := on.satisfies(b.condition)
		if err != nil {
			return false, newGCEError(http.StatusInternalServerError, "backendError", "%v", err)
		}
		if holds {
			return true, nil
		}
	}
	return false, nil
}

// require rejects a caller who does not have all of the permissions on a resource.
func (g *GCE) require(r *http.Request, on gceResource, permissions ...string) *gceError {
	for _, permission := range permissions {
		if permission == "" {
			continue
		}
		allowed, fail := g.isAllowed(r, on, permission)
		if fail != nil {
			return fail
		}
		if !allowed {
			return newGCEError(http.StatusForbidden, "forbidden", "Required '%s' permission for '%s'", permission, on.name)
		}
	}
	return nil
}

// projectResource returns the project as a resource.
func (g *GCE) projectResource() gceResource {
	return gceResource{"cloudresourcemanager.googleapis.com/Project", "projects/" + g.project}
}

// computeResource returns a resource of a zone or region: Instance, zones/us-central1-a/instances/x.
func (g *GCE) computeResource(kind, path string) gceResource {
	return gceResource{"compute.googleapis.com/" + kind, "projects/" + g.project + "/" + path}
}

// requestedResource returns the resource that a request refers to.
func (g *GCE) requestedResource(r *http.Request) gceResource {
	if zone, name := r.PathValue("zone"), r.PathValue("name"); zone != "" && name != "" && strings.Contains(r.URL.Path, "/instances/") {
		return g.computeResource("Instance", "zones/"+zone+"/instances/"+name)
	}
	return g.projectResource()
}

// checkInsertPermissions rejects a caller without the permissions to create an instance and the resources
// that it uses.
func (g *GCE) checkInsertPermissions(r *http.Request, zone string, i GCEInstance) *gceError {
	for _, needed := range append([]string{"compute.instances.create"}, gceInsertPermissions(i)...) {
		on := g.computeResource("Instance", "zones/"+zone+"/instances/"+i.Name)
		switch {
		case strings.HasPrefix(needed, "compute.disks."):
			on = g.computeResource("Disk", "zones/"+zone+"/disks/"+i.Name)
		case strings.HasPrefix(needed, "compute.subnetworks."):
			on = g.computeResource("Subnetwork", "regions/"+gceRegion(zone)+"/subnetworks/"+path.Base(i.NetworkInterfaces[0].Subnet))
		}
		if fail := g.require(r, on, needed); fail != nil {
			return fail
		}
	}
	return nil
}

// gcePermission returns the permission that an action requires.
func gcePermission(action string) string {
	for verb, permission := range map[string]string{".insert": ".create", ".aggregatedList": ".list", ".getFromFamily": ".get"} {
		if noun, ok := strings.CutSuffix(action, verb); ok {
			action = noun + permission
		}
	}
	if action == "compute.images.get" {
		return "" // public images require no permission
	}
	return action
}

// gceInsertPermissions returns the additional permissions that creating an instance requires, by its fields.
func gceInsertPermissions(i GCEInstance) []string {
	needs := []string{"compute.disks.create", "compute.subnetworks.use"}
	if len(i.Disks) != 1 || len(i.NetworkInterfaces) != 1 {
		return needs // the instance is rejected later
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

// gceKnownPermissions returns the emulated permissions.
func gceKnownPermissions() []string {
	all := map[string]bool{"compute.networks.updatePolicy": true}
	for _, route := range gceRoutes {
		if permission := gcePermission(route.action); strings.HasPrefix(permission, "compute.") {
			all[permission] = true
		}
	}
	for _, permission := range gceInsertPermissions(GCEInstance{
		Disks:  []GCEDisk{{InitializeParams: GCEDiskParams{Labels: map[string]string{"a": "b"}}}},
		Labels: map[string]string{"a": "b"}, Metadata: GCEMetadata{Items: make([]GCEMetadataItem, 1)}, Tags: GCETags{Items: make([]string, 1)},
		ServiceAccounts: make([]GCEServiceAccount, 1), NetworkInterfaces: []GCEInterface{{AccessConfigs: make([]GCEAccessConfig, 1)}},
	}) {
		all[permission] = true
	}
	return slices.Sorted(maps.Keys(all))
}

// checkActAs returns the failure of an operation whose caller may not act as the instance's service account.
func (g *GCE) checkActAs(i GCEInstance) *GCEFailure {
	for _, account := range i.ServiceAccounts {
		email := g.emailOf(account)
		if _, known := g.policy[email]; !known {
			return &GCEFailure{Code: "EXTERNAL_RESOURCE_NOT_FOUND", Message: "The resource '" + email + "' of type 'serviceAccount' was not found."}
		}
		if i.creator == "" && !g.operatorHas("iam.serviceAccounts.actAs") || i.creator != "" && !slices.Contains(g.users[email], i.creator) {
			return &GCEFailure{Code: "SERVICE_ACCOUNT_ACCESS_DENIED", Message: "The user does not have access to service account '" + email + "'. Ask a project owner to grant you the iam.serviceAccountUser role on the service account"}
		}
	}
	return nil
}

// handleProjectVerb serves testIamPermissions and getIamPolicy of the project.
func (g *GCE) handleProjectVerb(r *http.Request) (any, *gceError) {
	switch _, verb, _ := strings.Cut(r.PathValue("verb"), ":"); verb {
	case "testIamPermissions":
		return g.testPermissions(r)
	case "getIamPolicy":
		if fail := g.require(r, g.projectResource(), "resourcemanager.projects.getIamPolicy"); fail != nil {
			return nil, fail
		}
		var requested struct {
			Options struct {
				Version int `json:"requestedPolicyVersion"`
			} `json:"options"`
		}
		if fail := decodeGCE(r, &requested); fail != nil {
			return nil, fail
		}
		var bindings []map[string]any
		for _, email := range slices.Sorted(maps.Keys(g.policy)) {
			for _, b := range g.policy[email] {
				bindings = append(bindings, b.document(email, requested.Options.Version))
			}
		}
		return map[string]any{"version": 3, "bindings": bindings}, nil
	}
	return nil, newGCEError(http.StatusNotFound, "notFound", "Method not found.")
}

// document returns a binding in the format of a policy version. Versions before 3 do not support conditions:
// they indicate a condition by a suffix of the role's name.
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

// handleAccountVerb serves testIamPermissions, getIamPolicy and generateAccessToken of a service account.
func (g *GCE) handleAccountVerb(r *http.Request) (any, *gceError) {
	email, verb, _ := strings.Cut(r.PathValue("account"), ":")
	if !slices.Contains([]string{"testIamPermissions", "generateAccessToken", "getIamPolicy"}, verb) {
		return nil, newGCEError(http.StatusNotFound, "notFound", "Method not found.")
	}
	if _, known := g.policy[email]; !known {
		return nil, newGCEError(http.StatusNotFound, "notFound", "Unknown service account")
	}
	switch verb {
	case "generateAccessToken":
		return g.generateAccessToken(r, email)
	case "getIamPolicy":
		if fail := g.require(r, g.projectResource(), "iam.serviceAccounts.getIamPolicy"); fail != nil {
			return nil, fail
		}
		var bindings []map[string]any
		if members := g.federated[email]; len(members) > 0 {
			bindings = append(bindings, map[string]any{"role": "roles/iam.workloadIdentityUser", "members": members})
		}
		return map[string]any{"version": 1, "bindings": bindings}, nil
	}
	return g.testPermissions(r)
}

func (g *GCE) testPermissions(r *http.Request) (any, *gceError) {
	var requested struct {
		Permissions []string `json:"permissions"`
	}
	if fail := decodeGCE(r, &requested); fail != nil {
		return nil, fail
	}
	granted := slices.DeleteFunc(requested.Permissions, func(p string) bool { allowed, _ := g.isAllowed(r, g.projectResource(), p); return !allowed })
	return map[string]any{"permissions": granted}, nil
}

func (g *GCE) getRole(r *http.Request) (any, *gceError) {
	name := strings.TrimPrefix(r.URL.Path, "/v1/")
	permissions, ok := g.roles[name]
	if !ok {
		return nil, newGCEError(http.StatusNotFound, "notFound", "The role named %s was not found.", name)
	}
	return map[string]any{"name": name, "includedPermissions": permissions}, nil
}
