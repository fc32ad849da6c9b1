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

// roleID is the role of the accounts of balancers, one per project.
const roleID = "skyserveBalancer"

// accountSuffix is the end of the addresses of a project's service accounts.
const accountSuffix = ".iam.gserviceaccount.com"

// accountName returns the default name of the service account of a service's balancers. Google allows
// 30 characters.
func accountName(name string) string {
	const most, kept, hashed = 30, 11, 6
	full := "skyserve-" + name + "-lb"
	if len(full) <= most {
		return full
	}
	return "skyserve-" + name[:kept] + "-" + hashOf([]string{name})[:hashed] + "-lb"
}

// account returns the address of the service account for machines of a role of a service; empty = none.
// It is never the project's default account, which has more permissions than needed.
func (p *Provider) account(name string, role provision.ObjectKind, wanted, project string) string {
	email := cmp.Or(wanted, p.cfg.Accounts[role])
	if email == "" && role != provision.KindReplica {
		email = accountName(name) + "@" + project + accountSuffix
	}
	return email
}

// replicaCondition returns the IAM condition that restricts the account of balancers to the replicas of a
// service. Resources other than machines and disks are not restricted: machine types, subnets and
// operations have other names. extract is empty where the name is of another kind of resource.
func replicaCondition(name string) string {
	prefix := machinePrefix(provision.KindReplica, name)
	return fmt.Sprintf(`resource.type != "compute.googleapis.com/Instance" && resource.type != "compute.googleapis.com/Disk" || resource.name.extract("/instances/{name}").startsWith(%q) || resource.name.extract("/disks/{name}").startsWith(%q)`, prefix, prefix)
}

// requiredPermissions returns the permissions of the balancers' role. Launching replicas with an account
// requires one more.
func (p *Provider) requiredPermissions() []string {
	needed := slices.Clone(balancerPermissions)
	if p.cfg.Accounts[provision.KindReplica] != "" {
		needed = append(needed, "compute.instances.setServiceAccount")
	}
	slices.Sort(needed)
	return needed
}

// accountCommands returns the commands that create the account of a service's balancers, with the least
// permissions that a controller needs.
func (p *Provider) accountCommands(name, account, project string) string {
	id, of, _ := strings.Cut(strings.TrimSuffix(account, accountSuffix), "@")
	lines := []string{
		"gcloud iam roles create " + roleID + " --project " + project + " --permissions " + strings.Join(p.requiredPermissions(), ",") + "   # once per project; 'roles update' where it exists",
		"gcloud iam service-accounts create " + id + " --project " + cmp.Or(of, project),
		"gcloud projects add-iam-policy-binding " + project + " --role projects/" + project + "/roles/" + roleID + " --member serviceAccount:" + account +
			" --condition 'title=replicas-of-" + name + ",expression=" + replicaCondition(name) + "'",
	}
	if replica := p.cfg.Accounts[provision.KindReplica]; replica != "" {
		lines = append(lines, "gcloud iam service-accounts add-iam-policy-binding "+replica+" --member serviceAccount:"+account+" --role roles/iam.serviceAccountUser")
	}
	return strings.Join(lines, "\n")
}

// accountHint returns the hint for a missing or wrong account of the balancers.
func (p *Provider) accountHint(name, account, project string) string {
	return "run these commands, or set gcp.balancer_account to another account:\n" + p.accountCommands(name, account, project)
}

// checkIdentity returns an error where the service account of a role does not exist.
func (p *Provider) checkIdentity(ctx context.Context, w provision.Desired) error {
	if len(w.Grants) == 0 {
		return nil
	}
	s, err := p.openSession(ctx)
	if err != nil {
		return err
	}
	account := p.account(w.Service, roleOf(w), "", s.project)
	if _, err := p.testActAs(ctx, account); !isMissing(err) { // IAM's API may be disabled: then the launch reports it
		return nil
	}
	return &provision.CredentialsError{
		Cloud: service.CloudGCP, Action: fmt.Sprintf("running a %s as %s", roleOf(w), account),
		Err: fmt.Errorf("service account not found"), Hint: p.accountHint(w.Service, account, s.project),
	}
}

// testActAs tests whether the caller has actAs on an account. The error is isMissing where there is
// no such account.
func (p *Provider) testActAs(ctx context.Context, account string) ([]string, error) {
	s, err := p.openSession(ctx)
	if err != nil {
		return nil, err
	}
	var reply struct{ Permissions []string }
	err = p.callAPI(ctx, http.MethodPost, s.iam+"/v1/projects/-/serviceAccounts/"+account+":testIamPermissions", map[string]any{"permissions": []string{actAs}}, &reply)
	return reply.Permissions, err
}

// checkAccounts checks the service accounts of machines, whether the caller may use them, and whether
// the balancers' account has exactly the permissions that it needs.
func (p *Provider) checkAccounts(ctx context.Context) []provision.CheckResult {
	s, err := p.openSession(ctx)
	if err != nil {
		return []provision.CheckResult{failedFinding(service.CloudGCP, err)}
	}
	account := p.account(p.cfg.Service, provision.KindBalancer, "", s.project)
	otherwise := p.accountHint(p.cfg.Service, account, s.project)
	findings := []provision.CheckResult{p.checkActAs(ctx, account, "balancers", otherwise)}
	if findings[0].Hint != otherwise { // the account exists
		findings = append(findings, p.checkRoles(ctx, account, otherwise))
	}
	if replica := p.cfg.Accounts[provision.KindReplica]; replica != "" {
		findings = append(findings, p.checkActAs(ctx, replica, "replicas", "set gcp.replica_account to an existing account"))
	}
	return findings
}

// checkActAs checks that an account exists and that the caller may attach it to machines.
func (p *Provider) checkActAs(ctx context.Context, account, who, otherwise string) provision.CheckResult {
	f := provision.CheckResult{Where: service.CloudGCP, Message: who + " run as " + account}
	held, err := p.testActAs(ctx, account)
	switch {
	case isMissing(err):
		f.Message += ": service account not found"
		f.Hint = otherwise
	case err != nil:
		f = failedFinding(service.CloudGCP, wrapError(err, "testing whether you may attach the service account %s to machines", account))
		f.Hint = cmp.Or(f.Hint, "to check this: gcloud services enable iam.googleapis.com")
	case !slices.Contains(held, actAs):
		f.Message += ": you lack permission to attach it to machines (" + actAs + ")"
		f.Hint = "gcloud iam service-accounts add-iam-policy-binding " + account + " --member user:YOU --role roles/iam.serviceAccountUser"
	default:
		f.OK = true
	}
	return f
}

// checkRoles checks that the roles of the balancers' account are enough for a controller, and no more.
// It sees the roles of the project itself; without permission to read them the finding says so.
func (p *Provider) checkRoles(ctx context.Context, account, otherwise string) provision.CheckResult {
	f := provision.CheckResult{Where: service.CloudGCP}
	held, err := p.rolesOf(ctx, account)
	needed := p.requiredPermissions()
	var all, unbound []string
	for _, h := range held {
		all = append(all, h.permissions...)
		if h.condition == "" {
			unbound = append(unbound, h.permissions...)
		}
	}
	lacking, more := difference(needed, all), difference(all, needed)
	changes := func(permission string) bool {
		return strings.HasPrefix(permission, "compute.instances.") && !slices.Contains([]string{"compute.instances.get", "compute.instances.list", "compute.instances.getGuestAttributes"}, permission)
	}
	switch {
	case err != nil:
		f.OK, f.Message = true, fmt.Sprintf("cannot check the roles of the balancers' service account %s: %v", account, err)
		return f
	case len(lacking) > 0:
		f.Message = fmt.Sprintf("the balancers' service account %s lacks %s in the project's IAM policy: the controller cannot launch replicas", account, strings.Join(lacking, ", "))
	case len(more) > 0:
		f.Message = fmt.Sprintf("the balancers' service account %s has more permissions than it needs, such as %s: anyone with root on a balancer has them too", account, more[0])
	case slices.ContainsFunc(unbound, changes):
		f.Message = fmt.Sprintf("the role of the balancers' service account %s has no condition: anyone with root on a balancer can delete and change every machine of the project", account)
	default:
		f.OK, f.Message = true, "the balancers' service account "+account+" may only launch replicas of this service"
		return f
	}
	f.Hint = otherwise
	return f
}

// accountRole is a role of an account in the project.
type accountRole struct {
	permissions []string
	condition   string
}

// rolesOf returns the roles of an account in the project.
func (p *Provider) rolesOf(ctx context.Context, account string) ([]accountRole, error) {
	s, err := p.openSession(ctx)
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
	question := map[string]any{"options": map[string]any{"requestedPolicyVersion": 3}} // earlier versions have no conditions
	if err := p.callAPI(ctx, http.MethodPost, s.resourceManager+"/v1/projects/"+s.project+":getIamPolicy", question, &policy); err != nil {
		return nil, wrapError(err, "reading the policy of project %s", s.project)
	}
	var held []accountRole
	for _, b := range policy.Bindings {
		if !slices.Contains(b.Members, "serviceAccount:"+account) {
			continue
		}
		var role struct{ IncludedPermissions []string }
		if err := p.callAPI(ctx, http.MethodGet, s.iam+"/v1/"+b.Role, nil, &role); err != nil {
			return nil, wrapError(err, "reading %s", b.Role)
		}
		held = append(held, accountRole{role.IncludedPermissions, b.Condition.Expression})
	}
	return held, nil
}
