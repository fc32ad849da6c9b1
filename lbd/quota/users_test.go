package quota

import (
	"fmt"
	"reflect"
	"testing"
	"testing/synctest"
	"time"

	"skyserve/internal/service"
	"skyserve/internal/telemetry"
)

// A user cannot reset limits by having many other users' accounts opened: an account is dropped only if
// a new one would have the same limits left.
func TestDroppedUserRegainsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := NewLedger()
		began := time.Now()
		now := func() time.Duration { return time.Since(began) }
		limits := service.KeyLimits{RequestsPerMinute: 2, RequestsPerMonth: 2}
		open := func(name string) (*Account, error) {
			return l.OpenUser(service.APIKey{Name: name, Tenant: "corp", Limits: limits}, now())
		}
		must := func(name string) *Account {
			a, err := open(name)
			if err != nil {
				t.Fatal(err)
			}
			return a
		}
		spender, busy := must("spender"), must("busy")
		for range 2 {
			v, _ := spender.Admit(now())
			v.Settle("m", telemetry.Usage{Requests: 1}, now())
			v.Release(now())
		}
		held, _ := busy.Admit(now())
		for i := range maxTenantUsers - 2 {
			must(fmt.Sprint("sub", i))
		}
		time.Sleep(5 * time.Minute) // the limits per minute are full again
		if _, err := open("more"); err != nil {
			t.Errorf("idle accounts are not dropped: %v", err)
		}
		if must("spender") != spender || must("busy") != busy {
			t.Error("an account with usage or a request in flight was dropped")
		}
		held.Release(now())
		if l.users != 3 || l.byTenant["corp"] != 3 {
			t.Errorf("%d users, %v, want 3", l.users, l.byTenant)
		}
		// The store has the usage, and a new month begins.
		spender.setQuotaUsage(telemetry.KeyQuota{At: time.Now(), Month: spender.total, Own: spender.total, Account: spender.serial})
		time.Sleep(32 * 24 * time.Hour)
		l.mu.Lock()
		l.dropIdleUsers(now())
		l.mu.Unlock()
		if l.users != 0 {
			t.Errorf("%d users in the new month", l.users)
		}
		if again := must("spender"); again == spender || again.serial == spender.serial {
			t.Error("the counts of the dropped account continue in the new one")
		}
	})
}

// A sum that still has the usage of a dropped account gives the user's next account nothing beyond the quota.
func TestSumOfDroppedAccountGrantsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := NewLedger()
		open := func() *Account {
			a, err := l.OpenUser(service.APIKey{Name: "alice", Limits: service.KeyLimits{RequestsPerDay: 3}}, 0)
			if err != nil {
				t.Fatal(err)
			}
			return a
		}
		first := open()
		delete(l.accounts, "alice") // as dropIdleUsers does
		again := open()
		usage := telemetry.Usage{Requests: 2}
		l.SetQuotaUsage("alice", telemetry.KeyQuota{At: time.Now(), Day: usage, Month: usage, Own: usage, Account: first.serial})
		if _, d := again.Admit(0); d != nil {
			t.Errorf("the third request of three is denied: %v", d)
		}
		if _, d := again.Admit(0); d == nil {
			t.Error("a fourth request of three is admitted")
		}
	})
}

// A denial counts also if its account is dropped before it is counted: a counter never falls.
func TestDenialByDroppedAccountCounts(t *testing.T) {
	l := NewLedger()
	alice, err := l.OpenUser(service.APIKey{Name: "alice", Tenant: "corp", Limits: service.KeyLimits{Concurrent: 1}}, 0)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 2 {
		v, _ := alice.Admit(0)
		_, limit, d := alice.admit(&claim{}, 0)
		if i == 0 {
			alice.deny(limit, d)
		}
		v.Release(0)
		if i == 1 {
			l.mu.Lock()
			l.dropIdleUsers(0)
			l.mu.Unlock()
			alice.deny(limit, d)
		}
	}
	if got := l.Totals()["alice"].Denied[deniedConcurrent]; got != 2 {
		t.Errorf("%d denials are counted, want 2", got)
	}
}

// An account that was dropped after a request had found it admits nothing: its usage would be lost.
func TestDroppedAccountAdmitsNothing(t *testing.T) {
	l := NewLedger()
	alice, err := l.OpenUser(service.APIKey{Name: "alice", Tenant: "corp", Tier: service.TierNormal, Limits: service.KeyLimits{RequestsPerMinute: 1}}, 0)
	if err != nil {
		t.Fatal(err)
	}
	l.mu.Lock()
	l.dropIdleUsers(0)
	l.mu.Unlock()
	v, d := alice.Admit(0)
	if d != Dropped {
		v.Settle("m", telemetry.Usage{Requests: 1}, 0)
		t.Fatalf("got %+v, and the usage is %+v", d, l.Usage())
	}
	again, err := l.Reopen(alice, 0)
	if err != nil {
		t.Fatal(err)
	}
	if other, err := l.Reopen(alice, 0); other != again || err != nil {
		t.Errorf("opened twice, or %v", err)
	}
	if tenant, tier, _ := again.Rights(); tenant != "corp" || tier != service.TierNormal {
		t.Errorf("it has the tenant %q and the tier %s", tenant, tier)
	}
	if v, d = again.Admit(0); d != nil {
		t.Fatal(d)
	}
	v.Settle("m", telemetry.Usage{Requests: 1}, 0)
	v.Release(0)
	if used := l.Usage(); len(used) != 1 || used[0].Requests != 1 {
		t.Errorf("the usage is %+v", used)
	}
	if _, d := again.Admit(0); d == nil || d == Dropped {
		t.Errorf("a second request in the minute: %+v", d)
	}
}

// The sums of metrics include dropped accounts, and an account that is opened again continues the series of its user.
func TestTotalsKeepDroppedAccounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := NewLedger()
		began := time.Now()
		use := func(i int) {
			now := time.Since(began)
			a, err := l.OpenUser(service.APIKey{Name: fmt.Sprintf("user-%03d", i), Tenant: "corp", Limits: service.KeyLimits{Concurrent: 1}}, now)
			if err != nil {
				t.Fatal(err)
			}
			v, d := a.Admit(now)
			if d != nil {
				t.Fatal(d)
			}
			if _, d = a.Admit(now); d == nil {
				t.Fatal("two requests are in flight")
			}
			v.Settle("m", telemetry.Usage{Requests: 1}, now)
			v.Release(now)
			a.setQuotaUsage(telemetry.KeyQuota{At: time.Now(), Month: a.total, Own: a.total, Account: a.serial})
		}
		const users = MaxLabelled + 2
		for i := range users {
			use(i)
		}
		want := l.Totals()
		time.Sleep(32 * 24 * time.Hour)
		l.mu.Lock()
		l.dropIdleUsers(time.Since(began))
		l.mu.Unlock()
		if got := l.Totals(); l.users != 0 || !reflect.DeepEqual(got, want) {
			t.Errorf("%d users remain, and %d labels of %d", l.users, len(got), len(want))
		}
		for i := range users + 1 { // the last one is new
			use(i)
		}
		got := l.Totals()
		if len(got) != MaxLabelled+1 {
			t.Errorf("%d labels", len(got))
		}
		for label, n := range map[string]int64{"user-000": 2, "user-199": 2, labelOther: 5} {
			if sum := got[label]; sum == nil || sum.Used["m"].Requests != n || sum.Denied[deniedConcurrent] != n || sum.InFlight != 0 {
				t.Errorf("%s: got %+v, want %d requests and denials", label, sum, n)
			}
		}
	})
}

func TestUsersAreBounded(t *testing.T) {
	l := NewLedger()
	use := func(tenant string, i int) error {
		a, err := l.OpenUser(service.APIKey{Name: fmt.Sprint(tenant, "-", i), Tenant: tenant}, 0)
		if err == nil {
			a.mu.Lock()
			a.total.Requests = 1
			a.mu.Unlock()
		}
		return err
	}
	for i := range maxTenantUsers {
		if err := use("flood", i); err != nil {
			t.Fatal(err)
		}
	}
	if err := use("flood", maxTenantUsers); err == nil {
		t.Error("a tenant has more users than its share")
	}
	if err := use("flood", 0); err != nil {
		t.Errorf("a known user is rejected: %v", err)
	}
	if err := use("acme", 0); err != nil {
		t.Errorf("another tenant is affected: %v", err)
	}
	for i := 1; i < maxUsers-maxTenantUsers; i++ {
		if err := use(fmt.Sprint("t", i), i); err != nil {
			t.Fatal(err)
		}
	}
	if err := use("new", 0); err == nil {
		t.Error("more users than the maximum")
	}
}

// A user has an account from the first token on, so the message about too many of them does not claim that they used
// anything.
func TestTooManyUsersNamesAccountsNotUsage(t *testing.T) {
	l := NewLedger()
	l.nextDrop = dropInterval // accounts without usage stay until then
	var err error
	for i := 0; err == nil; i++ {
		_, err = l.OpenUser(service.APIKey{Name: fmt.Sprint(i), Tenant: "flood"}, 0)
	}
	if want := fmt.Sprintf("%d users of this tenant have accounts, the maximum of a balancer", maxTenantUsers); err.Error() != want {
		t.Errorf("got %q, want %q", err, want)
	}
}

// A user has the limits that were granted last, by a token or with a batch, also in an account that is opened again.
func TestNewestGrantLimitsUser(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := NewLedger()
		began := time.Now()
		var a *Account
		batch := func(limit int, age time.Duration) {
			var err error
			if a, err = l.UserOfBatch("alice", "corp", &service.KeyLimits{Concurrent: limit}, time.Now().Add(-age), time.Since(began)); err != nil {
				t.Fatal(err)
			}
		}
		check := func(step string, want int) {
			t.Helper()
			if got := a.Limits().Concurrent; got != want {
				t.Errorf("%s: the limit is %d, want %d", step, got, want)
			}
		}
		batch(1, time.Hour)
		check("a batch opens the account", 1)
		batch(2, time.Minute)
		check("a later batch", 2)
		batch(1, time.Hour)
		check("the first batch again", 2)
		time.Sleep(time.Second)
		token := service.APIKey{Name: "alice", Tenant: "corp", Tier: service.TierFast, Limits: service.KeyLimits{Concurrent: 3}}
		if _, err := l.OpenUser(token, time.Since(began)); err != nil {
			t.Fatal(err)
		}
		batch(2, time.Minute)
		check("a batch from before the token", 3)
		if _, err := l.UserOfBatch("alice", "corp", nil, time.Now(), time.Since(began)); err != nil {
			t.Fatal(err)
		}
		check("a batch with unknown limits", 3)
		l.mu.Lock()
		l.dropIdleUsers(time.Since(began))
		l.mu.Unlock()
		if _, err := l.Reopen(a, time.Since(began)); err != nil {
			t.Fatal(err)
		}
		batch(2, time.Minute)
		check("the account is opened again", 3)
		time.Sleep(time.Second)
		batch(4, 0)
		check("a batch from after the token", 4)
		if _, tier, _ := a.Rights(); tier != service.TierFast {
			t.Errorf("the batch changed the tier to %s", tier)
		}
	})
}
