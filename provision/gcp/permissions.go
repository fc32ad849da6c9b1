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

	"cloud.google.com/go/compute/apiv1/computepb"
	"google.golang.org/api/googleapi"

	"skyserve/internal/service"
	"skyserve/provision"
)

// balancerPermissions are what the account of balancers needs: a controller launches and
// ends replicas, and nothing else. docs/clouds.md makes a role of them.
var balancerPermissions = []string{
	"compute.disks.create", "compute.disks.setLabels",
	"compute.instances.create", "compute.instances.delete", "compute.instances.get", "compute.instances.getGuestAttributes", "compute.instances.list",
	"compute.instances.setLabels", "compute.instances.setMetadata", "compute.instances.setTags",
	"compute.machineTypes.list", "compute.projects.get", "compute.regions.get", "compute.subnetworks.use", "compute.subnetworks.useExternalIp", "compute.zoneOperations.get",
}

// operatorPermissions are what an operator needs beside these.
var operatorPermissions = []string{
	"compute.firewalls.create", "compute.firewalls.delete", "compute.firewalls.get", "compute.firewalls.list", "compute.firewalls.update",
	"compute.globalOperations.get", "compute.instances.setServiceAccount", "compute.networks.get", "compute.networks.updatePolicy", "compute.subnetworks.get",
}

const actAs = "iam.serviceAccounts.actAs"

// findPermissions asks which permissions the caller lacks. The Resource Manager answers that,
// whose API may be switched off in a project; then nothing can be said.
func (p *Provider) findPermissions(ctx context.Context) provision.Finding {
	needed := slices.Concat(balancerPermissions, operatorPermissions)
	slices.Sort(needed)
	held, err := p.held(ctx, needed)
	if err != nil {
		f := badly(service.CloudGCP, err)
		f.Hint = cmp.Or(f.Hint, "to have permissions checked: gcloud services enable cloudresourcemanager.googleapis.com")
		return f
	}
	if lacking := without(needed, held); len(lacking) > 0 {
		return provision.Finding{
			Where: service.CloudGCP, What: "permissions are missing: " + strings.Join(lacking, ", "),
			Hint: "grant the roles Compute Instance Admin (v1) and Compute Security Admin",
		}
	}
	return provision.Finding{Where: service.CloudGCP, OK: true, What: fmt.Sprintf("all %d permissions are there", len(needed))}
}

// without are the elements of all that some do not have.
func without(all, some []string) []string {
	return slices.DeleteFunc(slices.Clone(all), func(p string) bool { return slices.Contains(some, p) })
}

// held are those of some permissions that the caller has in the project.
func (p *Provider) held(ctx context.Context, asked []string) ([]string, error) {
	s, err := p.open(ctx)
	if err != nil {
		return nil, err
	}
	var reply struct{ Permissions []string }
	err = p.ask(ctx, http.MethodPost, s.resource+"/v1/projects/"+s.project+":testIamPermissions", map[string]any{"permissions": asked}, &reply)
	if err != nil {
		return nil, explain(err, "asking for the permissions in project %s", s.project)
	}
	return reply.Permissions, nil
}

// ask calls an API that no library here is for.
func (p *Provider) ask(ctx context.Context, method, url string, question, reply any) error {
	s, err := p.open(ctx)
	if err != nil {
		return err
	}
	var body io.Reader // without one where nothing is asked: Google refuses a GET that has one
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

// findAccounts says what machines run as, whether the caller may have them do so, and
// whether the balancers' account can do its work.
func (p *Provider) findAccounts(ctx context.Context, project *computepb.Project) []provision.Finding {
	account := cmp.Or(p.cfg.Accounts[provision.KindBalancer], project.GetDefaultServiceAccount())
	if account == "" {
		return []provision.Finding{{Where: service.CloudGCP, What: "the project has no default account for balancers to run as", Hint: hintAccount}}
	}
	findings := []provision.Finding{p.findActAs(ctx, account, "balancers"), p.findRoles(ctx, account)}
	if replica := p.cfg.Accounts[provision.KindReplica]; replica != "" {
		findings = append(findings, p.findActAs(ctx, replica, "replicas"))
	}
	return findings
}

// hintAccount is where to read on about accounts.
const hintAccount = "make a service account with the least role for it, as docs/clouds.md does under Google, and name it as gcp.balancer_account"

// findActAs says whether an account is there and the caller may have machines run as it.
func (p *Provider) findActAs(ctx context.Context, account, who string) provision.Finding {
	f := provision.Finding{Where: service.CloudGCP, What: who + " run as " + account}
	s, err := p.open(ctx)
	if err != nil {
		return badly(service.CloudGCP, err)
	}
	var reply struct{ Permissions []string }
	err = p.ask(ctx, http.MethodPost, s.identity+"/v1/projects/-/serviceAccounts/"+account+":testIamPermissions", map[string]any{"permissions": []string{actAs}}, &reply)
	switch {
	case isMissing(err):
		f.What += ", and there is no such account"
		f.Hint = hintAccount
	case err != nil:
		f = badly(service.CloudGCP, explain(err, "asking who may run machines as %s", account))
		f.Hint = cmp.Or(f.Hint, "to have it checked: gcloud services enable iam.googleapis.com")
	case !slices.Contains(reply.Permissions, actAs):
		f.What += ", and you may not have machines run as it (" + actAs + ")"
		f.Hint = "gcloud iam service-accounts add-iam-policy-binding " + account + " --member user:YOU --role roles/iam.serviceAccountUser"
	default:
		f.OK = true
	}
	return f
}

// findRoles says whether the roles of the balancers' account are enough for a controller. It
// sees those that the project itself gives; where it may not see them it says that.
func (p *Provider) findRoles(ctx context.Context, account string) provision.Finding {
	f := provision.Finding{Where: service.CloudGCP, OK: true}
	held, err := p.heldBy(ctx, account)
	if err != nil {
		f.What = fmt.Sprintf("whether %s may launch replicas cannot be seen: %v", account, err)
		return f
	}
	if lacking := without(balancerPermissions, held); len(lacking) > 0 {
		f.OK = false
		f.What = fmt.Sprintf("by the project's policy the account of balancers, %s, lacks %s: a controller could not launch replicas", account, strings.Join(lacking, ", "))
		f.Hint = hintAccount
		return f
	}
	f.What = account + " may launch replicas"
	return f
}

// heldBy are the permissions that the roles of an account in the project hold.
func (p *Provider) heldBy(ctx context.Context, account string) ([]string, error) {
	s, err := p.open(ctx)
	if err != nil {
		return nil, err
	}
	var policy struct {
		Bindings []struct {
			Role    string
			Members []string
		}
	}
	if err := p.ask(ctx, http.MethodPost, s.resource+"/v1/projects/"+s.project+":getIamPolicy", map[string]any{}, &policy); err != nil {
		return nil, explain(err, "reading the policy of project %s", s.project)
	}
	var held []string
	for _, b := range policy.Bindings {
		if !slices.Contains(b.Members, "serviceAccount:"+account) {
			continue
		}
		var role struct{ IncludedPermissions []string }
		if err := p.ask(ctx, http.MethodGet, s.identity+"/v1/"+b.Role, nil, &role); err != nil {
			return nil, explain(err, "reading %s", b.Role)
		}
		held = append(held, role.IncludedPermissions...)
	}
	return held, nil
}
