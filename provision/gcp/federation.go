package gcp

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strings"

	"cloud.google.com/go/auth"
	"cloud.google.com/go/auth/credentials/externalaccount"
	gcemetadata "cloud.google.com/go/compute/metadata"

	"skyserve/internal/service"
	"skyserve/provision"
)

// Credentials authenticate calls.
type Credentials = auth.Credentials

// federationPool is the id of the workload identity pool through which machines at AWS act as service accounts, one per
// project, and federationProvider the id of its provider for an AWS account.
const (
	federationPool     = "skyserve"
	federationProvider = "aws-"
)

// IdentityToken returns a token of this machine's service account for an audience, from the metadata server.
func IdentityToken(ctx context.Context, audience string) ([]byte, error) {
	token, err := gcemetadata.GetWithContext(ctx, metadataToken+"?format=full&audience="+url.QueryEscape(audience))
	if err != nil {
		return nil, &provision.CredentialsError{Cloud: service.CloudGCP, Action: "requesting an identity token from the metadata server", Err: err}
	}
	return []byte(token), nil
}

// BalancerAccount returns the service account of a service's balancers with its unique id, which no later account of
// the same name has. Errors include *provision.CredentialsError.
func (p *Provider) BalancerAccount(ctx context.Context, name string) (email, uniqueID string, err error) {
	s, err := p.openSession(ctx)
	if err != nil {
		return "", "", err
	}
	email = p.account(name, provision.RoleBalancer, "", s.project)
	var found struct {
		UniqueID string `json:"uniqueId"`
	}
	if err := p.callAPI(ctx, http.MethodGet, s.iam+"/v1/projects/-/serviceAccounts/"+email, nil, &found); err != nil {
		return "", "", wrapError(err, "reading service account %s", email)
	}
	return email, found.UniqueID, nil
}

// Federation is how machines at AWS act as a service account: they prove their IAM role to a workload identity pool.
type Federation struct {
	// Project is the id of the project, which federated credentials do not contain.
	Project string `json:"project"`
	// Pool is the path of the pool, with the number of the project, and AccountAWS the number of the AWS account.
	Pool       string `json:"pool"`
	AccountAWS string `json:"account_aws"`
	// ServiceAccount is the e-mail address of the service account.
	ServiceAccount string `json:"service_account"`
}

// FederationFor returns how machines with an IAM role of AWS act as the service account of a service's balancers. It does
// not check whether the pool exists. Errors include *provision.CredentialsError.
func (p *Provider) FederationFor(ctx context.Context, name, accountAWS string) (Federation, error) {
	s, err := p.openSession(ctx)
	if err != nil {
		return Federation{}, err
	}
	var found struct {
		ProjectNumber string `json:"projectNumber"`
	}
	if err := p.callAPI(ctx, http.MethodGet, s.resourceManager+"/v1/projects/"+s.project, nil, &found); err != nil {
		return Federation{}, wrapError(err, "reading the number of project %s", s.project)
	}
	return Federation{
		Project: s.project, Pool: "projects/" + found.ProjectNumber + "/locations/global/workloadIdentityPools/" + federationPool, AccountAWS: accountAWS,
		ServiceAccount: p.account(name, provision.RoleBalancer, "", s.project),
	}, nil
}

// roleKeys reads the current credentials of a machine's IAM role for a region of AWS.
type roleKeys struct {
	region string
	read   func(ctx context.Context, region string) (key, secret, token string, err error)
}

// AwsRegion implements externalaccount.AwsSecurityCredentialsProvider.
func (k roleKeys) AwsRegion(context.Context, *externalaccount.RequestOptions) (string, error) {
	return k.region, nil
}

// AwsSecurityCredentials implements externalaccount.AwsSecurityCredentialsProvider.
func (k roleKeys) AwsSecurityCredentials(ctx context.Context, _ *externalaccount.RequestOptions) (*externalaccount.AwsSecurityCredentials, error) {
	key, secret, token, err := k.read(ctx, k.region)
	return &externalaccount.AwsSecurityCredentials{AccessKeyID: key, SecretAccessKey: secret, SessionToken: token}, err
}

// FederatedCredentials returns credentials of a service account for a machine at AWS, valid for an hour and renewed before
// they expire. endpoint is Config.Endpoint; keys reads the credentials of the machine's IAM role, with which a request is
// signed that only Google sends to AWS.
func FederatedCredentials(f Federation, region, endpoint string, keys func(ctx context.Context, region string) (key, secret, token string, err error)) (*Credentials, error) {
	of := func(api string) string { return cmp.Or(strings.TrimRight(endpoint, "/"), "https://"+api) }
	creds, err := externalaccount.NewCredentials(&externalaccount.Options{
		Audience: federatedAudience + f.Pool + "/providers/" + federationProvider + f.AccountAWS, SubjectTokenType: tokenTypeAWS, TokenURL: of(stsAPI) + "/v1/token",
		ServiceAccountImpersonationURL: of(impersonationAPI) + "/v1/projects/-/serviceAccounts/" + f.ServiceAccount + ":generateAccessToken",
		Scopes:                         []string{computeScope, billingScope}, AwsSecurityCredentialsProvider: roleKeys{region, keys},
		Client: &http.Client{Transport: provision.LimitCallsPerHost(http.DefaultTransport), Timeout: callTimeout},
	})
	if err != nil {
		return nil, fmt.Errorf("configuring the credentials of service account %s: %w", f.ServiceAccount, err)
	}
	return creds, nil
}
