package oidc

import (
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-jose/go-jose/v4"

	"skyserve/internal/service"
)

func TestInvalidTokensAreRejected(t *testing.T) {
	rsaKey, ecKey, unknown := newRSA("k1"), newECDSA(t, "k2"), newECDSA(t, "k9")
	stranger := newECDSA(t, "k2") // another key with a known id
	synctest.Test(t, func(t *testing.T) {
		v := verifierOf(t, newIssuer(t, rsaKey, ecKey), nil)
		now := time.Now()
		public, err := x509.MarshalPKIXPublicKey(rsaKey.private.Public())
		if err != nil {
			t.Fatal(err)
		}
		claims := func(changes map[string]any) map[string]any { return with(good(now), changes) }
		part := func(document any) string {
			data, err := json.Marshal(document)
			if err != nil {
				t.Fatal(err)
			}
			return base64.RawURLEncoding.EncodeToString(data)
		}
		valid := ecKey.sign(t, good(now))
		head, rest, _ := strings.Cut(valid, ".")
		payload, signature, _ := strings.Cut(rest, ".")
		for _, c := range []struct{ name, token, want string }{
			{"expired", ecKey.sign(t, claims(map[string]any{"exp": now.Add(-61 * time.Second).Unix()})), "the token expired at 1999-12-31T23:58:59Z"},
			{"without expiry", ecKey.sign(t, claims(map[string]any{"exp": nil})), "the token has no expiry (exp)"},
			{"far expiry", ecKey.sign(t, claims(map[string]any{"exp": 1e300})), "the claims of the token are not JSON in base64url, or have a wrong type"},
			{"text as expiry", ecKey.sign(t, claims(map[string]any{"exp": "tomorrow"})), "the claims of the token are not JSON in base64url, or have a wrong type"},
			{"not yet valid", ecKey.sign(t, claims(map[string]any{"nbf": now.Add(61 * time.Second).Unix()})), "the token is not valid before 2000-01-01T00:01:01Z"},
			{"issued in the future", ecKey.sign(t, claims(map[string]any{"iat": now.Add(2 * time.Minute).Unix()})), "the token was issued in the future, at 2000-01-01T00:02:00Z"},
			{"other audience", ecKey.sign(t, claims(map[string]any{"aud": "mail"})), "the token is for audience 'mail', want 'chat'"},
			{"other audiences", ecKey.sign(t, claims(map[string]any{"aud": []string{"mail", "chat2"}})), "the token is for audience 'mail chat2', want 'chat'"},
			{"no audience", ecKey.sign(t, claims(map[string]any{"aud": nil})), "the token has no audience, want 'chat'"},
			{"other issuer", ecKey.sign(t, claims(map[string]any{"iss": "https://evil.example.com"})), "the issuer 'https://evil.example.com' of the token is not accepted"},
			{"issuer with a slash", ecKey.sign(t, claims(map[string]any{"iss": testIssuer + "/"})), "the issuer '" + testIssuer + "/' of the token is not accepted"},
			{"hostile issuer", ecKey.sign(t, claims(map[string]any{"iss": "\"\r\nSet-Cookie: a\\" + strings.Repeat("x", 100)})), "the issuer '???Set-Cookie: a?" + strings.Repeat("x", 63) + "...' of the token is not accepted"},
			{"no subject", ecKey.sign(t, claims(map[string]any{"sub": " "})), "the token has no subject (sub)"},
			{"no tenant", ecKey.sign(t, claims(map[string]any{"org": nil})), "the token has no claim 'org', which contains the tenant"},
			{"tenant in a list", ecKey.sign(t, claims(map[string]any{"org": []string{"acme"}})), "the claim 'org' of the token, which contains the tenant, is not text"},
			{"hostile tenant", ecKey.sign(t, claims(map[string]any{"org": "a\nb"})), "the claim 'org' of the token is not the name of a tenant: 'a?b'"},
			{"unknown key", unknown.sign(t, good(now)), "the token is signed with the unknown key 'k9'"},
			{"key of a stranger", stranger.sign(t, good(now)), "the signature of the token is wrong"},
			{"changed claims", head + "." + part(claims(map[string]any{"org": "other"})) + "." + signature, "the signature of the token is wrong"},
			{"without signature", head + "." + payload + ".", "the signature of the token is wrong"},
			{"algorithm none", part(map[string]any{"alg": "none", "kid": "k1"}) + "." + payload + ".", "the signature algorithm 'none' of the token is not accepted"},
			{"HMAC with the public key", signWith(t, jose.SigningKey{Algorithm: jose.HS256, Key: public}, "k1", good(now)), "the signature algorithm 'HS256' of the token is not accepted"},
			{"other algorithm than the key's", signWith(t, jose.SigningKey{Algorithm: jose.PS256, Key: rsaKey.private}, "k1", good(now)), "the signature of the token is wrong"},
			{"key of another type", part(map[string]any{"alg": "ES256", "kid": "k1"}) + "." + payload + "." + signature, "the signature of the token is wrong"},
			{"two parts", head + "." + payload, "the token does not have three parts"},
			{"not base64", "!." + payload + "." + signature, "the header of the token is not JSON in base64url"},
			{"claims are a list", head + "." + part([]int{1}) + "." + signature, "the claims of the token are not JSON in base64url, or have a wrong type"},
			{"too large", ecKey.sign(t, claims(map[string]any{"org": strings.Repeat("x", maxToken)})), "bytes, at most 16384 are accepted"},
		} {
			if r := reject(t, v, c.token); r.Kind != RejectInvalid || !strings.HasSuffix(r.Reason, c.want) {
				t.Errorf("%s: %d, %s", c.name, r.Kind, r.Reason)
			}
			if strings.Contains(reject(t, v, c.token).Reason, signature) {
				t.Errorf("%s: the reason contains a part of the token", c.name)
			}
		}
		for name, token := range map[string]string{
			"RS256": rsaKey.sign(t, good(now)), "ES256": valid, "several audiences": ecKey.sign(t, claims(map[string]any{"aud": []string{"mail", "chat"}})),
			"clocks that differ": ecKey.sign(t, claims(map[string]any{"exp": now.Add(-59 * time.Second).Unix()})), "a clock ahead": ecKey.sign(t, claims(map[string]any{"nbf": now.Add(59 * time.Second).Unix()})),
			"a fraction": ecKey.sign(t, claims(map[string]any{"exp": float64(now.Unix()) + 60.5})), "without a key id": signWith(t, jose.SigningKey{Algorithm: jose.ES256, Key: ecKey.private}, "", good(now)),
		} {
			if _, err := v.Verify(t.Context(), token); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
	})
}

func TestRightsOfUsers(t *testing.T) {
	key := newECDSA(t, "k")
	limits := service.KeyLimits{Concurrent: 9, TokensPerMinute: 7}
	for _, c := range []struct {
		name   string
		change func(*service.OIDC)
		claims map[string]any
		want   service.APIKey // without the name
		reason string
	}{
		{name: "defaults", change: func(*service.OIDC) {}, want: service.APIKey{Tenant: "acme", Limits: limits}},
		{name: "a fixed tenant", change: func(o *service.OIDC) { o.TenantClaim, o.Tenant = "", "corp" }, want: service.APIKey{Tenant: "corp", Limits: limits}},
		{
			name: "a role", want: service.APIKey{Tenant: "acme", Tier: service.TierDeferred, MaxTier: service.TierDeferred, Limits: service.KeyLimits{Concurrent: 1, TokensPerMinute: 7, USDPerDay: 2}},
			change: func(o *service.OIDC) {
				o.RoleClaim, o.Limits = "roles", service.KeyLimits{USDPerDay: 2, Concurrent: 5}
				o.Roles = []service.OIDCRole{{Name: "admin"}, {Name: "batch", MaxTier: service.TierDeferred, Limits: service.KeyLimits{Concurrent: 1}}, {Name: "reader", Tier: service.TierNormal}}
			},
		},
		{
			name: "a nested role", claims: map[string]any{"realm": map[string]any{"roles": "x"}}, want: service.APIKey{Tenant: "acme", Tier: service.TierNormal, Limits: limits},
			change: func(o *service.OIDC) {
				o.RoleClaim, o.Roles = "realm.roles", []service.OIDCRole{{Name: "x", Tier: service.TierNormal}}
			},
		},
		{
			name: "a claim with periods", claims: map[string]any{"https://a.b/org": "n.m"}, want: service.APIKey{Tenant: "n.m", MaxTier: service.TierNormal, Tier: service.TierNormal, Limits: limits},
			change: func(o *service.OIDC) { o.TenantClaim, o.MaxTier = "https://a.b/org", service.TierNormal },
		},
		{
			name: "no accepted role", reason: "the claim 'roles' of the token contains none of the accepted roles",
			change: func(o *service.OIDC) {
				o.RoleClaim, o.RequireRole, o.Roles = "roles", true, []service.OIDCRole{{Name: "admin"}}
			},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				v := verifierOf(t, newIssuer(t, key), nil)
				o := service.OIDC{Issuer: testIssuer, Audience: testAudience, TenantClaim: "org"}
				c.change(&o)
				v.Configure([]service.OIDC{o}, limits)
				id, err := v.Verify(t.Context(), key.sign(t, with(good(time.Now()), c.claims)))
				var r *Rejection
				if errors.As(err, &r) || c.reason != "" {
					if r == nil || r.Kind != RejectForbidden || r.Reason != c.reason {
						t.Errorf("got %v, want %s", err, c.reason)
					}
					return
				}
				if !strings.HasPrefix(id.User.Name, "alice@example.com~") || !id.Expires.Equal(time.Now().Add(time.Hour+clockSkew)) {
					t.Errorf("got %+v", id)
				}
				id.User.Name = ""
				if id.User != c.want {
					t.Errorf("got %+v, want %+v", id.User, c.want)
				}
			})
		})
	}
}

// A renewed token is the same user. Users of different issuers, tenants or subjects have different names,
// which no API key can have.
func TestNamesOfUsers(t *testing.T) {
	seen := map[string]string{}
	for _, u := range [][3]string{
		{testIssuer, "acme", "alice"},
		{testIssuer, "acme", "bob"},
		{testIssuer, "corp", "alice"},
		{"https://other.example.com", "acme", "alice"},
		{testIssuer, "acme", strings.Repeat("x", 60) + "1"},
		{testIssuer, "acme", strings.Repeat("x", 60) + "2"},
		{testIssuer, "acme", "a b\n,~é"},
		{testIssuer, "acme", "a b\n,~e"},
	} {
		name := userName(u[0], u[1], u[2])
		if name != userName(u[0], u[1], u[2]) || seen[name] != "" {
			t.Errorf("%q is named %s, and so is %s", u, name, seen[name])
		}
		seen[name] = fmt.Sprint(u)
		if len(name) > 64 || service.ValidKeyName(name) || strings.ContainsAny(name, " \n,") {
			t.Errorf("%q is named %s", u, name)
		}
	}
	if userName(testIssuer, "", "alice") == "" {
		t.Error("no name")
	}
}

// A user without a tenant is a tenant.
func TestUserIsItsOwnTenant(t *testing.T) {
	key := newECDSA(t, "k")
	synctest.Test(t, func(t *testing.T) {
		v := verifierOf(t, newIssuer(t, key), func(o *service.OIDC) { o.TenantClaim = "" })
		id, err := v.Verify(t.Context(), key.sign(t, good(time.Now())))
		if err != nil || id.User.Tenant != id.User.Name {
			t.Errorf("%+v, %v", id, err)
		}
	})
}

// No input is accepted without a signature of the issuer, and reasons can be sent in a header.
func FuzzVerify(f *testing.F) {
	key := newECDSA(f, "k")
	issuer := newIssuer(f, key)
	v := verifierOf(f, issuer, nil)
	now := time.Now()
	token := key.sign(f, good(now))
	for _, seed := range []string{"", "..", "a.b.c", token, token + "x", token[:len(token)-2], strings.ToUpper(token), "eyJhbGciOiJub25lIn0." + strings.Split(token, ".")[1] + "."} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, given string) {
		_, err := v.Verify(t.Context(), given)
		if err == nil {
			if given != token {
				t.Fatalf("%q is accepted", given)
			}
			return
		}
		var r *Rejection
		if !errors.As(err, &r) || strings.ContainsFunc(r.Reason, func(c rune) bool { return c < ' ' || c > '~' || c == '"' || c == '\\' }) {
			t.Fatalf("%q: %v", given, err)
		}
	})
}
