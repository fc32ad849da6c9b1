package gcp

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"

	"google.golang.org/api/googleapi"

	"skyserve/internal/service"
	"skyserve/provision"
)

// balancerPermissions are the permissions of the balancers' service account. With them a controller can
// launch and terminate replicas, and nothing else. docs/clouds.md lists the role with these permissions.
var balancerPermissions = []string{
	"compute.disks.create", "compute.disks.setLabels",
	"compute.instances.create", "compute.instances.delete", "compute.instances.get", "compute.instances.getGuestAttributes", "compute.instances.list",
	"compute.instances.setLabels", "compute.instances.setMetadata", "compute.instances.setTags",
	"compute.machineTypes.list", "compute.projects.get", "compute.regions.get", "compute.reservations.get", "compute.subnetworks.use", "compute.subnetworks.useExternalIp", "compute.zoneOperations.get",
}

// operatorPermissions are the permissions that an operator requires in addition.
var operatorPermissions = []string{
	"compute.firewalls.create", "compute.firewalls.delete", "compute.firewalls.get", "compute.firewalls.list", "compute.firewalls.update",
	"compute.globalOperations.get", setAccount, "compute.networks.get", "compute.networks.updatePolicy", "compute.subnetworks.get",
}

// The permissions to attach service accounts to machines.
const (
	actAs      = "iam.serviceAccounts.actAs"
	setAccount = "compute.instances.setServiceAccount"
)

// checkPermissions checks that the caller has all required permissions. It uses the Resource Manager API.
// If that API is disabled in the project, the finding contains that error.
func (p *Provider) checkPermissions(ctx context.Context) provision.CheckResult {
	required, roles := slices.Concat(balancerPermissions, operatorPermissions), "Compute Instance Admin (v1) and Compute Security Admin"
	if p.cfg.Downloads {
		required, roles = append(required, programPermissions...), "Compute Instance Admin (v1), Compute Security Admin and Storage Admin"
	}
	slices.Sort(required)
	granted, err := p.grantedPermissions(ctx, required)
	if err != nil {
		f := failedFinding(service.CloudGCP, err)
		f.Hint = cmp.Or(f.Hint, "enable the API for this check: gcloud services enable cloudresourcemanager.googleapis.com")
		return f
	}
	if missing := difference(required, granted); len(missing) > 0 {
		return provision.CheckResult{
			Where: service.CloudGCP, Message: "missing permissions: " + strings.Join(missing, ", "),
			Hint: "grant the roles " + roles,
		}
	}
	return provision.CheckResult{Where: service.CloudGCP, OK: true, Message: fmt.Sprintf("all %d permissions granted", len(required))}
}

// difference returns the elements of all that are not in some.
func difference(all, some []string) []string {
	return slices.DeleteFunc(slices.Clone(all), func(p string) bool { return slices.Contains(some, p) })
}

// grantedPermissions returns the subset of permissions that the caller has in the project.
func (p *Provider) grantedPermissions(ctx context.Context, permissions []string) ([]string, error) {
	s, err := p.openSession(ctx)
	if err != nil {
		return nil, err
	}
	var response struct{ Permissions []string }
	err = p.callAPI(ctx, http.MethodPost, s.resourceManager+"/v1/projects/"+s.project+":testIamPermissions", map[string]any{"permissions": permissions}, &response)
	if err != nil {
		return nil, wrapError(err, "testing the permissions in project %s", s.project)
	}
	return response.Permissions, nil
}

// callAPI calls an API for which this package has no client library. in is the request body, nil for none.
// It decodes the response body into out.
func (p *Provider) callAPI(ctx context.Context, method, url string, in, out any) error {
	s, err := p.openSession(ctx)
	if err != nil {
		return err
	}
	var body io.Reader // a GET must not have a body: Google rejects it
	if in != nil {
		text, err := json.Marshal(in)
		if err != nil {
			return err
		}
		body = bytes.NewReader(text)
	}
	r, err := http.NewRequestWithContext(ctx, method, url, body)
	if err != nil {
		return err
	}
	r.Header.Set("Content-Type", "application/json")
	response, err := s.client(ctx).Do(r)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if err := googleapi.CheckResponse(response); err != nil {
		return err
	}
	text, err := io.ReadAll(response.Body)
	if err != nil {
		return err
	}
	return json.Unmarshal(text, out)
}
