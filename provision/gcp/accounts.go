package gcp

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"

	"skyserve/internal/service"
	"skyserve/provision"
)

// roleID is the id of the IAM role for the service accounts of balancers, one per project.
const roleID = "skyserveBalancer"

// The ends of the default names of the service accounts of balancers and of replicas.
const (
	balancerSuffix = "-lb"
	replicaSuffix  = "-replica"
)

// accountName returns the default name of a service account of a service. Google allows 30 characters.
func accountName(name, suffix string) string {
	const prefix, maxLength, hashLength = "skyserve-", 30, 6
	full := prefix + name + suffix
	if len(full) <= maxLength {
		return full
	}
	nameLength := maxLength - len(prefix) - 1 - hashLength - len(suffix)
	return prefix + name[:nameLength] + "-" + hashOf([]string{name})[:hashLength] + suffix
}

// account returns the email address of the service account for machines of a role of a service; empty =
// none. It is never the project's default service account, which has more permissions than required.
func (p *Provider) account(name string, role provision.Role, configured, project string) string {
	email := cmp.Or(configured, p.cfg.Accounts[role])
	switch {
	case email != "":
		return email
	case role != provision.RoleReplica:
		return accountName(name, balancerSuffix) + "@" + project + accountSuffix
	case p.cfg.Downloads:
		return accountName(name, replicaSuffix) + "@" + project + accountSuffix
	}
	return ""
}

// replicasHaveAccount reports whether replicas have a service account.
func (p *Provider) replicasHaveAccount() bool {
	return p.cfg.Downloads || p.cfg.Accounts[provision.RoleReplica] != ""
}

// machineCondition returns the IAM condition that restricts the balancers' service account to the replicas
// of a service, and to its balancers if controllers replace them. It restricts machines and disks only: machine
// types, subnets and operations have other names. extract returns an empty string for the name of another kind of
// resource.
func (p *Provider) machineCondition(name string) string {
	text := `resource.type != "` + computeAPI + `/Instance" && resource.type != "` + computeAPI + `/Disk"`
	for _, kind := range p.launchedKinds() {
		prefix := machinePrefix(kind, name)
		text += fmt.Sprintf(` || resource.name.extract("/instances/{name}").startsWith(%q) || resource.name.extract("/disks/{name}").startsWith(%q)`, prefix, prefix)
	}
	return text
}

// launchedKinds returns the kinds of machines that the balancers' service account launches.
func (p *Provider) launchedKinds() []provision.ObjectKind {
	if p.cfg.ReplaceBalancers {
		return []provision.ObjectKind{provision.KindReplica, provision.KindBalancer}
	}
	return []provision.ObjectKind{provision.KindReplica}
}

// requiredPermissions returns the permissions of the balancers' role. Launching machines with a service
// account requires one more.
func (p *Provider) requiredPermissions() []string {
	needed := slices.Clone(balancerPermissions)
	if p.replicasHaveAccount() || p.cfg.ReplaceBalancers {
		needed = append(needed, setAccount)
	}
	slices.Sort(needed)
	return needed
}

// accountCommands returns the commands that create the service account of a service's balancers, with the
// minimum permissions of a controller.
func (p *Provider) accountCommands(name, account, project string) string {
	lines := append([]string{
		"gcloud iam roles create " + roleID + " --project " + project + " --permissions " + strings.Join(p.requiredPermissions(), ",") + "   # once per project; 'roles update' where it exists",
	}, p.bindingCommands(name, account, project)...)
	spare := p.cfg.Accounts[provision.RoleSpare]
	if spare != "" && p.cfg.ReplaceBalancers {
		lines = append(lines, p.spares().bindingCommands(name, spare, project)...)
	}
	if p.cfg.ReplaceBalancers {
		lines = append(lines, actAsCommand(account, account))
		if spare != "" {
			lines = append(lines, actAsCommand(spare, account))
		}
	}
	if replica := p.account(name, provision.RoleReplica, "", project); replica != "" {
		if p.cfg.Accounts[provision.RoleReplica] == "" {
			lines = append(lines, createAccount(replica, project))
		}
		lines = append(lines, actAsCommand(replica, account))
		if spare != "" && p.cfg.ReplaceBalancers {
			lines = append(lines, actAsCommand(replica, spare))
		}
	}
	return strings.Join(lines, "\n")
}

// bindingCommands returns the commands that create a service account of balancers and bind it to the balancers' role.
func (p *Provider) bindingCommands(name, account, project string) []string {
	return []string{
		createAccount(account, project),
		"gcloud projects add-iam-policy-binding " + project + " --role projects/" + project + "/roles/" + roleID + " --member serviceAccount:" + account +
			" --condition 'title=" + string(p.launchedKinds()[len(p.launchedKinds())-1]) + "s-of-" + name + ",expression=" + p.machineCondition(name) + "'",
	}
}

// spares returns the provider of a service in which all balancers at Google have the account of spares.
func (p *Provider) spares() *Provider {
	cfg := p.cfg
	cfg.ReplaceBalancers, cfg.Accounts = false, maps.Clone(cfg.Accounts)
	cfg.Accounts[provision.RoleBalancer] = cfg.Accounts[provision.RoleSpare]
	return New(cfg)
}

// actAsCommand returns the command that lets a service account launch machines with another one.
func actAsCommand(other, account string) string {
	return "gcloud iam service-accounts add-iam-policy-binding " + other + " --member serviceAccount:" + account + " --role roles/iam.serviceAccountUser"
}

// createAccount returns the command that creates a service account.
func createAccount(account, project string) string {
	id, of, _ := strings.Cut(strings.TrimSuffix(account, accountSuffix), "@")
	return "gcloud iam service-accounts create " + id + " --project " + cmp.Or(of, project)
}

// accountHint returns the hint for a missing service account of a service, or one with the wrong permissions.
func (p *Provider) accountHint(name, project string) string {
	setting := "gcp.balancer_account to another service account"
	if p.replicasHaveAccount() {
		setting = "gcp.balancer_account and gcp.replica_account to other service accounts"
	}
	return "run these commands, or set " + setting + ":\n" + p.accountCommands(name, p.account(name, provision.RoleBalancer, "", project), project)
}

// checkIdentity returns an error where the service account of a role does not exist.
func (p *Provider) checkIdentity(ctx context.Context, w provision.Desired) error {
	if len(w.Grants) == 0 {
		return nil
	}
	return p.checkAccount(ctx, w.Service, roleOf(w))
}

// checkAccount returns an error if the service account of a role of a service does not exist.
func (p *Provider) checkAccount(ctx context.Context, name string, role provision.Role) error {
	s, err := p.openSession(ctx)
	if err != nil {
		return err
	}
	account := p.account(name, role, "", s.project)
	if account == "" {
		return nil
	}
	if _, err := p.testActAs(ctx, account); !isMissing(err) { // any other error: the launch reports it
		return nil
	}
	return &provision.CredentialsError{
		Cloud: service.CloudGCP, Action: fmt.Sprintf("attaching service account %s to a %s", account, role),
		Err: fmt.Errorf("service account not found"), Hint: p.accountHint(name, s.project),
	}
}

// testActAs returns actAs if the caller has this permission on a service account. For a service account
// that does not exist, isMissing(err) is true.
func (p *Provider) testActAs(ctx context.Context, account string) ([]string, error) {
	s, err := p.openSession(ctx)
	if err != nil {
		return nil, err
	}
	var response struct{ Permissions []string }
	err = p.callAPI(ctx, http.MethodPost, s.iam+"/v1/projects/-/serviceAccounts/"+account+":testIamPermissions", map[string]any{"permissions": []string{actAs}}, &response)
	return response.Permissions, err
}

// checkAccounts checks that the service accounts of machines exist, that the caller may use them, and that
// the balancers' service account has exactly the required permissions.
func (p *Provider) checkAccounts(ctx context.Context) []provision.CheckResult {
	s, err := p.openSession(ctx)
	if err != nil {
		return []provision.CheckResult{failedFinding(service.CloudGCP, err)}
	}
	account := p.account(p.cfg.Service, provision.RoleBalancer, "", s.project)
	hint := p.accountHint(p.cfg.Service, s.project)
	findings := []provision.CheckResult{p.checkActAs(ctx, account, "balancers", hint)}
	if findings[0].Hint != hint { // the service account exists
		findings = append(findings, p.checkRoles(ctx, account, hint))
	}
	if spare := p.cfg.Accounts[provision.RoleSpare]; spare != "" && p.cfg.ReplaceBalancers {
		f := p.checkActAs(ctx, spare, "spare balancers", hint)
		if findings = append(findings, f); f.Hint != hint {
			findings = append(findings, p.spares().checkRoles(ctx, spare, hint))
		}
	}
	if replica := p.account(p.cfg.Service, provision.RoleReplica, "", s.project); replica != "" {
		findings = append(findings, p.checkActAs(ctx, replica, "replicas", p.replicaHint(hint)))
	}
	return findings
}

// replicaHint returns the hint for a missing service account of the replicas. commands is accountHint.
func (p *Provider) replicaHint(commands string) string {
	if p.cfg.Accounts[provision.RoleReplica] != "" {
		return "set gcp.replica_account to an existing service account"
	}
	return commands
}

// checkActAs checks that the service account of some machines exists and that the caller may attach it to
// machines. hint is the hint for a missing one.
func (p *Provider) checkActAs(ctx context.Context, account, machines, hint string) provision.CheckResult {
	f := provision.CheckResult{Where: service.CloudGCP, Message: machines + " use service account " + account}
	granted, err := p.testActAs(ctx, account)
	switch {
	case isMissing(err):
		f.Message += ": service account not found"
		f.Hint = hint
	case err != nil:
		f = failedFinding(service.CloudGCP, wrapError(err, "testing the permission to attach service account %s to machines", account))
		f.Hint = cmp.Or(f.Hint, "enable the API for this check: gcloud services enable iam.googleapis.com")
	case !slices.Contains(granted, actAs):
		f.Message += ": no permission to attach it to machines (" + actAs + ")"
		f.Hint = "gcloud iam service-accounts add-iam-policy-binding " + account + " --member user:YOU --role roles/iam.serviceAccountUser"
	default:
		f.OK = true
	}
	return f
}

// checkRoles checks that the roles of the balancers' service account contain the permissions of a
// controller, and no others. It reads only roles that are granted on the project. If the caller has no
// permission to read them, the finding contains that error.
func (p *Provider) checkRoles(ctx context.Context, account, hint string) provision.CheckResult {
	f := provision.CheckResult{Where: service.CloudGCP}
	roles, err := p.rolesOf(ctx, account)
	required := p.requiredPermissions()
	var granted, unconditional []string
	for _, r := range roles {
		granted = append(granted, r.permissions...)
		if r.condition == "" {
			unconditional = append(unconditional, r.permissions...)
		}
	}
	missing, excess := difference(required, granted), difference(granted, append(required, setAccount)) // other services of the project may need setAccount
	changesMachines := func(permission string) bool {
		return strings.HasPrefix(permission, "compute.instances.") && !slices.Contains([]string{"compute.instances.get", "compute.instances.list", "compute.instances.getGuestAttributes"}, permission)
	}
	balancers := `"` + machinePrefix(provision.KindBalancer, p.cfg.Service) + `"`
	switch {
	case err != nil:
		f.OK, f.Message = true, fmt.Sprintf("the roles of the balancers' service account %s are unknown: %v", account, err)
		return f
	case len(missing) > 0:
		f.Message = fmt.Sprintf("the balancers' service account %s has no permission for %s in the project's IAM policy: the controller cannot launch replicas", account, strings.Join(missing, ", "))
	case len(excess) > 0:
		f.Message = fmt.Sprintf("the balancers' service account %s has more permissions than required, such as %s: anyone with root on a balancer has them too", account, excess[0])
	case slices.ContainsFunc(unconditional, changesMachines):
		f.Message = fmt.Sprintf("the role of the balancers' service account %s has no condition: anyone with root on a balancer can delete and change every machine of the project", account)
	case p.cfg.ReplaceBalancers && !slices.ContainsFunc(roles, func(r accountRole) bool {
		return r.condition == "" || strings.Contains(r.condition, balancers)
	}):
		f.Message = fmt.Sprintf("the role of the balancers' service account %s does not permit launching balancers: a lost balancer is replaced by 'skyserve up' only", account)
	case !p.cfg.ReplaceBalancers && slices.ContainsFunc(roles, func(r accountRole) bool { return strings.Contains(r.condition, balancers) }):
		f.Message = fmt.Sprintf("the role of the balancers' service account %s permits launching balancers: anyone with root on a balancer can replace any balancer by a machine of their own", account)
		f.Hint = "gcloud projects get-iam-policy PROJECT, then remove-iam-policy-binding for the binding whose condition is titled balancers-of-" + p.cfg.Service
		return f
	default:
		machines := "replicas"
		if p.cfg.ReplaceBalancers {
			machines = "replicas and balancers"
		}
		f.OK, f.Message = true, "the balancers' service account "+account+" may only launch "+machines+" of this service"
		return f
	}
	f.Hint = hint
	return f
}

// accountRole is a role of a service account in the project.
type accountRole struct {
	permissions []string
	condition   string
}

// rolesOf returns the roles of a service account in the project.
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
	body := map[string]any{"options": map[string]any{"requestedPolicyVersion": 3}} // earlier versions have no conditions
	if err := p.callAPI(ctx, http.MethodPost, s.resourceManager+"/v1/projects/"+s.project+":getIamPolicy", body, &policy); err != nil {
		return nil, wrapError(err, "reading the IAM policy of project %s", s.project)
	}
	var roles []accountRole
	for _, b := range policy.Bindings {
		if !slices.Contains(b.Members, memberPrefix+account) {
			continue
		}
		permissions, err := p.permissionsOf(ctx, b.Role)
		if err != nil {
			return nil, err
		}
		roles = append(roles, accountRole{permissions, b.Condition.Expression})
	}
	return roles, nil
}

// permissionsOf returns the permissions of an IAM role.
func (p *Provider) permissionsOf(ctx context.Context, name string) ([]string, error) {
	s, err := p.openSession(ctx)
	if err != nil {
		return nil, err
	}
	var role struct{ IncludedPermissions []string }
	if err := p.callAPI(ctx, http.MethodGet, s.iam+"/v1/"+name, nil, &role); err != nil {
		return nil, wrapError(err, "reading IAM role %s", name)
	}
	return role.IncludedPermissions, nil
}
