package lbd

import (
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"skyserve/internal/service"
	"skyserve/internal/telemetry"
	"skyserve/internal/testkit"
	"skyserve/lbd/oidc"
	"skyserve/lbd/quota"
)

// Issuers, roles and limits of tenants change while the balancer runs; keys from the environment stay.
func TestTokensAreReloaded(t *testing.T) {
	t.Setenv("KEYS_OF_TEST", "sk-1")
	i := testkit.NewIssuer(t)
	e := newEngine(t, "llama", "")
	f := startFiled(t, service.BalancerConfig{
		ID: "lb-us", Region: "local/us", Replicas: []service.ReplicaConfig{{ID: "us-0", URL: e.URL, Model: "llama"}},
		Balancer: service.BalancerSpec{Auth: &service.Auth{KeysFrom: "env:KEYS_OF_TEST"}},
	}, Options{})
	f.serves(t)
	hc, token := client(t), i.Sign("alice", time.Now().Add(time.Hour))
	change := func(change func(*service.Auth)) {
		f.change(func(c *service.BalancerConfig) {
			auth := *c.Balancer.Auth
			auth.OIDC = slices.Clone(auth.OIDC)
			change(&auth)
			c.Balancer.Auth = &auth
		})
	}
	status := func(credential string) int {
		return ask(t, hc, f.public, "llama", "Authorization", "Bearer "+credential).status
	}
	if got := status(token); got != http.StatusUnauthorized {
		t.Errorf("without an issuer: %d", got)
	}
	change(func(a *service.Auth) {
		a.OIDC = []service.OIDC{{Issuer: i.URL, Audience: "chat", TenantClaim: "org"}}
		a.Tenants = map[string]service.KeyLimits{"corp": {RequestsPerDay: 2}}
	})
	done := f.reload()
	if text := strings.Join(done.Changed, "; "); len(done.Restart) > 0 || text != "balancer.auth.tenants: limits of 1 tenant; balancer.auth.oidc: 1 issuer of identity tokens" {
		t.Errorf("changed %q, restart %q", text, done.Restart)
	}
	testkit.Eventually(t, "the token is accepted", func() bool { return status(token) == http.StatusOK })
	if got := status(i.Sign("bob", time.Now().Add(time.Hour))); got != http.StatusOK {
		t.Errorf("another user of the tenant: %d", got)
	}
	if got := status(token); got != http.StatusTooManyRequests {
		t.Errorf("over the quota of the tenant: %d", got)
	}
	if got := status("sk-1"); got != http.StatusOK {
		t.Errorf("the key: %d", got)
	}
	report, err := f.admin.Usage(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	if q := report.Quotas; len(q) != 1 || q[0].Key != "" || q[0].Tenant != "corp" || q[0].Used != 2 || q[0].Remaining != 0 {
		t.Errorf("quotas %+v", q)
	}
	change(func(a *service.Auth) {
		a.OIDC[0].RoleClaim, a.OIDC[0].RequireRole = "roles", true
		a.OIDC[0].Roles = []service.OIDCRole{{Name: "admin"}}
	})
	f.reload()
	if got := status(token); got != http.StatusForbidden {
		t.Errorf("a token that was verified before, without the role: %d", got)
	}
	change(func(a *service.Auth) { a.OIDC[0].RoleClaim = "" })
	if message := f.refused(); !strings.Contains(message, "balancer.auth.oidc[0].role_claim: is required with roles") {
		t.Errorf("refused with %s", message)
	}
}

func TestIssuerAlerts(t *testing.T) {
	i := testkit.NewIssuer(t)
	gone := i.URL + "/gone"
	v := oidc.New(oidc.Options{})
	t.Cleanup(v.Close)
	v.Configure([]service.OIDC{{Issuer: i.URL, Audience: "chat"}, {Issuer: gone, Audience: "chat"}}, service.KeyLimits{})
	b := &balancer{tokens: v, cfg: service.BalancerConfig{Region: "local/us"}}
	testkit.Eventually(t, "the failure is known", func() bool { return len(v.Problems()) == 1 })
	if a := b.alerts(time.Now()); len(a) > 0 {
		t.Errorf("alerts at once: %+v", a)
	}
	a := b.alerts(time.Now().Add(issuerGrace + time.Second))
	if len(a) != 1 || a[0].Kind != telemetry.AlertIssuer || a[0].Severity != telemetry.SeverityCritical || a[0].Object != gone ||
		!strings.Contains(a[0].Message, "404") || !strings.HasSuffix(a[0].NextStep, "curl "+gone+"/.well-known/openid-configuration") {
		t.Errorf("alerts %+v", a)
	}
}

// ledgerAccounts are the accounts of a balancer without the proxy.
type ledgerAccounts struct{ *quota.Ledger }

func (l ledgerAccounts) RequiresKeys() bool             { return true }
func (l ledgerAccounts) KeyUsage() []telemetry.KeyUsage { return l.Usage() }
func (l ledgerAccounts) SetKeyQuotaUsage(name string, q telemetry.KeyQuota) {
	l.SetQuotaUsage(name, q)
}

// The budget of a tenant covers its keys and users at all balancers, and survives restarts.
func TestTenantBudgetCoversAllBalancers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, price := newFakeUsageStore(), (&service.Price{Input: 1, Output: 1}).PerToken()
		open := func() ledgerAccounts {
			l := ledgerAccounts{quota.NewLedger()}
			l.SetTenants(map[string]service.KeyLimits{"corp": {USDPerMonth: 0.001}}, 0) // 1000 tokens
			return l
		}
		use := func(a *quota.Account, tokens int) *quota.Denial {
			v, denied := a.Admit(0)
			if denied != nil {
				return denied
			}
			defer v.Release(0)
			v.SetPrice(price)
			if denied := v.Reserve(tokens, 1, 1, 0); denied != nil {
				return denied
			}
			v.Settle("m", telemetry.Usage{Requests: 1, PromptTokens: int64(tokens)}.Priced(price), 0)
			return nil
		}
		user := func(l ledgerAccounts, name string) *quota.Account {
			a, err := l.OpenUser(service.APIKey{Name: name, Tenant: "corp"}, 0)
			if err != nil {
				t.Fatal(err)
			}
			return a
		}
		us, eu := open(), open()
		_, stopUS := keep("us", us, c)
		_, stopEU := keep("eu", eu, c)
		if d := use(us.Open(service.APIKey{Name: "key", Tenant: "corp"}, 0), 400); d != nil {
			t.Fatal(d)
		}
		if d := use(user(eu, "alice~1"), 400); d != nil {
			t.Fatal(d)
		}
		time.Sleep(usageInterval + 2*usageDebounce)
		if d := use(user(us, "bob~2"), 300); d == nil || d.Code != "insufficient_quota" || !strings.Contains(d.Message, "of this tenant") {
			t.Errorf("1100 of 1000 tokens: %+v", d)
		}
		if d := use(user(us, "bob~2"), 100); d != nil {
			t.Errorf("900 of 1000 tokens: %v", d)
		}
		stopUS()
		stopEU()
		again := open()
		u, stop := keep("us", again, c)
		defer stop()
		time.Sleep(usageInterval + 2*usageDebounce)
		if d := use(user(again, "carol~3"), 200); d == nil {
			t.Error("the budget starts again with the process")
		}
		if d := use(user(again, "carol~3"), 50); d != nil {
			t.Errorf("950 of 1000 tokens: %v", d)
		}
		rows, _ := u.Usage(t.Context(), january)
		var cost service.NanoUSD
		for _, r := range rows {
			cost += r.Month.Cost
			if r.Tenant != "corp" {
				t.Errorf("%s has the tenant %q", r.Key, r.Tenant)
			}
		}
		if len(rows) != 4 || cost != 950_000 {
			t.Errorf("%d rows with a cost of %d", len(rows), cost)
		}
	})
}

// A user whose account was dropped and opened again is counted from zero.
func TestReopenedAccountIsCounted(t *testing.T) {
	keys := newFakeAccounts()
	u := newUsage(service.BalancerConfig{ID: "us", Region: "local/us"}, keys, nil, nil)
	for serial, tokens := range []int64{5, 7} {
		keys.mu.Lock()
		keys.used["alice~1"], keys.serial = tokens, int64(serial)
		keys.mu.Unlock()
		u.countUsage(time.Now())
	}
	if rows, _ := u.Usage(t.Context(), telemetry.MonthOf(time.Now())); len(rows) != 1 || rows[0].Month.PromptTokens != 12 {
		t.Errorf("got %+v, want 12 tokens", rows)
	}
}

// The usage of a user's dropped account is not subtracted from that of the next one: the user would have more quota.
func TestReopenedAccountHasNoEarlierUsage(t *testing.T) {
	keys := newFakeAccounts()
	u := newUsage(service.BalancerConfig{ID: "us", Region: "local/us"}, keys, nil, nil)
	count := func() telemetry.Usage {
		u.countUsage(time.Now())
		u.reportQuotas(time.Now())
		return keys.quota("alice~1").Own
	}
	keys.use("alice~1", 900)
	if own := count(); own.PromptTokens != 900 {
		t.Fatalf("the usage is %+v, want 900 tokens", own)
	}
	keys.mu.Lock()
	keys.serial++
	delete(keys.used, "alice~1")
	keys.mu.Unlock()
	if own := count(); own != (telemetry.Usage{}) {
		t.Errorf("the new account has the usage %+v of the earlier one", own)
	}
	keys.use("alice~1", 5)
	if own := count(); own.PromptTokens != 5 {
		t.Errorf("the usage is %+v, want 5 tokens", own)
	}
	if rows, _ := u.Usage(t.Context(), telemetry.MonthOf(time.Now())); len(rows) != 1 || rows[0].Month.PromptTokens != 905 {
		t.Errorf("got %+v, want 905 tokens", rows)
	}
}
