package proxy

import (
	"context"
	"crypto/sha256"
	"errors"
	"net/http"
	"strings"
	"sync"
	"time"

	"skyserve/lbd/oidc"
	"skyserve/lbd/openai"
	"skyserve/lbd/quota"
)

// retryIssuer is the Retry-After in seconds while the issuer of a token does not respond.
const retryIssuer = 5

// identityTokens finds the account of the user of an identity token. A verified token is remembered until it
// expires. A later request with it costs as little as one with an API key.
type identityTokens struct {
	verifier *oidc.Verifier
	ledger   *quota.Ledger
	elapsed  func() time.Duration

	mu sync.RWMutex
	// recent and earlier are the verified tokens by hash. When recent is full, it becomes earlier.
	recent, earlier map[[sha256.Size]byte]verifiedToken
}

// verifiedToken is a token that was verified.
type verifiedToken struct {
	account *quota.Account
	expires time.Time
	stamp   uint64 // identityTokens.stamp when it was verified
}

// maxVerifiedTokens is the maximum size of each of the two maps: 5 MB. A balancer has fewer users in
// an hour.
const maxVerifiedTokens = 1 << 15

func newIdentityTokens(v *oidc.Verifier, l *quota.Ledger, elapsed func() time.Duration) *identityTokens {
	return &identityTokens{verifier: v, ledger: l, elapsed: elapsed, recent: map[[sha256.Size]byte]verifiedToken{}}
}

// enabled reports whether clients may present identity tokens.
func (t *identityTokens) enabled() bool { return t.verifier.Enabled() }

// stamp changes whenever a verified token may belong to another account, or may no longer be valid.
func (t *identityTokens) stamp() uint64 { return t.verifier.Generation() + t.ledger.DropGeneration() }

// account returns the account of a token's user. hash is the hash of the token.
func (t *identityTokens) account(ctx context.Context, hash [sha256.Size]byte, token string) (*quota.Account, *openai.Error) {
	if a := t.find(hash); a != nil {
		return a, nil
	}
	stamp := t.stamp()
	id, err := t.verifier.Verify(ctx, token)
	if err != nil {
		return nil, errToken(err)
	}
	a, err := t.ledger.OpenUser(id.User, t.elapsed())
	if err != nil {
		return nil, errManyUsers("identity token: ", err)
	}
	t.remember(hash, verifiedToken{a, id.Expires, stamp})
	return a, nil
}

// find returns the account of a token that was verified and is still valid; nil if there is none.
func (t *identityTokens) find(hash [sha256.Size]byte) *quota.Account {
	t.mu.RLock()
	v, known := t.recent[hash]
	old := !known
	if old {
		v, known = t.earlier[hash]
	}
	t.mu.RUnlock()
	if !known || v.stamp != t.stamp() || time.Now().After(v.expires) {
		return nil
	}
	if old {
		t.remember(hash, v)
	}
	return v.account
}

// remember stores a verified token.
func (t *identityTokens) remember(hash [sha256.Size]byte, v verifiedToken) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.recent) >= maxVerifiedTokens {
		t.earlier, t.recent = t.recent, map[[sha256.Size]byte]verifiedToken{}
	}
	t.recent[hash] = v
}

// errManyUsers returns the error for a user for whom there is no account. subject begins its message.
func errManyUsers(subject string, err error) *openai.Error {
	return &openai.Error{
		Status: http.StatusServiceUnavailable, Kind: openai.TypeServer, Code: "too_many_users", RetryAfter: 60,
		Message: subject + err.Error() + ": ask the operator for an API key, or retry later",
	}
}

// errToken returns the error for a rejected token. It contains the reason and never the token.
func errToken(err error) *openai.Error {
	var rejection *oidc.Rejection
	if !errors.As(err, &rejection) {
		rejection = &oidc.Rejection{Reason: "the token cannot be verified"}
	}
	e := &openai.Error{Status: http.StatusUnauthorized, Kind: openai.TypeAuth, Code: "invalid_token", Message: "identity token: " + rejection.Reason}
	switch rejection.Kind {
	case oidc.RejectForbidden:
		e.Status, e.Kind, e.Code = http.StatusForbidden, openai.TypePermission, "role_required"
		e.Challenge = challenge("insufficient_scope", rejection.Reason)
	case oidc.RejectUnavailable:
		e.Status, e.Kind, e.Code, e.RetryAfter = http.StatusServiceUnavailable, openai.TypeServer, "issuer_unavailable", retryIssuer
	default:
		e.Challenge = challenge("invalid_token", rejection.Reason)
	}
	return e
}

// challenge returns a WWW-Authenticate header (RFC 6750, section 3).
func challenge(code, description string) string {
	return `Bearer error="` + code + `", error_description="` + description + `"`
}

// bearer returns the credential of a request; ok is false if it has none. Authorization has precedence
// over X-Api-Key, the header of Anthropic's clients: with an invalid credential in the former, the latter
// is not tried.
func bearer(h http.Header) (credential string, ok bool) {
	given := h.Get("Authorization")
	if given == "" {
		credential = strings.TrimSpace(h.Get(headerAPIKey))
		return credential, credential != ""
	}
	scheme, credential, _ := strings.Cut(given, " ")
	credential = strings.TrimSpace(credential)
	return credential, strings.EqualFold(scheme, "Bearer") && credential != ""
}
