package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"skyserve/internal/service"
	"skyserve/provision"
	"skyserve/provision/aws"
	"skyserve/provision/cloud"
	"skyserve/provision/gcp"
	"skyserve/provision/remote"
)

// noteFederation is the note that records how controllers call the API of the cloud whose only balancer they replace.
const noteFederation = "federation.json"

// identityTimeout is the timeout for an identity token of the machine's own metadata server.
const identityTimeout = 10 * time.Second

// federation is how the controllers of a service act in cloud.FederatedCloud, or change DNS records (cloud.UpdatesRecordsByFederation);
// the zero value if they do not. It contains no secrets.
type federation struct {
	// Role is the ARN of the IAM role that machines at Google assume, Email their service account, and Account its unique
	// id. RecordsOnly is true if the role can only change DNS records.
	Role        string `json:"role,omitempty"`
	RecordsOnly bool   `json:"records_only,omitempty"`
	Email       string `json:"email,omitempty"`
	Account     string `json:"account,omitempty"`
	// Google is how machines at AWS act as a service account, and RoleName the IAM role of these machines.
	Google   gcp.Federation `json:"google,omitzero"`
	RoleName string         `json:"role_name,omitempty"`
}

// roleNames is a provider of AWS that names the roles of identities, and googleIdentities one of Google with the
// identities there.
type (
	roleNames interface {
		RoleARN(ctx context.Context, name string, role provision.Role) (arn string, err error)
	}
	googleIdentities interface {
		BalancerAccount(ctx context.Context, name string) (email, uniqueID string, err error)
		FederationFor(ctx context.Context, name, accountAWS string) (gcp.Federation, error)
		CheckFederation(ctx context.Context, f gcp.Federation, role string) provision.CheckResult
	}
)

// federationOf returns how the controllers of a service replace the only balancer of a cloud, or change DNS records. A cloud
// that denies reading the identities is no failure: problem tells why a lost balancer then waits for `up`.
func federationOf(ctx context.Context, spec *service.Spec, places provision.MultiCloud) (f federation, problem, err error) {
	in, records := cloud.FederatedCloud(spec), cloud.UpdatesRecordsByFederation(spec)
	atAWS, isAWS := places[service.CloudAWS].(roleNames)
	atGoogle, isGoogle := places[service.CloudGCP].(googleIdentities)
	if in == "" && !records || !isAWS || !isGoogle {
		return f, nil, nil
	}
	of := provision.RoleBalancer
	if records {
		of = cloud.RoleDNS
	}
	role, err := atAWS.RoleARN(ctx, spec.Name, of)
	if err == nil && (records || in == service.CloudAWS) {
		f.Role, f.RecordsOnly = role, records
		f.Email, f.Account, err = atGoogle.BalancerAccount(ctx, spec.Name)
	} else if err == nil {
		f.Google, err = atGoogle.FederationFor(ctx, spec.Name, accountOf(role))
		f.RoleName = role[strings.LastIndex(role, "/")+1:]
	}
	var denied *provision.CredentialsError
	if errors.As(err, &denied) {
		return federation{}, err, nil
	}
	return f, nil, err
}

// credentialsAWS returns the credentials of Role for a machine at Google. region may be empty.
func (f federation) credentialsAWS(session, region, endpoint string) aws.Credentials {
	return aws.FederatedCredentials(f.Role, session, region, endpoint, func() ([]byte, error) {
		ctx, cancel := context.WithTimeout(context.Background(), identityTimeout) // credentials outlive each call
		defer cancel()
		return gcp.IdentityToken(ctx, aws.AudienceGoogle)
	})
}

// accountOf returns the number of the AWS account in an ARN.
func accountOf(arn string) string {
	parts := strings.Split(arn, ":")
	if len(parts) < 5 {
		return ""
	}
	return parts[4]
}

// findFederation checks whether the controllers replace the only balancer of a cloud, or change DNS records.
func (o *doctorOptions) findFederation(ctx context.Context, spec *service.Spec, places provision.MultiCloud) ([]provision.CheckResult, error) {
	in, waits := cloud.FederatedCloud(spec), "a lost balancer here is replaced"
	switch {
	case cloud.UpdatesRecordsByFederation(spec):
		in, waits = service.CloudAWS, "the DNS record of a replaced balancer is changed"
	case in == "":
		return nil, nil
	}
	f, problem, err := federationOf(ctx, spec, places)
	if err = errors.Join(problem, err); err != nil {
		found := provision.CheckResult{Where: in, Message: fmt.Sprintf("%s by 'skyserve up' only: %v", waits, err), Hint: "set gcp.federation to false if that is intended"}
		var denied *provision.CredentialsError
		if errors.As(err, &denied) && denied.Hint != "" {
			found.Hint = denied.Hint
		}
		return []provision.CheckResult{found}, nil
	}
	if f.RecordsOnly {
		return []provision.CheckResult{{Where: in, OK: true, Message: "controllers at Google change the DNS records of balancers that they replace: 'up' creates an IAM role for this, which service account " + f.Email + " assumes"}}, nil
	}
	if in == service.CloudAWS {
		return []provision.CheckResult{{Where: in, OK: true, Message: "controllers at Google replace a lost balancer here: 'up' lets service account " + f.Email + " assume the role of balancers"}}, nil
	}
	return []provision.CheckResult{places[service.CloudGCP].(googleIdentities).CheckFederation(ctx, f.Google, f.RoleName)}, nil //nolint:errcheck // federationOf returns problems of other providers
}

// useFederation reads the service's identities in both clouds.
func (u *upRun) useFederation(ctx context.Context) (err error) {
	if u.filter != nil {
		return u.svc.LoadValue(noteFederation, &u.federation)
	}
	u.federation, u.federationProblem, err = federationOf(ctx, u.spec, u.places)
	return err
}

// printFederation prints who replaces the only balancer of a cloud, or changes DNS records.
func printFederation(w io.Writer, spec *service.Spec, problem error) {
	in := cloud.FederatedCloud(spec)
	switch {
	case cloud.UpdatesRecordsByFederation(spec) && problem != nil:
		fmt.Fprintf(w, "the DNS record of a replaced balancer is changed by 'skyserve up' only, because the identity of balancers is unknown: %v\n", problem)
		return
	case cloud.UpdatesRecordsByFederation(spec):
		fmt.Fprintln(w, "controllers at Google change the DNS records of balancers that they replace, by an IAM role at AWS for this alone (gcp.federation)")
		return
	case in == "":
		return
	}
	if problem != nil {
		fmt.Fprintf(w, "a lost balancer in %s is replaced by 'skyserve up' only, because the identities of the other cloud are unknown: %v\n", in, problem)
		return
	}
	fmt.Fprintf(w, "controllers in the other cloud replace a lost balancer in %s, by workload identity federation (gcp.federation)\n", in)
}

// reachFederated returns the calls of a controller to the cloud of some regions, which is not its own; nil if the service
// has no federation.
func reachFederated(ctx context.Context, text json.RawMessage, spec *service.Spec, owner string, home service.Region) (remote.CallFunc, error) {
	var m cloudAccess
	if err := json.Unmarshal(text, &m); err != nil {
		return nil, fmt.Errorf("reading the cloud access configuration: %w", err)
	}
	if m.Federation == (federation{}) {
		return nil, nil
	}
	regions := cloud.ManagedRegions(spec)
	var by cloudFlags
	var err error
	if m.Federation.Role != "" {
		by.credentialsAWS = m.Federation.credentialsAWS("skyserve-"+spec.Name, regions[0].ShortName(), m.EndpointAWS)
	} else if by.project = m.Federation.Google.Project; by.project == "" {
		return nil, nil
	} else if by.credentialsGCP, err = gcp.FederatedCredentials(m.Federation.Google, home.ShortName(), m.EndpointGCP, aws.MachineCredentials); err != nil {
		return nil, err
	}
	places, lists, err := providersInside(ctx, text, regions, by)
	if err != nil {
		return nil, err
	}
	h := &remote.Handler{Service: spec.Name, Owner: owner, Balancers: true, Provider: places, Attestor: places, ByRegion: lists}
	h.Records, err = recordsInside(ctx, m, regions, by)
	return h.Call, err
}
