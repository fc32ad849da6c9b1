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

// metadataHost is the environment variable with the address of a metadata server, which Google's own
// libraries also read. An emulated cloud sets it.
const metadataHost = "GCE_METADATA_HOST"

// session is a project with its endpoints and credentials.
type session struct {
	project         string
	endpoint        string            // of Compute Engine
	resourceManager string            // of the Resource Manager
	iam             string            // of IAM
	billing         string            // of Cloud Billing
	storage         string            // of Cloud Storage
	unsigned        http.RoundTripper // does not sign requests
	transport       http.RoundTripper
	clock           *clock
}

// openSession loads the credentials and the project once and caches them. A failure is not cached, because
// the operator may correct its cause.
func (p *Provider) openSession(ctx context.Context) (*session, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.session != nil {
		return p.session, nil
	}
	limited := provision.LimitCallsByKey(p.cfg.Transport, regionOfCall)
	responseClock := &clock{}
	transport := http.RoundTripper(&retryTransport{next: limited, pauses: p.cfg.Poll > 0, clock: responseClock})
	s := &session{
		clock:           responseClock,
		endpoint:        p.endpointOf(computeAPI),
		resourceManager: p.endpointOf(resourceManagerAPI),
		iam:             p.endpointOf(iamAPI),
		billing:         p.endpointOf(billingAPI),
		storage:         p.endpointOf(storageAPI),
		unsigned:        transport,
	}
	scopes := []string{scope}
	switch {
	case p.cfg.MachinesOnly:
		scopes = []string{computeScope}
	case p.cfg.FilesOnly:
		scopes = []string{writingScope}
	}
	var creds *auth.Credentials
	var err error
	if s.transport, creds, err = p.signedTransport(transport, scopes...); err != nil {
		return nil, err
	}
	if s.project, err = projectOf(ctx, p.cfg.Project, creds); err != nil {
		return nil, err
	}
	p.session = s
	return s, nil
}

// endpointOf returns the base URL of an API.
func (p *Provider) endpointOf(api string) string {
	return cmp.Or(strings.TrimRight(p.cfg.Endpoint, "/"), "https://"+api)
}

// signedTransport returns a transport that signs requests with credentials of some scopes. It does not sign
// requests to a configured endpoint without credentials.
func (p *Provider) signedTransport(next http.RoundTripper, scopes ...string) (http.RoundTripper, *auth.Credentials, error) {
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
	// the client keeps the credentials and wraps their token provider: pass a copy
	own := *creds
	own.TokenProvider = tokenProvider{creds.TokenProvider}
	client, err := httptransport.NewClient(&httptransport.Options{Credentials: &own, BaseRoundTripper: next, DisableTelemetry: true})
	if err != nil {
		return nil, nil, noCredentials(err)
	}
	return client.Transport, creds, nil
}

// projectOf returns the project to use: the configured one, else that of the environment or of the
// credentials.
func projectOf(ctx context.Context, configured string, creds *auth.Credentials) (string, error) {
	if project := cmp.Or(configured, os.Getenv("GOOGLE_CLOUD_PROJECT")); project != "" {
		return project, nil
	}
	err := errors.New("the credentials contain no project")
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

// tokenProvider converts errors of a token provider to *provision.CredentialsError.
type tokenProvider struct{ auth.TokenProvider }

// Token returns an access token.
func (t tokenProvider) Token(ctx context.Context) (*auth.Token, error) {
	token, err := t.TokenProvider.Token(ctx)
	if err != nil && ctx.Err() == nil {
		err = noCredentials(err)
	}
	return token, err
}

// client returns an HTTP client whose requests end with ctx. It is required because Compute Engine's
// library does not pass the context to the requests of its lists.
func (s *session) client(ctx context.Context) *http.Client {
	return &http.Client{Transport: contextTransport{ctx, s.transport}}
}

// newClient returns a client of Compute Engine's library for calls within ctx.
func newClient[C any](ctx context.Context, p *Provider, make func(context.Context, ...option.ClientOption) (C, error)) (client C, project string, err error) {
	s, err := p.openSession(ctx)
	if err != nil {
		return client, "", err
	}
	client, err = make(ctx, option.WithEndpoint(s.endpoint), option.WithHTTPClient(s.client(ctx)))
	return client, s.project, err
}

// contextTransport sets the context of requests without one.
type contextTransport struct {
	ctx  context.Context // one call of a method
	next http.RoundTripper
}

// RoundTrip sends a request with the context.
func (t contextTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Context().Done() == nil {
		r = r.WithContext(t.ctx)
	}
	return t.next.RoundTrip(r)
}
