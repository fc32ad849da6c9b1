package proxy

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"skyserve/internal/service"
	"skyserve/internal/telemetry"
	"skyserve/internal/testkit"
	"skyserve/lbd/oidc"
)

// tokenOptions returns options of a balancer that accepts tokens of an issuer.
func tokenOptions(t testing.TB, i *testkit.Issuer, change func(*service.OIDC)) Options {
	t.Helper()
	o := testOptions(t)
	o.Tokens = oidc.New(oidc.Options{})
	t.Cleanup(o.Tokens.Close)
	issuer := service.OIDC{Issuer: i.URL, Audience: "chat", TenantClaim: "org"}
	change(&issuer)
	o.Tokens.Configure([]service.OIDC{issuer}, service.KeyLimits{})
	return o
}

func as(credential string) string { return "Authorization: Bearer " + credential }

// A token is as good as an API key: with its tenant, tiers, limits and headers. It does not reach engines or logs.
func TestIdentityToken(t *testing.T) {
	i := testkit.NewIssuer(t)
	o := tokenOptions(t, i, func(s *service.OIDC) {
		s.Limits, s.MaxTier = service.KeyLimits{RequestsPerMinute: 3}, service.TierNormal
	})
	o.Keys = apiKeys("sk-1")
	var log bytes.Buffer
	o.Logger, o.AccessLog = slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug})), true
	b := start(t, o)
	seen := make(chan string, 9)
	b.attach("us-0", engine(t, func(w http.ResponseWriter, req *http.Request) {
		seen <- req.Header.Get("Authorization")
		whole(plainReply)(w, req)
	}))
	token := i.Sign("alice", time.Now().Add(time.Hour))
	resp := b.post(chatPath, plainBody, as(token))
	expect(t, resp, 200, "")
	if resp.Header.Get("X-Ratelimit-Remaining-Requests") != "2" {
		t.Errorf("headers %v", resp.Header)
	}
	expect(t, b.post(chatPath, plainBody, as(token), "X-Skyserve-Tier: IW-F"), http.StatusForbidden, "tier_not_allowed")
	// A renewed token of the same user has the same limits left; another user has its own.
	renewed := i.Sign("alice", time.Now().Add(2*time.Hour))
	expect(t, b.post(chatPath, plainBody, as(renewed)), 200, "")
	expect(t, b.post(chatPath, plainBody, as(token)), 200, "")
	expect(t, b.post(chatPath, plainBody, as(renewed)), http.StatusTooManyRequests, "rate_limit_exceeded")
	expect(t, b.post(chatPath, plainBody, as(i.Sign("bob", time.Now().Add(time.Hour)))), 200, "")
	expect(t, b.post(chatPath, plainBody, as("sk-1")), 200, "")
	b.settled()
	users := map[string]int64{}
	for _, u := range b.KeyUsage() {
		name, _, _ := strings.Cut(u.Key, "~")
		users[name+" of "+u.Tenant] = u.Requests
	}
	if users["alice of corp"] != 3 || users["bob of corp"] != 1 || len(users) != 3 {
		t.Errorf("usage of %v", users)
	}
	for range len(seen) {
		if credential := <-seen; credential != "" {
			t.Errorf("the engine received %q", credential)
		}
	}
	for _, secret := range []string{token, strings.Split(token, ".")[2], "sk-1"} {
		if strings.Contains(log.String(), secret) {
			t.Error("a credential is logged")
		}
	}
	for _, d := range b.Requests(9) {
		if text, err := json.Marshal(d); err != nil || strings.Contains(string(text), strings.Split(token, ".")[2]) {
			t.Errorf("a decision contains the token: %s, %v", text, err)
		}
	}
}

func TestRejectedIdentityTokens(t *testing.T) {
	i := testkit.NewIssuer(t)
	o := tokenOptions(t, i, func(s *service.OIDC) {
		s.RoleClaim, s.RequireRole, s.Roles = "roles", true, []service.OIDCRole{{Name: "chat"}}
	})
	b := start(t, o)
	b.attach("us-0", engine(t, whole(plainReply)))
	soon := time.Now().Add(time.Hour)
	expect(t, b.post(chatPath, plainBody, as(i.Sign("alice", soon, "roles", "chat"))), 200, "")
	for _, c := range []struct {
		credential, code, challenge string
		status                      int
	}{
		{i.Sign("alice", time.Unix(1e9, 0), "roles", "chat"), "invalid_token", `Bearer error="invalid_token", error_description="the token expired at 2001-09-09T01:46:40Z"`, 401},
		{i.Sign("alice", soon, "aud", "mail"), "invalid_token", `Bearer error="invalid_token", error_description="the token is for audience 'mail', want 'chat'"`, 401},
		{i.Sign("alice", soon), "role_required", `Bearer error="insufficient_scope", error_description="the claim 'roles' of the token contains none of the accepted roles"`, 403},
		{"a.b.c", "invalid_token", `Bearer error="invalid_token", error_description="the header of the token is not JSON in base64url"`, 401},
		{"sk-none", "invalid_api_key", "Bearer", 401},
		{"", "invalid_api_key", "Bearer", 401},
	} {
		resp := b.post(chatPath, plainBody, as(c.credential))
		body := expect(t, resp, c.status, c.code)
		if c.code == "invalid_api_key" && !strings.Contains(body, "missing or invalid API key or identity token: send one as") {
			t.Errorf("the error does not say that identity tokens are accepted: %s", body)
		}
		if got := resp.Header.Get("Www-Authenticate"); got != c.challenge {
			t.Errorf("%s: challenge %s", c.code, got)
		}
		if parts := strings.Split(c.credential, "."); len(parts) == 3 && len(parts[2]) > 9 && strings.Contains(body, parts[2]) {
			t.Error("the error contains the token")
		}
	}
	if status, _ := b.get("/v1/models", as(i.Sign("bob", soon, "aud", "mail"))); status != http.StatusUnauthorized {
		t.Errorf("models: status %d", status)
	}
}

// While the issuer cannot be reached, tokens get 503 with Retry-After, and API keys work.
func TestIssuerIsDown(t *testing.T) {
	i := testkit.NewIssuer(t)
	token := i.Sign("alice", time.Now().Add(time.Hour))
	gone := i.URL + "/gone"
	o := tokenOptions(t, i, func(s *service.OIDC) { s.Issuer = gone })
	o.Keys = apiKeys("sk-1")
	b := start(t, o)
	b.attach("us-0", engine(t, whole(plainReply)))
	expect(t, b.post(chatPath, plainBody, as(token)), http.StatusUnauthorized, "invalid_token") // of another issuer
	resp := b.post(chatPath, plainBody, as(i.Sign("alice", time.Now().Add(time.Hour), "iss", gone)))
	expect(t, resp, http.StatusServiceUnavailable, "issuer_unavailable")
	if resp.Header.Get("Retry-After") == "" {
		t.Error("no Retry-After")
	}
	expect(t, b.post(chatPath, plainBody, as("sk-1")), 200, "")
}

// A batch of a user changes neither the limits nor the tiers of the user's other requests.
func TestBatchKeepsLimitsOfUser(t *testing.T) {
	i := testkit.NewIssuer(t)
	b := start(t, tokenOptions(t, i, func(s *service.OIDC) {
		s.Limits, s.MaxTier = service.KeyLimits{RequestsPerMinute: 4}, service.TierNormal
	}))
	b.attach("us-0", engine(t, whole(plainReply)))
	token := as(i.Sign("alice", time.Now().Add(time.Hour)))
	for range 2 { // the first one loads the keys of the issuer, and the second token is remembered
		expect(t, b.post(chatPath, plainBody, token), 200, "")
	}
	b.settled()
	alice := Caller{Tenant: "corp", Key: b.KeyUsage()[0].Key, IsUser: true}
	request := BatchRequest{ID: "b-1", Path: chatPath, Body: []byte(plainBody), Caller: alice, Due: time.Hour}
	if r := b.ServeBatchRequest(t.Context(), request); r.Status != 200 {
		t.Fatalf("the batch receives %d %s", r.Status, r.Body)
	}
	expect(t, b.post(chatPath, plainBody, token, "X-Skyserve-Tier: IW-F"), http.StatusForbidden, "tier_not_allowed")
	resp := b.post(chatPath, plainBody, token)
	expect(t, resp, 200, "")
	if got := resp.Header.Get("X-Ratelimit-Remaining-Requests"); got != "0" {
		t.Errorf("%q requests remain, want 0", got)
	}
	if r := b.ServeBatchRequest(t.Context(), request); r.Status != http.StatusTooManyRequests {
		t.Errorf("the batch receives %d beyond the limit", r.Status)
	}
}

// A balancer that has seen no token of the user, such as one that was restarted, applies the limits of the token with
// which the batch was created.
func TestBatchHasLimitsOfUserAtOtherBalancer(t *testing.T) {
	for name, limits := range map[string]service.KeyLimits{
		"requests per minute": {RequestsPerMinute: 1},
		"tokens per minute":   {TokensPerMinute: 1},
		"tokens per day":      {TokensPerDay: 1},
		"concurrent":          {Concurrent: 1},
	} {
		t.Run(name, func(t *testing.T) {
			i := testkit.NewIssuer(t)
			creator := make(chan Caller, 1)
			accepting := start(t, tokenOptions(t, i, func(s *service.OIDC) { s.Limits = limits }))
			accepting.SetBatches(func(_ http.ResponseWriter, _ *http.Request, c Caller) { creator <- c })
			expect(t, accepting.post("/v1/batches", "{}", as(i.Sign("alice", time.Now().Add(time.Hour)))), 200, "")
			request := BatchRequest{ID: "b-1", Path: chatPath, Body: []byte(plainBody), Caller: <-creator, Due: time.Hour}

			executing := start(t, testOptions(t))
			statuses := make(chan int, 2)
			var nested atomic.Bool
			executing.attach("us-0", engine(t, func(w http.ResponseWriter, req *http.Request) {
				if nested.CompareAndSwap(false, true) { // the second request arrives while the first is in flight
					statuses <- executing.ServeBatchRequest(t.Context(), request).Status
				}
				whole(plainReply)(w, req)
			}))
			statuses <- executing.ServeBatchRequest(t.Context(), request).Status
			for range len(statuses) {
				if <-statuses == http.StatusTooManyRequests {
					return
				}
			}
			t.Error("no request of the batch is denied")
		})
	}
}

// A request of a batch is denied for good only if it is larger than a limit, not if it has to wait for one.
func TestBatchRequestLargerThanLimitIsFinal(t *testing.T) {
	for _, c := range []struct {
		limits service.KeyLimits
		final  bool
	}{
		{service.KeyLimits{TokensPerMinute: 1}, true},
		{service.KeyLimits{TokensPerDay: 1}, true},
		{service.KeyLimits{RequestsPerMinute: 1}, false},
	} {
		o := testOptions(t)
		o.Keys = []service.APIKey{{Name: "acme", Secret: "sk-1", Limits: c.limits}}
		b := start(t, o)
		b.attach("us-0", engine(t, whole(plainReply)))
		request := BatchRequest{ID: "b-1", Path: chatPath, Body: []byte(plainBody), Caller: Caller{Key: "acme"}, Due: time.Hour}
		r := b.ServeBatchRequest(t.Context(), request)
		if r.Status == http.StatusOK {
			r = b.ServeBatchRequest(t.Context(), request)
		}
		if r.Status != http.StatusTooManyRequests || r.Final != c.final {
			t.Errorf("%+v: %d %s, final: %t", c.limits, r.Status, r.Body, r.Final)
		}
	}
}

// A batch of a user waits while the balancer has no account for the user. That of a removed key fails.
func TestBatchWithoutAccount(t *testing.T) {
	b := start(t, testOptions(t))
	for n := 0; ; n++ {
		a, err := b.ledger.OpenUser(service.APIKey{Name: fmt.Sprint("user", n), Tenant: "corp"}, b.Elapsed())
		if err != nil {
			break
		}
		if _, denied := a.Admit(b.Elapsed()); denied != nil { // a request in flight keeps the account
			t.Fatal(denied)
		}
	}
	for _, c := range []struct {
		caller        Caller
		status        int
		code, message string
	}{
		{Caller{Tenant: "corp", Key: "alice~1", IsUser: true}, http.StatusServiceUnavailable, "too_many_users", "the maximum of a balancer: ask the operator for an API key, or retry later"},
		{Caller{Tenant: "corp", Key: "sk-1"}, http.StatusUnauthorized, "invalid_api_key", `the API key "sk-1" that created the batch was removed`},
	} {
		r := b.ServeBatchRequest(t.Context(), BatchRequest{ID: "b-1", Path: chatPath, Body: []byte(plainBody), Caller: c.caller})
		message, _, code := apiErrorOf(t, string(r.Body))
		if r.Status != c.status || code != c.code || !strings.Contains(message, c.message) {
			t.Errorf("%s: %d %s", c.caller.Key, r.Status, r.Body)
		}
	}
}

// The account of a user that is dropped between its look-up and the request's admission is opened again.
func TestDroppedAccountIsOpenedAgain(t *testing.T) {
	i := testkit.NewIssuer(t)
	b := start(t, tokenOptions(t, i, func(*service.OIDC) {}))
	req := httptest.NewRequest(http.MethodPost, chatPath, nil)
	req.Header.Set("Authorization", "Bearer "+i.Sign("alice", time.Now().Add(time.Hour)))
	o, refused := b.identify(req)
	if refused != nil {
		t.Fatal(refused)
	}
	found := o.account
	for n := 0; b.ledger.DropGeneration() == 0; n++ {
		if _, err := b.ledger.OpenUser(service.APIKey{Name: fmt.Sprint("user", n), Tenant: "corp"}, b.Elapsed()); err != nil {
			t.Fatal(err)
		}
	}
	v, refused := b.admitByQuota(&o)
	if refused != nil || o.account == found {
		t.Fatalf("the account was replaced: %t, %v", o.account != found, refused)
	}
	v.Settle(testModel, telemetry.Usage{Requests: 1}, b.Elapsed())
	v.Release(b.Elapsed())
	if used := b.KeyUsage(); len(used) != 1 || !strings.HasPrefix(used[0].Key, "alice~") || used[0].Requests != 1 {
		t.Errorf("the usage is %+v, want the request", used)
	}
}

// A verified token is found again by its hash, until the configuration or the keys change.
func TestVerifiedTokensAreRemembered(t *testing.T) {
	i := testkit.NewIssuer(t)
	o := tokenOptions(t, i, func(*service.OIDC) {})
	b := start(t, o)
	token := i.Sign("alice", time.Now().Add(time.Hour))
	hash := sha256.Sum256([]byte(token))
	_, _ = b.identityTokens.account(t.Context(), hash, token) // the keys of the issuer are there now
	a, refused := b.identityTokens.account(t.Context(), hash, token)
	if refused != nil || b.identityTokens.find(hash) != a {
		t.Fatalf("got %v", refused)
	}
	for n := range 2*maxVerifiedTokens - 1 { // other tokens push it out of recent, not of earlier
		b.identityTokens.remember(sha256.Sum256([]byte{byte(n), byte(n >> 8), byte(n >> 16)}), verifiedToken{})
		if n == maxVerifiedTokens {
			first, second := b.identityTokens.find(hash), b.identityTokens.find(hash) // the first moves it to recent
			if first != a || second != a {
				t.Error("a token that is used was forgotten")
			}
		}
	}
	if len(b.identityTokens.recent) > maxVerifiedTokens || len(b.identityTokens.earlier) > maxVerifiedTokens {
		t.Errorf("%d and %d tokens are remembered", len(b.identityTokens.recent), len(b.identityTokens.earlier))
	}
	b.identityTokens.remember(hash, verifiedToken{account: a, expires: time.Now().Add(-time.Second), stamp: b.identityTokens.stamp()})
	if b.identityTokens.find(hash) != nil {
		t.Error("an expired token is accepted")
	}
	b.identityTokens.remember(hash, verifiedToken{account: a, expires: time.Now().Add(time.Hour), stamp: b.identityTokens.stamp()})
	o.Tokens.Configure(nil, service.KeyLimits{})
	if b.identityTokens.find(hash) != nil || b.RequiresKeys() {
		t.Error("a token outlives its issuer")
	}
}

func FuzzBearer(f *testing.F) {
	for _, seed := range []string{"", "Bearer", "Bearer ", "bearer a.b.c", "Basic a", "Bearer  x", "Bearer\tx", "Bearer a b"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, value string) {
		credential, ok := bearer(http.Header{"Authorization": {value}})
		if ok && (credential == "" || !strings.Contains(value, credential) || strings.TrimSpace(credential) != credential) {
			t.Fatalf("%q: %q", value, credential)
		}
	})
}

// A repeated token costs as much as an API key, apart from the hash of its greater length.
func BenchmarkAuthenticate(b *testing.B) {
	i := testkit.NewIssuer(b)
	v := oidc.New(oidc.Options{})
	b.Cleanup(v.Close)
	v.Configure([]service.OIDC{{Issuer: i.URL, Audience: "chat", TenantClaim: "org"}}, service.KeyLimits{})
	o := testOptions(b)
	o.Tokens, o.Keys = v, apiKeys("sk-1")
	r, err := New(o)
	if err != nil {
		b.Fatal(err)
	}
	token := i.Sign("alice", time.Now().Add(time.Hour), "email", "alice@example.com", "roles", []string{"reader", "writer", "batch"}, "scope", strings.Repeat("openid profile ", 8))
	for name, credential := range map[string]string{"key": "sk-1", "token": token} {
		b.Run(name, func(b *testing.B) {
			h := http.Header{"Authorization": {"Bearer " + credential}}
			b.ReportAllocs()
			for b.Loop() {
				if a, refused := r.authenticate(b.Context(), h); a == nil || refused != nil {
					b.Fatal(refused)
				}
			}
		})
	}
}
