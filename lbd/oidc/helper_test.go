package oidc

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"

	"skyserve/internal/service"
)

const (
	testIssuer   = "https://login.example.com/realms/main"
	testAudience = "chat"
)

// fakeIssuer is an issuer that a Verifier reaches through its transport.
type fakeIssuer struct {
	t testing.TB

	mu       sync.Mutex
	keys     []jose.JSONWebKey
	document string        // replaces the set of keys
	keysURL  string        // of the discovery document
	down     error         // of every request
	hangs    bool          // requests do not end before their context
	fetches  int           // of the set of keys
	delay    time.Duration // before each response
}

// signer is a private key with the id and algorithm of its tokens.
type signer struct {
	id        string
	algorithm jose.SignatureAlgorithm
	private   crypto.Signer
}

var testRSA = sync.OnceValue(func() *rsa.PrivateKey {
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		panic(err)
	}
	return key
})

func newECDSA(t testing.TB, id string) signer {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return signer{id, jose.ES256, key}
}

func newRSA(id string) signer { return signer{id, jose.RS256, testRSA()} }

func (s signer) public() jose.JSONWebKey {
	return jose.JSONWebKey{Key: s.private.Public(), KeyID: s.id, Algorithm: string(s.algorithm), Use: "sig"}
}

func newIssuer(t testing.TB, signers ...signer) *fakeIssuer {
	f := &fakeIssuer{t: t, keysURL: testIssuer + "/keys"}
	f.publish(signers...)
	return f
}

// publish replaces the keys of the issuer.
func (f *fakeIssuer) publish(signers ...signer) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.keys = nil
	for _, s := range signers {
		f.keys = append(f.keys, s.public())
	}
}

// change changes the issuer.
func (f *fakeIssuer) change(to func(*fakeIssuer)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	to(f)
}

// RoundTrip responds to a request.
func (f *fakeIssuer) RoundTrip(req *http.Request) (*http.Response, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if hangs, delay := f.hangs, f.delay; hangs || delay > 0 {
		f.mu.Unlock()
		var due <-chan time.Time
		if !hangs {
			due = time.After(delay)
		}
		select {
		case <-req.Context().Done():
			f.mu.Lock()
			return nil, req.Context().Err()
		case <-due:
		}
		f.mu.Lock()
	}
	if f.down != nil {
		return nil, f.down
	}
	w := httptest.NewRecorder()
	w.Header().Set("Content-Type", "application/json")
	switch req.URL.String() {
	case testIssuer + "/.well-known/openid-configuration":
		_ = json.NewEncoder(w).Encode(map[string]any{"issuer": testIssuer, "jwks_uri": f.keysURL, "id_token_signing_alg_values_supported": []string{"RS256", "HS256", "none"}})
	case testIssuer + "/keys":
		f.fetches++
		if f.document != "" {
			_, _ = w.WriteString(f.document)
			break
		}
		_ = json.NewEncoder(w).Encode(jose.JSONWebKeySet{Keys: f.keys})
	default:
		w.WriteHeader(http.StatusNotFound)
	}
	return w.Result(), nil
}

// fetched returns how often the keys were fetched.
func (f *fakeIssuer) fetched() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.fetches
}

// good returns the claims of a valid token.
func good(now time.Time) map[string]any {
	return map[string]any{
		"iss": testIssuer, "aud": testAudience, "sub": "alice@example.com", "org": "acme", "roles": []string{"reader", "batch"},
		"iat": now.Unix(), "nbf": now.Unix(), "exp": now.Add(time.Hour).Unix(),
	}
}

// with returns claims with changes; nil removes a claim.
func with(claims map[string]any, changes map[string]any) map[string]any {
	for name, value := range changes {
		if claims[name] = value; value == nil {
			delete(claims, name)
		}
	}
	return claims
}

// sign signs claims.
func (s signer) sign(t testing.TB, claims map[string]any) string {
	t.Helper()
	return signWith(t, jose.SigningKey{Algorithm: s.algorithm, Key: s.private}, s.id, claims)
}

func signWith(t testing.TB, key jose.SigningKey, id string, claims map[string]any) string {
	t.Helper()
	options := (&jose.SignerOptions{}).WithType("JWT")
	if id != "" {
		options = options.WithHeader("kid", id)
	}
	s, err := jose.NewSigner(key, options)
	if err != nil {
		t.Fatal(err)
	}
	payload, err := json.Marshal(claims)
	if err != nil {
		t.Fatal(err)
	}
	signed, err := s.Sign(payload)
	if err != nil {
		t.Fatal(err)
	}
	token, err := signed.CompactSerialize()
	if err != nil {
		t.Fatal(err)
	}
	return token
}

// verifierOf returns a verifier of the fake issuer's tokens. It is closed at the end of the test.
func verifierOf(t testing.TB, f *fakeIssuer, change func(*service.OIDC)) *Verifier {
	t.Helper()
	v := New(Options{Transport: f})
	t.Cleanup(v.Close)
	o := service.OIDC{Issuer: testIssuer, Audience: testAudience, TenantClaim: "org"}
	if change != nil {
		change(&o)
	}
	v.Configure([]service.OIDC{o}, service.KeyLimits{})
	return v
}

// reject returns the rejection of a token.
func reject(t testing.TB, v *Verifier, token string) *Rejection {
	t.Helper()
	_, err := v.Verify(t.Context(), token)
	var r *Rejection
	if !errors.As(err, &r) {
		t.Fatalf("got %v, want a rejection", err)
	}
	return r
}
