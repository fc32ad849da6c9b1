package oidc

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	gooidc "github.com/coreos/go-oidc/v3/oidc"

	"skyserve/internal/service"
)

// Options are the options of New.
type Options struct {
	// Logger receives failures of issuers; nil = none. Tokens are never logged.
	Logger *slog.Logger
	// Transport sends requests to issuers; nil = one with the system's roots and proxy.
	Transport http.RoundTripper
}

// Verifier verifies tokens of the configured issuers. All its methods are safe for concurrent use.
type Verifier struct {
	client     *http.Client
	log        *slog.Logger
	now        func() time.Time
	generation atomic.Uint64
	settings   atomic.Pointer[settings]
	results    [resultKinds]atomic.Int64

	mu      sync.Mutex
	sets    map[string]*runningSet // by issuer
	closed  bool
	running sync.WaitGroup
}

// settings are the configuration of a Verifier. It is never changed.
type settings struct {
	issuers []issuer
	limits  service.KeyLimits
}

// issuer is one configured issuer with its keys.
type issuer struct {
	service.OIDC
	keys *keySet
}

// runningSet is a set of keys with the end of its goroutine.
type runningSet struct {
	*keySet
	stop context.CancelFunc
}

// New returns a verifier without issuers.
func New(o Options) *Verifier {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Transport == nil {
		o.Transport = http.DefaultTransport.(*http.Transport).Clone()
	}
	v := &Verifier{log: o.Logger, now: time.Now, sets: map[string]*runningSet{}}
	v.client = &http.Client{
		Transport: boundedTransport{o.Transport},
		// An issuer's documents are where it says; a redirect could lead to another machine.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	v.settings.Store(&settings{})
	return v
}

// boundedTransport limits the size of responses.
type boundedTransport struct{ http.RoundTripper }

// RoundTrip sends a request.
func (t boundedTransport) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := t.RoundTripper.RoundTrip(req)
	if err == nil {
		resp.Body = struct {
			io.Reader
			io.Closer
		}{io.LimitReader(resp.Body, maxDocument), resp.Body}
	}
	return resp, err
}

// CloseIdleConnections closes the idle connections to issuers.
func (t boundedTransport) CloseIdleConnections() {
	if t, ok := t.RoundTripper.(interface{ CloseIdleConnections() }); ok {
		t.CloseIdleConnections()
	}
}

// Configure replaces the issuers and the default limits of users. An issuer that remains keeps its keys.
// It does not wait for issuers: until the keys of one are there, its tokens are rejected as unavailable.
func (v *Verifier) Configure(issuers []service.OIDC, limits service.KeyLimits) {
	v.mu.Lock()
	defer v.mu.Unlock()
	next, kept := &settings{limits: limits}, map[string]bool{}
	for _, o := range issuers {
		kept[o.Issuer] = true
		next.issuers = append(next.issuers, issuer{o, v.keysOf(o.Issuer)})
	}
	for name, set := range v.sets {
		if !kept[name] {
			set.stop()
			delete(v.sets, name)
		}
	}
	v.settings.Store(next)
	v.generation.Add(1)
}

// keysOf returns the keys of an issuer, fetched from now on; the lock must be held.
func (v *Verifier) keysOf(name string) *keySet {
	if set := v.sets[name]; set != nil {
		return set.keySet
	}
	ctx, stop := context.WithCancel(context.Background())
	set := &runningSet{newKeySet(name, v), stop}
	if v.closed {
		stop()
		return set.keySet
	}
	v.sets[name] = set
	v.running.Go(func() { set.run(ctx) })
	return set.keySet
}

// Close stops fetching keys and waits for the end.
func (v *Verifier) Close() {
	v.mu.Lock()
	v.closed = true
	for _, set := range v.sets {
		set.stop()
	}
	v.mu.Unlock()
	v.running.Wait()
	v.client.CloseIdleConnections()
}

// Enabled reports whether there are issuers; there are none if v is nil.
func (v *Verifier) Enabled() bool { return v != nil && len(v.settings.Load().issuers) > 0 }

// Generation changes whenever a token that was verified before may be rejected now or have other limits:
// with the configuration and with the keys of an issuer.
func (v *Verifier) Generation() uint64 { return v.generation.Load() }

// Identity is the result of a verified token.
type Identity struct {
	// User has the rights and limits of the token's user, without a Secret.
	User service.APIKey
	// Expires is when the token must be rejected.
	Expires time.Time
}

// RejectKind is why a token is rejected.
type RejectKind int

// The kinds of rejections.
const (
	// RejectInvalid: the token is not valid; the client needs another one.
	RejectInvalid RejectKind = iota
	// RejectForbidden: the token is valid, but its roles do not permit requests.
	RejectForbidden
	// RejectUnavailable: the token cannot be verified now, because of its issuer.
	RejectUnavailable
)

// Rejection is the error of a rejected token.
type Rejection struct {
	Kind RejectKind
	// Reason contains only printable ASCII characters without double quotes and backslashes, and no part of the
	// token except claims and its header's fields.
	Reason string
}

// Error returns the reason.
func (r *Rejection) Error() string { return r.Reason }

// Verify verifies a token. It waits for at most maxWait, if the token's key is unknown. Its error is a
// *Rejection.
func (v *Verifier) Verify(ctx context.Context, token string) (Identity, error) {
	id, err := v.verify(ctx, token)
	if err == nil {
		v.results[resultVerified].Add(1)
		return id, nil
	}
	var unavailable *errUnavailable
	rejection := &Rejection{Kind: RejectInvalid, Reason: err.Error()}
	switch {
	case errors.As(err, &rejection): // its kind is known
	case errors.As(err, &unavailable):
		rejection.Kind = RejectUnavailable
	}
	v.results[resultOf(rejection.Kind)].Add(1)
	return Identity{}, rejection
}

func (v *Verifier) verify(ctx context.Context, token string) (Identity, error) {
	c, algorithm, err := parseToken(token)
	if err != nil {
		return Identity{}, err
	}
	s, now := v.settings.Load(), v.now()
	i := slices.IndexFunc(s.issuers, func(o issuer) bool { return o.Issuer == c.Issuer })
	if i < 0 {
		return Identity{}, errors.New("the issuer " + quote(c.Issuer) + " of the token is not accepted")
	}
	o := &s.issuers[i]
	if err := o.check(&c, algorithm, now); err != nil {
		return Identity{}, err
	}
	verified, err := o.verifySignature(ctx, token, now)
	if err != nil {
		return Identity{}, err
	}
	user, err := o.grant(verified, c.Subject, s.limits)
	return Identity{User: user, Expires: time.Time(*c.Expires).Add(clockSkew)}, err
}

// check checks everything except the signature.
func (o *issuer) check(c *claims, algorithm string, now time.Time) error {
	if !slices.Contains(algorithmNames(), algorithm) {
		return errors.New("the signature algorithm " + quote(algorithm) + " of the token is not accepted")
	}
	if err := c.checkAudience(o.Audience); err != nil {
		return err
	}
	if err := c.checkTimes(now); err != nil {
		return err
	}
	if strings.TrimSpace(c.Subject) == "" {
		return errors.New("the token has no subject (sub)")
	}
	return nil
}

// algorithmNames returns the accepted algorithms.
func algorithmNames() []string {
	names := make([]string, len(algorithms))
	for i, a := range algorithms {
		names[i] = string(a)
	}
	return names
}

// attempt verifies one signature and keeps the error, which the library turns into text.
type attempt struct {
	keys *keySet
	err  error
}

// VerifySignature verifies the signature of a token and returns its payload.
func (a *attempt) VerifySignature(ctx context.Context, token string) (payload []byte, err error) {
	payload, a.err = a.keys.verify(ctx, token)
	return payload, a.err
}

// verifySignature verifies the signature, and once more what check has checked.
func (o *issuer) verifySignature(ctx context.Context, token string, now time.Time) (*gooidc.IDToken, error) {
	a := &attempt{keys: o.keys}
	verified, err := gooidc.NewVerifier(o.Issuer, a, &gooidc.Config{
		ClientID: o.Audience, SupportedSigningAlgs: algorithmNames(), Now: func() time.Time { return now.Add(-clockSkew) },
	}).Verify(ctx, token)
	switch {
	case a.err != nil:
		return nil, a.err
	case err != nil:
		return nil, errors.New("the token is malformed")
	}
	return verified, nil
}

// Problem is an issuer whose keys could not be fetched.
type Problem struct {
	Issuer string
	Since  time.Time // of the first failure in a row
	// KeysUntil is when its keys are dropped; zero if there are none.
	KeysUntil time.Time
	Err       error
}

// Problems returns the issuers that do not respond now, sorted; none if v is nil.
func (v *Verifier) Problems() (list []Problem) {
	if v == nil {
		return nil
	}
	for _, o := range v.settings.Load().issuers {
		if p, failing := o.keys.problem(); failing {
			list = append(list, p)
		}
	}
	slices.SortFunc(list, func(a, b Problem) int { return strings.Compare(a.Issuer, b.Issuer) })
	return list
}

// problem returns the problem of an issuer; failing is false if there is none.
func (k *keySet) problem() (p Problem, failing bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.failedAt.IsZero() {
		return p, false
	}
	p = Problem{Issuer: k.issuer, Since: k.failedAt, Err: k.err}
	if until := k.fetchedAt.Add(maxKeyAge); !k.fetchedAt.IsZero() && k.now().Before(until) {
		p.KeysUntil = until
	}
	return p, true
}
