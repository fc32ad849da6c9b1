package gcp

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"path"
	"slices"
	"strings"

	compute "cloud.google.com/go/compute/apiv1"
	"cloud.google.com/go/compute/apiv1/computepb"
	"google.golang.org/api/googleapi"

	"skyserve/internal/service"
	"skyserve/provision"
)

// permissions are what the methods of a provider need.
var permissions = []string{
	"compute.disks.create", "compute.disks.setLabels",
	"compute.firewalls.create", "compute.firewalls.delete", "compute.firewalls.get", "compute.firewalls.list", "compute.firewalls.update",
	"compute.globalOperations.get", "compute.images.useReadOnly",
	"compute.instances.create", "compute.instances.delete", "compute.instances.get", "compute.instances.getGuestAttributes", "compute.instances.list",
	"compute.instances.setLabels", "compute.instances.setMetadata", "compute.instances.setServiceAccount", "compute.instances.setTags",
	"compute.machineTypes.list", "compute.networks.get", "compute.networks.updatePolicy", "compute.projects.get", "compute.regions.get",
	"compute.subnetworks.use", "compute.subnetworks.useExternalIp", "compute.zoneOperations.get",
}

// Doctor looks at everything that launching needs and makes nothing. After a
// finding that leaves nothing else to look at, it is the last one.
func (p *Provider) Doctor(ctx context.Context) []provision.Finding {
	project, err := p.project(ctx)
	if err != nil {
		return []provision.Finding{badly(service.CloudGCP, err)}
	}
	findings := []provision.Finding{{Where: service.CloudGCP, OK: true, What: "project " + project.GetName() + " can be read"}}
	findings = append(findings, p.findPermissions(ctx), p.findNetwork(ctx), p.findAccount(project))
	for _, image := range []string{imagePlain, imageWithGPU} {
		findings = append(findings, p.findImage(ctx, image))
	}
	for _, place := range p.cfg.Regions {
		findings = append(findings, p.findRegion(ctx, place))
	}
	return findings
}

// badly is a finding that something failed.
func badly(where string, err error) provision.Finding {
	f := provision.Finding{Where: where, What: err.Error()}
	var denied *provision.CredentialsError
	if errors.As(err, &denied) {
		f.Hint = denied.Hint
	}
	return f
}

// findPermissions asks which permissions the caller lacks. The Resource Manager answers that,
// whose API may be switched off in a project; then nothing can be said.
func (p *Provider) findPermissions(ctx context.Context) provision.Finding {
	held, err := p.held(ctx)
	if err != nil {
		f := badly(service.CloudGCP, err)
		f.Hint = "to have permissions checked: gcloud services enable cloudresourcemanager.googleapis.com"
		return f
	}
	lacking := slices.DeleteFunc(slices.Clone(permissions), func(p string) bool { return slices.Contains(held, p) })
	if len(lacking) > 0 {
		return provision.Finding{
			Where: service.CloudGCP, What: "permissions are missing: " + strings.Join(lacking, ", "),
			Hint: "grant the roles Compute Instance Admin (v1) and Compute Security Admin",
		}
	}
	return provision.Finding{Where: service.CloudGCP, OK: true, What: fmt.Sprintf("all %d permissions are there", len(permissions))}
}

// held are those of the needed permissions that the caller has in the project.
func (p *Provider) held(ctx context.Context) ([]string, error) {
	s, err := p.open(ctx)
	if err != nil {
		return nil, err
	}
	body, err := json.Marshal(map[string][]string{"permissions": permissions})
	if err != nil {
		return nil, err
	}
	url := fmt.Sprintf("%s/v1/projects/%s:testIamPermissions", s.resource, s.project)
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	r.Header.Set("Content-Type", "application/json")
	answer, err := s.client(ctx).Do(r)
	if err != nil {
		return nil, explain(err, "asking for the permissions in project %s", s.project)
	}
	defer answer.Body.Close()
	if err := googleapi.CheckResponse(answer); err != nil {
		return nil, explain(err, "asking for the permissions in project %s", s.project)
	}
	var reply struct {
		Permissions []string `json:"permissions"`
	}
	text, err := io.ReadAll(answer.Body)
	if err == nil {
		err = json.Unmarshal(text, &reply)
	}
	if err != nil {
		return nil, fmt.Errorf("reading the permissions in project %s: %w", s.project, err)
	}
	return reply.Permissions, nil
}

func (p *Provider) findNetwork(ctx context.Context) provision.Finding {
	client, project, err := through(ctx, p, compute.NewNetworksRESTClient)
	if err != nil {
		return badly(service.CloudGCP, err)
	}
	_, err = client.Get(ctx, &computepb.GetNetworkRequest{Project: project, Network: p.cfg.Network})
	switch {
	case isMissing(err):
		return provision.Finding{
			Where: service.CloudGCP, What: "there is no network " + p.cfg.Network,
			Hint: "make one: gcloud compute networks create " + p.cfg.Network + " --subnet-mode=auto",
		}
	case err != nil:
		return badly(service.CloudGCP, explain(err, "reading network %s", p.cfg.Network))
	}
	return provision.Finding{Where: service.CloudGCP, OK: true, What: "network " + p.cfg.Network + " is there"}
}

// findAccount says what balancers run as.
func (p *Provider) findAccount(project *computepb.Project) provision.Finding {
	account := p.cfg.Accounts[provision.KindBalancer]
	if account == "" {
		account = project.GetDefaultServiceAccount()
	}
	if account == "" {
		return provision.Finding{
			Where: service.CloudGCP, What: "the project has no default account for balancers to run as",
			Hint: "name a service account that has the role Compute Instance Admin (v1)",
		}
	}
	return provision.Finding{Where: service.CloudGCP, OK: true, What: "balancers run as " + account}
}

func (p *Provider) findImage(ctx context.Context, image string) provision.Finding {
	client, _, err := through(ctx, p, compute.NewImagesRESTClient)
	if err != nil {
		return badly(service.CloudGCP, err)
	}
	project, family := strings.Split(image, "/")[1], path.Base(image)
	found, err := client.GetFromFamily(ctx, &computepb.GetFromFamilyImageRequest{Project: project, Family: family})
	if err != nil {
		return badly(service.CloudGCP, explain(err, "finding the current image of %s", family))
	}
	return provision.Finding{Where: service.CloudGCP, OK: true, What: "machines boot " + found.GetName()}
}

func (p *Provider) findRegion(ctx context.Context, place string) provision.Finding {
	where := string(regionNamed(place))
	region, err := p.region(ctx, place)
	if err != nil {
		return badly(where, err)
	}
	return provision.Finding{Where: where, OK: true, What: fmt.Sprintf("it has %d zones", len(region.GetZones()))}
}
