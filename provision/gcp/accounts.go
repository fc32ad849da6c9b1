package gcp

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"skyserve/internal/service"
	"skyserve/provision"
)

// roleID is the role of the accounts of balancers, one in a project.
const roleID = "skyserveBalancer"

// accountAt ends the addresses of the service accounts of a project.
const accountAt = ".iam.gserviceaccount.com"

// accountName is the name of the service account of the balancers of a service, where the service
// names none. Google takes 30 letters.
func accountName(name string) string {
	const most, kept, hashed = 30, 11, 6
	full := "skyserve-" + name + "-lb"
	if len(full) <= most {
		return full
	}
	return "skyserve-" + name[:kept] + "-" + hashOf([]string{name})[:hashed] + "-lb"
}

// account is the address of the service account that machines of a role of a service run as;
// empty = nobody. It is never the project's default account, which may do more than keep replicas.
func (p *Provider) account(name string, role provision.Kind, wanted, project string) string {
	email := cmp.Or(wanted, p.cfg.Accounts[role])
	if email == "" && role != provision.KindReplica {
		email = accountName(name) + "@" + project + accountAt
	}
	return email
}

// boundTo is the condition that keeps the account of balancers to the replicas of a service. What
// is no machine and no disk is not narrowed: machine types, subnets and operations have names of
// others. extract is empty where the name is of another kind of thing.
func boundTo(name string) string {
	prefix := machinePrefix(provision.KindReplica, name)
	return fmt.Sprintf(`resource.type != "compute.googleapis.com/Instance" && resource.type != "compute.googleapis.com/Disk" || resource.name.extract("/instances/{name}").startsWith(%q) || resource.name.extract("/disks/{name}").startsWith(%q)`, prefix, prefix)
}

// permissionsNeeded are those of the role of the balancers' account. Handing an account to
// replicas takes one more.
func (p *Provider) permissionsNeeded() []string {
	needed := slices.Clone(balancerPermissions)
	if p.cfg.Accounts[provision.KindReplica] != "" {
		needed = append(needed, "compute.instances.setServiceAccount")
	}
	slices.Sort(needed)
	return needed
}

// commands make the account of the balancers of a service with the least that a controller needs.
func (p *Provider) commands(name, account, project string) string {
	id, of, _ := strings.Cut(strings.TrimSuffix(account, accountAt), "@")
	lines := []string{
		"gcloud iam roles create " + roleID + " --project " + project + " --permissions " + strings.Join(p.permissionsNeeded(), ",") + "   # once a project; 'roles update' where it is there",
		"gcloud iam service-accounts create " + id + " --project " + cmp.Or(of, project),
		"gcloud projects add-iam-policy-binding " + project + " --role projects/" + project + "/roles/" + roleID + " --member serviceAccount:" + account +
			" --condition 'title=replicas-of-" + name + ",expression=" + boundTo(name) + "'",
	}
	if replica := p.cfg.Accounts[provision.KindReplica]; replica != "" {
		lines = append(lines, "gcloud iam service-accounts add-iam-policy-binding "+replica+" --member serviceAccount:"+account+" --role roles/iam.serviceAccountUser")
	}
	return strings.Join(lines, "\n")
}

// makeAccount is what to do where the account of the balancers is not there, or not as it should be.
func (p *Provider) makeAccount(name, account, project string) string {
	return "run this, or name another account as gcp.balancer_account:\n" + p.commands(name, account, project)
}

// checkIdentity refuses to go on where the account that machines of a role run as is not there.
func (p *Provider) checkIdentity(ctx context.Context, w provision.Want) error {
	if len(w.Grants) == 0 {
		return nil
	}
	s, err := p.open(ctx)
	if err != nil {
		return err
	}
	account := p.account(w.Service, roleOf(w), "", s.project)
	if _, err := p.permissionsOn(ctx, account); !isMissing(err) { // IAM's API may be switched off: then the launch shows it
		return nil
	}
	return &provision.CredentialsError{
		Cloud: service.CloudGCP, Action: fmt.Sprintf("running a %s as %s", roleOf(w), account),
		Err: fmt.Errorf("there is no such account"), Hint: p.makeAccount(w.Service, account, s.project),
	}
}

// permissionsOn are those of actAs that the caller has on an account. The error is isMissing where
// there is none.
func (p *Provider) permissionsOn(ctx context.Context, account string) ([]string, error) {
	s, err := p.open(ctx)
	if err != nil {
		return nil, err
	}
	var reply struct{ Permissions []string }
	err = p.ask(ctx, http.MethodPost, s.identity+"/v1/projects/-/serviceAccounts/"+account+":testIamPermissions", map[string]any{"permissions": []string{actAs}}, &reply)
	return reply.Permissions, err
}

// findAccounts says what machines run as, whether the caller may have them do so, and whether the
// balancers' account can do its work and nothing else.
func (p *Provider) findAccounts(ctx context.Context) []provision.Finding {
	s, err := p.open(ctx)
	if err != nil {
		return []provision.Finding{badly(service.CloudGCP, err)}
	}
	account := p.account(p.cfg.Service, provision.KindBalancer, "", s.project)
	otherwise := p.makeAccount(p.cfg.Service, account, s.project)
	findings := []provision.Finding{p.findActAs(ctx, account, "balancers", otherwise)}
	if findings[0].Hint != otherwise { // it is there
		findings = append(findings, p.findRoles(ctx, account, otherwise))
	}
	if replica := p.cfg.Accounts[provision.KindReplica]; replica != "" {
		findings = append(findings, p.findActAs(ctx, replica, "replicas", "name an account that there is as gcp.replica_account"))
	}
	return findings
}

// findActAs says whether an account is there and the caller may have machines run as it.
func (p *Provider) findActAs(ctx context.Context, account, who, otherwise string) provision.Finding {
	f := provision.Finding{Where: service.CloudGCP, What: who + " run as " + account}
	held, err := p.permissionsOn(ctx, account)
	switch {
	case isMissing(err):
		f.What += ", and there is no such account"
		f.Hint = otherwise
	case err != nil:
		f = badly(service.CloudGCP, explain(err, "asking who may run machines as %s", account))
		f.Hint = cmp.Or(f.Hint, "to have it checked: gcloud services enable iam.googleapis.com")
	case !slices.Contains(held, actAs):
		f.What += ", and you may not have machines run as it (" + actAs + ")"
		f.Hint = "gcloud iam service-accounts add-iam-policy-binding " + account + " --member user:YOU --role roles/iam.serviceAccountUser"
	default:
		f.OK = true
	}
	return f
}

// findRoles says whether the roles of the balancers' account are enough for a controller, and no
// more than that. It sees those that the project itself gives; where it may not see them it says
// that.
func (p *Provider) findRoles(ctx context.Context, account, otherwise string) provision.Finding {
	f := provision.Finding{Where: service.CloudGCP}
	held, err := p.heldBy(ctx, account)
	needed := p.permissionsNeeded()
	var all, unbound []string
	for _, h := range held {
		all = append(all, h.permissions...)
		if h.condition == "" {
			unbound = append(unbound, h.permissions...)
		}
	}
	lacking, more := without(needed, all), without(all, needed)
	changes := func(permission string) bool {
		return strings.HasPrefix(permission, "compute.instances.") && !slices.Contains([]string{"compute.instances.get", "compute.instances.list", "compute.instances.getGuestAttributes"}, permission)
	}
	switch {
	case err != nil:
		f.OK, f.What = true, fmt.Sprintf("whether %s may launch replicas, and nothing else, cannot be seen: %v", account, err)
		return f
	case len(lacking) > 0:
		f.What = fmt.Sprintf("by the project's policy the account of balancers, %s, lacks %s: a controller could not launch replicas", account, strings.Join(lacking, ", "))
	case len(more) > 0:
		f.What = fmt.Sprintf("the account of balancers, %s, may do more than keep replicas, such as %s: so may whoever has root on a balancer", account, more[0])
	case slices.ContainsFunc(unbound, changes):
		f.What = fmt.Sprintf("the role of the account of balancers, %s, has no condition: whoever has root on a balancer may end and change every machine of the project", account)
	default:
		f.OK, f.What = true, account+" may launch replicas of this service, and nothing else"
		return f
	}
	f.Hint = otherwise
	return f
}

// heldRole is a role of an account in the project.
type heldRole struct {
	permissions []string
	condition   string
}

// heldBy are the roles of an account in the project.
func (p *Provider) heldBy(ctx context.Context, account string) ([]heldRole, error) {
	s, err := p.open(ctx)
	if err != nil {
		return nil, err
	}
	var policy struct {
		Bindings []struct {
			Role      string
			Members   []string
			Condition struct{ Expression string }
		}
	}
	question := map[string]any{"options": map[string]any{"requestedPolicyVersion": 3}} // those before have no conditions
	if err := p.ask(ctx, http.MethodPost, s.resource+"/v1/projects/"+s.project+":getIamPolicy", question, &policy); err != nil {
		return nil, explain(err, "reading the policy of project %s", s.project)
	}
	var held []heldRole
	for _, b := range policy.Bindings {
		if !slices.Contains(b.Members, "serviceAccount:"+account) {
			continue
		}
		var role struct{ IncludedPermissions []string }
		if err := p.ask(ctx, http.MethodGet, s.identity+"/v1/"+b.Role, nil, &role); err != nil {
			return nil, explain(err, "reading %s", b.Role)
		}
		held = append(held, heldRole{role.IncludedPermissions, b.Condition.Expression})
	}
	return held, nil
}
