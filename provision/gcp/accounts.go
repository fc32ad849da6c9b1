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

// roleID is the id of the IAM role for the service accounts of balancers, one per project.
const roleID = "skyserveBalancer"

// accountSuffix is the end of the email addresses of a project's service accounts.
const accountSuffix = ".iam.gserviceaccount.com"

// accountName returns the default name of the service account of a service's balancers. Google allows
// 30 characters.
func accountName(name string) string {
	const maxLength, nameLength, hashLength = 30, 11, 6
	full := "skyserve-" + name + "-lb"
	if len(full) <= maxLength {
		return full
	}
	return "skyserve-" + name[:nameLength] + "-" + hashOf([]string{name})[:hashLength] + "-lb"
}

// account returns the email address of the service account for machines of a role of a service; empty =
// none. It is never the project's default service account, which has more permissions than required.
func (p *Provider) account(name string, role provision.ObjectKind, configured, project string) string {
	email := cmp.Or(configured, p.cfg.Accounts[role])
	if email == "" && role != provision.KindReplica {
		email = accountName(name) + "@" + project + accountSuffix
	}
	return email
}

// replicaCondition returns the IAM condition that restricts the balancers' service account to the replicas
// of a service. It restricts machines and disks only: machine types, subnets and operations have other
// names. extract returns an empty string for the name of another kind of resource.
func replicaCondition(name string) string {
	prefix := machinePrefix(provision.KindReplica, name)
	return fmt.Sprintf(`resource.type != "compute.googleapis.com/Instance" && resource.type != "compute.googleapis.com/Disk" || resource.name.extract("/instances/{name}").startsWith(%q) || resource.name.extract("/disks/{name}").startsWith(%q)`, prefix, prefix)
}

// requiredPermissions returns the permissions of the balancers' role. Launching replicas with a service
// account requires one more.
func (p *Provider) requiredPermissions() []string {
	needed := slices.Clone(balancerPermissions)
	if p.cfg.Accounts[provision.KindReplica] != "" {
		needed = append(needed, "compute.instances.setServiceAccount")
	}
	slices.Sort(needed)
	return needed
}

// accountCommands returns the commands that create the service account of a service's balancers, with the
// minimum permissions of a controller.
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

// accountHint returns the hint for a missing service account of the balancers, or one with the wrong
// permissions.
func (p *Provider) accountHint(name, account, project string) string {
	return "run these commands, or set gcp.balancer_account to another service account:\n" + p.accountCommands(name, account, project)
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
	if _, err := p.testActAs(ctx, account); !isMissing(err) { // any other error: the launch reports it
		return nil
	}
	return &provision.CredentialsError{
		Cloud: service.CloudGCP, Action: fmt.Sprintf("attaching service account %s to a %s", account, roleOf(w)),
		Err: fmt.Errorf("service account not found"), Hint: p.accountHint(w.Service, account, s.project),
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
	account := p.account(p.cfg.Service, provision.KindBalancer, "", s.project)
	hint := p.accountHint(p.cfg.Service, account, s.project)
	findings := []provision.CheckResult{p.checkActAs(ctx, account, "balancers", hint)}
	if findings[0].Hint != hint { // the service account exists
		findings = append(findings, p.checkRoles(ctx, account, hint))
	}
	if replica := p.cfg.Accounts[provision.KindReplica]; replica != "" {
		findings = append(findings, p.checkActAs(ctx, replica, "replicas", "set gcp.replica_account to an existing service account"))
	}
	return findings
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
	missing, excess := difference(required, granted), difference(granted, required)
	changesMachines := func(permission string) bool {
		return strings.HasPrefix(permission, "compute.instances.") && !slices.Contains([]string{"compute.instances.get", "compute.instances.list", "compute.instances.getGuestAttributes"}, permission)
	}
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
	default:
		f.OK, f.Message = true, "the balancers' service account "+account+" may only launch replicas of this service"
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
		if !slices.Contains(b.Members, "serviceAccount:"+account) {
			continue
		}
		var role struct{ IncludedPermissions []string }
		if err := p.callAPI(ctx, http.MethodGet, s.iam+"/v1/"+b.Role, nil, &role); err != nil {
			return nil, wrapError(err, "reading IAM role %s", b.Role)
		}
		roles = append(roles, accountRole{role.IncludedPermissions, b.Condition.Expression})
	}
	return roles, nil
}
