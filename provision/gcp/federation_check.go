package gcp

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"skyserve/internal/service"
	"skyserve/provision"
)

// roleMember returns the member that is every machine with an IAM role of AWS, by the role's name.
func (f Federation) roleMember(role string) string {
	return federatedMember + f.Pool + "/attribute.aws_role/arn:aws:sts::" + f.AccountAWS + ":assumed-role/" + role
}

// Commands returns the commands that let machines with an IAM role of AWS, by its name, act as the service account.
func (f Federation) Commands(project, role string) string {
	return strings.Join([]string{
		"gcloud iam workload-identity-pools create " + federationPool + " --project " + project + " --location global   # once per project",
		"gcloud iam workload-identity-pools providers create-aws " + federationProvider + f.AccountAWS + " --project " + project + " --location global --workload-identity-pool " + federationPool + " --account-id " + f.AccountAWS + "   # once per AWS account",
		"gcloud iam service-accounts add-iam-policy-binding " + f.ServiceAccount + " --role " + roleFederated + " --member " + f.roleMember(role),
	}, "\n")
}

// CheckFederation checks that machines with an IAM role of AWS, by its name, may act as the service account, and nobody
// else may in that way. It reads what the caller may read.
func (p *Provider) CheckFederation(ctx context.Context, f Federation, role string) provision.CheckResult {
	result := provision.CheckResult{Where: service.CloudGCP}
	s, err := p.openSession(ctx)
	if err != nil {
		return failedFinding(service.CloudGCP, err)
	}
	result.Hint = "run these commands, or set gcp.federation to false:\n" + f.Commands(s.project, role)
	var provider struct {
		Disabled bool
		AWS      struct {
			AccountID string `json:"accountId"`
		} `json:"aws"`
	}
	err = p.callAPI(ctx, http.MethodGet, s.iam+"/v1/"+f.Pool+"/providers/"+federationProvider+f.AccountAWS, nil, &provider)
	switch {
	case isMissing(err):
		result.Message = "a lost balancer here is replaced by 'skyserve up' only: workload identity pool " + federationPool + " has no provider for AWS account " + f.AccountAWS
		return result
	case err != nil:
		return unknownFederation(f, wrapError(err, "reading workload identity pool %s", federationPool))
	case provider.Disabled || provider.AWS.AccountID != f.AccountAWS:
		result.Message = fmt.Sprintf("a lost balancer here is replaced by 'skyserve up' only: provider %s%s of workload identity pool %s is disabled, or for another AWS account", federationProvider, f.AccountAWS, federationPool)
		return result
	}
	var policy struct {
		Bindings []struct {
			Role    string
			Members []string
		}
	}
	if err := p.callAPI(ctx, http.MethodPost, s.iam+"/v1/projects/-/serviceAccounts/"+f.ServiceAccount+":getIamPolicy", map[string]any{}, &policy); err != nil {
		return unknownFederation(f, wrapError(err, "reading the IAM policy of service account %s", f.ServiceAccount))
	}
	var members []string
	for _, b := range policy.Bindings {
		if b.Role == roleFederated {
			members = append(members, b.Members...)
		}
	}
	want := f.roleMember(role)
	others := slices.DeleteFunc(slices.Clone(members), func(m string) bool { return m == want })
	switch {
	case !slices.Contains(members, want):
		result.Message = "a lost balancer here is replaced by 'skyserve up' only: machines at AWS with the role " + role + " may not act as service account " + f.ServiceAccount
	case len(others) > 0:
		result.Message = "service account " + f.ServiceAccount + " can also be used by " + others[0]
		result.Hint = "gcloud iam service-accounts remove-iam-policy-binding " + f.ServiceAccount + " --role " + roleFederated + " --member " + others[0]
	default:
		result.OK, result.Hint, result.Message = true, "", "controllers at AWS replace a lost balancer here: they act as service account "+f.ServiceAccount
	}
	return result
}

// unknownFederation returns the finding where the caller may not read the federation.
func unknownFederation(f Federation, err error) provision.CheckResult {
	return provision.CheckResult{Where: service.CloudGCP, OK: true, Warning: true, Message: fmt.Sprintf("whether machines at AWS may act as service account %s is unknown: %v", f.ServiceAccount, err)}
}
