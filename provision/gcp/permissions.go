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

// balancerPermissions are the permissions of the account of balancers: a controller launches and
// terminates replicas, and nothing else. docs/clouds.md shows the role with them.
var balancerPermissions = []string{
	"compute.disks.create", "compute.disks.setLabels",
	"compute.instances.create", "compute.instances.delete", "compute.instances.get", "compute.instances.getGuestAttributes", "compute.instances.list",
	"compute.instances.setLabels", "compute.instances.setMetadata", "compute.instances.setTags",
	"compute.machineTypes.list", "compute.projects.get", "compute.regions.get", "compute.subnetworks.use", "compute.subnetworks.useExternalIp", "compute.zoneOperations.get",
}

// operatorPermissions are what an operator needs in addition.
var operatorPermissions = []string{
	"compute.firewalls.create", "compute.firewalls.delete", "compute.firewalls.get", "compute.firewalls.list", "compute.firewalls.update",
	"compute.globalOperations.get", "compute.instances.setServiceAccount", "compute.networks.get", "compute.networks.updatePolicy", "compute.subnetworks.get",
}

const actAs = "iam.serviceAccounts.actAs"

// checkPermissions checks which permissions the caller lacks. It needs the Resource Manager API, which
// may be disabled in a project; then the finding says so.
func (p *Provider) checkPermissions(ctx context.Context) provision.CheckResult {
	needed := slices.Concat(balancerPermissions, operatorPermissions)
	slices.Sort(needed)
	held, err := p.grantedPermissions(ctx, needed)
	if err != nil {
		f := failedFinding(service.CloudGCP, err)
		f.Hint = cmp.Or(f.Hint, "to check permissions: gcloud services enable cloudresourcemanager.googleapis.com")
		return f
	}
	if lacking := difference(needed, held); len(lacking) > 0 {
		return provision.CheckResult{
			Where: service.CloudGCP, Message: "missing permissions: " + strings.Join(lacking, ", "),
			Hint: "grant the roles Compute Instance Admin (v1) and Compute Security Admin",
		}
	}
	return provision.CheckResult{Where: service.CloudGCP, OK: true, Message: fmt.Sprintf("all %d permissions granted", len(needed))}
}

// difference returns the elements of all that are not in some.
func difference(all, some []string) []string {
	return slices.DeleteFunc(slices.Clone(all), func(p string) bool { return slices.Contains(some, p) })
}

// grantedPermissions returns the subset of permissions that the caller has in the project.
func (p *Provider) grantedPermissions(ctx context.Context, asked []string) ([]string, error) {
	s, err := p.openSession(ctx)
	if err != nil {
		return nil, err
	}
	var reply struct{ Permissions []string }
	err = p.callAPI(ctx, http.MethodPost, s.resourceManager+"/v1/projects/"+s.project+":testIamPermissions", map[string]any{"permissions": asked}, &reply)
	if err != nil {
		return nil, wrapError(err, "testing the permissions in project %s", s.project)
	}
	return reply.Permissions, nil
}

// callAPI calls an API for which this package has no library.
func (p *Provider) callAPI(ctx context.Context, method, url string, question, reply any) error {
	s, err := p.openSession(ctx)
	if err != nil {
		return err
	}
	var body io.Reader // a GET must not have a body: Google rejects it
	if question != nil {
		text, err := json.Marshal(question)
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
	answer, err := s.client(ctx).Do(r)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if err := googleapi.CheckResponse(answer); err != nil {
		return err
	}
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		return err
	}
	return json.Unmarshal(text, reply)
}
