package gcp

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"

	"cloud.google.com/go/auth"
	"cloud.google.com/go/auth/credentials"
	"cloud.google.com/go/auth/httptransport"
	"google.golang.org/api/option"

	"skyserve/provision"
)

// scope is what access tokens are asked for: Compute Engine, whether the caller has the
// permissions that it takes, and prices. Machines of a service have computeScope, and for
// prices billingScope.
const (
	scope        = "https://www.googleapis.com/auth/cloud-platform"
	computeScope = "https://www.googleapis.com/auth/compute"
	billingScope = "https://www.googleapis.com/auth/cloud-billing.readonly"
)

// metadataHost names the variable by which Google's own libraries find the metadata server of
// a machine that is not at its usual address, as in an emulated cloud.
const metadataHost = "GCE_METADATA_HOST"

// session is a project and the way to it.
type session struct {
	project  string
	endpoint string            // of Compute Engine
	resource string            // of the Resource Manager
	identity string            // of IAM
	billing  string            // of Cloud Billing
	plain    http.RoundTripper // signs nothing
	carrier  http.RoundTripper
	clock    *clock
}

// open finds the credentials and the project, once; a failure is not kept, for the
// operator may set it right.
func (p *Provider) open(ctx context.Context) (*session, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.session != nil {
		return p.session, nil
	}
	bounded := provision.BoundedBy(p.cfg.Transport, regionOfCall)
	read := &clock{}
	carrier := http.RoundTripper(&repeating{next: bounded, pauses: p.cfg.Poll > 0, clock: read})
	s := &session{
		clock:    read,
		endpoint: cmp.Or(strings.TrimRight(p.cfg.Endpoint, "/"), "https://compute.googleapis.com"),
		resource: cmp.Or(strings.TrimRight(p.cfg.Endpoint, "/"), "https://cloudresourcemanager.googleapis.com"),
		identity: cmp.Or(strings.TrimRight(p.cfg.Endpoint, "/"), "https://iam.googleapis.com"),
		billing:  cmp.Or(strings.TrimRight(p.cfg.Endpoint, "/"), "https://cloudbilling.googleapis.com"),
		plain:    carrier,
	}
	scopes := []string{scope}
	if p.cfg.MachinesOnly {
		scopes = []string{computeScope}
	}
	var creds *auth.Credentials
	var err error
	if s.carrier, creds, err = p.signed(carrier, scopes...); err != nil {
		return nil, err
	}
	if s.project, err = projectOf(ctx, p.cfg.Project, creds); err != nil {
		return nil, err
	}
	p.session = s
	return s, nil
}

// signed is a transport that signs requests with credentials of some scopes; where there
// are none to look for, it does not.
func (p *Provider) signed(next http.RoundTripper, scopes ...string) (http.RoundTripper, *auth.Credentials, error) {
	creds := p.cfg.Credentials
	if creds == nil && (p.cfg.Endpoint == "" || os.Getenv(metadataHost) != "") {
		var err error
		if creds, err = credentials.DetectDefault(&credentials.DetectOptions{Scopes: scopes}); err != nil {
			return nil, nil, noCredentials(err)
		}
	}
	if creds == nil {
		return next, nil, nil
	}
	// the client keeps the credentials, and wraps their provider of tokens: a copy
	own := *creds
	own.TokenProvider = tokens{creds.TokenProvider}
	client, err := httptransport.NewClient(&httptransport.Options{Credentials: &own, BaseRoundTripper: next, DisableTelemetry: true})
	if err != nil {
		return nil, nil, noCredentials(err)
	}
	return client.Transport, creds, nil
}

// projectOf is the project to work in.
func projectOf(ctx context.Context, named string, creds *auth.Credentials) (string, error) {
	if project := cmp.Or(named, os.Getenv("GOOGLE_CLOUD_PROJECT")); project != "" {
		return project, nil
	}
	err := errors.New("the credentials name no project")
	if creds != nil {
		project, lookup := creds.ProjectID(ctx)
		if project != "" {
			return project, nil
		}
		if lookup != nil {
			err = lookup
		}
	}
	return "", &provision.CredentialsError{
		Cloud: "gcp", Err: fmt.Errorf("finding the project: %w", err), Hint: "set GOOGLE_CLOUD_PROJECT to the id of your project",
	}
}

// tokens marks what goes wrong with a token as what it is.
type tokens struct{ auth.TokenProvider }

// Token is an access token.
func (t tokens) Token(ctx context.Context) (*auth.Token, error) {
	token, err := t.TokenProvider.Token(ctx)
	if err != nil && ctx.Err() == nil {
		err = noCredentials(err)
	}
	return token, err
}

// client is an HTTP client whose requests end with ctx. Compute Engine's library
// leaves the context out of the requests of its lists.
func (s *session) client(ctx context.Context) *http.Client {
	return &http.Client{Transport: within{ctx, s.carrier}}
}

// through makes a client of Compute Engine's library for calls within ctx.
func through[C any](ctx context.Context, p *Provider, make func(context.Context, ...option.ClientOption) (C, error)) (client C, project string, err error) {
	s, err := p.open(ctx)
	if err != nil {
		return client, "", err
	}
	client, err = make(ctx, option.WithEndpoint(s.endpoint), option.WithHTTPClient(s.client(ctx)))
	return client, s.project, err
}

// within gives requests that have no context of their own one.
type within struct {
	ctx  context.Context // it lives as long as one call of a method
	next http.RoundTripper
}

// RoundTrip sends a request within the context.
func (t within) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Context().Done() == nil {
		r = r.WithContext(t.ctx)
	}
	return t.next.RoundTrip(r)
}
