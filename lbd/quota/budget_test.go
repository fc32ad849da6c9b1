package quota

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"skyserve/internal/service"
	"skyserve/internal/telemetry"
)

// A dollar per million tokens: a token costs 1000 service.NanoUSD.
var dollar = (&service.Price{Input: 1, Output: 1}).PerToken()

func TestBudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := NewLedger()
		a := l.Open(limited(t, "usd_per_day=0.0001 usd_per_month=1")[0], 0) // 100 tokens a day
		v, e := a.Admit(0)
		if e != nil || !v.SetPrice(dollar) {
			t.Fatal(e)
		}
		if e := v.Reserve(50, 60, 1, 0); e == nil || e.Code != "insufficient_quota" || e.RetryAfter != 0 || !strings.Contains(e.Message, "the limit of this key is 0.0001 USD per day") {
			t.Errorf("110 of 100 tokens: %+v", e)
		}
		if e := v.Reserve(40, 50, 1, 0); e != nil {
			t.Error(e)
		}
		other, _ := a.Admit(0)
		other.SetPrice(dollar)
		if e := other.Reserve(1, 10, 1, 0); e == nil {
			t.Error("money of a request in flight is spent twice")
		}
		other.Release(0)
		v.Grow(70, 0) // 110 tokens
		if _, e := a.Admit(0); e == nil {
			t.Error("a request is admitted although one in flight has used the budget")
		}
		v.Settle("m", telemetry.Usage{Requests: 1, PromptTokens: 40, OutputTokens: 59}.Priced(dollar), 0)
		v.Release(0)
		if v, e = a.Admit(0); e != nil {
			t.Fatalf("a token is left: %v", e)
		}
		v.SetPrice(dollar)
		if e := v.Reserve(1, 1, 1, 0); e == nil {
			t.Error("two tokens are reserved where one is left")
		}
		v.Release(0)
		a.setQuotaUsage(telemetry.KeyQuota{At: time.Now(), Day: telemetry.Usage{Cost: 99_001}, Month: telemetry.Usage{Cost: 1e9}, Own: a.total})
		if _, e := a.Admit(0); e == nil || !strings.Contains(e.Message, "1 USD per month") || e.RetryAfter != 31*24*60*60 {
			t.Errorf("the month's budget was spent at other balancers: %+v", e)
		}
		if a.denied[deniedBudget] != 5 {
			t.Errorf("denials: %v", a.denied)
		}
	})
}

// Without a price, the cost could not be limited.
func TestBudgetRequiresPrice(t *testing.T) {
	l := NewLedger()
	l.SetTenants(map[string]service.KeyLimits{"corp": {USDPerMonth: 1}}, 0)
	for line, ok := range map[string]bool{"usd_per_day=1": false, "tenant=corp": false, "tokens_per_day=1": true} {
		key := limited(t, line)[0]
		key.Name = line
		v, e := l.Open(key, 0).Admit(0)
		if e != nil {
			t.Fatal(e)
		}
		if v.SetPrice(nil) != ok || !v.SetPrice(dollar) {
			t.Errorf("%s: want %v without a price, true with one", line, ok)
		}
	}
	if v := new(Reservation); !v.SetPrice(nil) {
		t.Error("a client without a key requires a price")
	}
}

// All keys of a tenant share its limits; a denied request leaves nothing reserved in the key's account.
func TestTenantLimits(t *testing.T) {
	l := NewLedger()
	l.SetTenants(map[string]service.KeyLimits{"corp": {Concurrent: 2, USDPerDay: 0.0001}}, 0)
	open := func(name, line string) *Account {
		key := limited(t, line)[0]
		key.Name = name
		return l.Open(key, 0)
	}
	a, b, c := open("a", "tenant=corp concurrent=1"), open("b", "tenant=corp"), open("c", "tenant=other")
	v, e := a.Admit(0)
	if e != nil {
		t.Fatal(e)
	}
	w, e := b.Admit(0)
	if e != nil {
		t.Fatal(e)
	}
	if _, e := b.Admit(0); e == nil || e.Message != "rate limit reached: this tenant has 2 requests in flight, the limit is 2" {
		t.Errorf("a third request of the tenant: %+v", e)
	}
	if _, e := c.Admit(0); e != nil {
		t.Errorf("another tenant: %v", e)
	}
	v.SetPrice(dollar)
	w.SetPrice(dollar)
	if e := v.Reserve(30, 30, 1, 0); e != nil {
		t.Error(e)
	}
	if e := w.Reserve(30, 30, 1, 0); e == nil || !strings.Contains(e.Message, "the limit of this tenant is 0.0001 USD per day") {
		t.Errorf("over the tenant's budget: %+v", e)
	}
	w.Release(0)
	v.Settle("m", telemetry.Usage{Requests: 1, PromptTokens: 30, OutputTokens: 70}.Priced(dollar), 0)
	v.Release(0)
	if b.inFlight != 0 || b.reserved != 0 || b.reservedCost != 0 || b.total != (telemetry.Usage{}) {
		t.Errorf("the denied request left %+v", b)
	}
	if _, e := b.Admit(0); e == nil || e.Code != "insufficient_quota" {
		t.Errorf("the tenant's budget is spent: %+v", e)
	}
	l.SetTenants(map[string]service.KeyLimits{"corp": {USDPerDay: 1}}, 0)
	if _, e := b.Admit(0); e != nil || l.TenantUsage()["corp"].Cost != 100_000 {
		t.Errorf("after a higher budget: %v, %+v", e, l.TenantUsage())
	}
	l.SetTenants(nil, 0)
	if v, _ := b.Admit(0); v.shared != nil {
		t.Error("the tenant keeps limits that were removed")
	}
}

// A request that the tenant denies does not count for the key's own limit of requests.
func TestDenialOfTenantLeavesRequestsOfKey(t *testing.T) {
	l := NewLedger()
	l.SetTenants(map[string]service.KeyLimits{"corp": {Concurrent: 1}}, 0)
	open := func(name, line string) *Account {
		key := limited(t, line)[0]
		key.Name = name
		return l.Open(key, 0)
	}
	a, b := open("a", "tenant=corp requests_per_minute=1"), open("b", "tenant=corp")
	other, denial := b.Admit(0)
	if denial != nil {
		t.Fatal(denial)
	}
	if _, denial := a.Admit(0); denial == nil || !strings.Contains(denial.Message, "this tenant has 1 request in flight") {
		t.Fatalf("beside a request of the tenant: %+v", denial)
	}
	other.Release(0)
	if _, denial := a.Admit(0); denial != nil {
		t.Errorf("the key's first request: %v", denial)
	}
}

// A request whose usage is counted counts once for a quota of requests, also before its handler ends.
func TestSettledRequestCountsOnce(t *testing.T) {
	l := NewLedger()
	a := l.Open(limited(t, "requests_per_day=2")[0], 0)
	first, denial := a.Admit(0)
	if denial != nil {
		t.Fatal(denial)
	}
	first.Settle("m", telemetry.Usage{Requests: 1, OutputTokens: 7}, 0)
	second, denial := a.Admit(0)
	if denial != nil {
		t.Fatalf("the second of two: %+v", denial)
	}
	first.Release(0)
	if _, denial := a.Admit(0); denial == nil || denial.Code != "insufficient_quota" {
		t.Errorf("the third of two: %+v", denial)
	}
	second.Release(0)
	if _, denial := a.Admit(0); denial != nil {
		t.Errorf("the second was not served: %+v", denial)
	}
}

// Over random histories, what is spent never exceeds a budget by more than the excess of requests over their
// reservations, what is reserved returns to zero, and the sum over keys is the sum over models.
func TestBudgetIsNeverExceeded(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := NewLedger()
		budget := rapid.Float64Range(0.00001, 0.001).Draw(t, "budget")
		l.SetTenants(map[string]service.KeyLimits{"corp": {USDPerMonth: budget}}, 0)
		var accounts []*Account
		for _, name := range []string{"a", "b"} {
			accounts = append(accounts, l.Open(service.APIKey{Name: name, Tenant: "corp", Limits: service.KeyLimits{USDPerDay: budget}}, 0))
		}
		cached := 0.25
		prices := map[string]*service.TokenPrice{"m": dollar, "n": (&service.Price{Input: 0.5, CachedInput: &cached, Output: 2}).PerToken()}
		type request struct {
			Reservation
			model                    string
			prompt, bound, generated int
		}
		var open []*request
		var excess service.NanoUSD
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			if len(open) == 0 || rapid.Bool().Draw(t, "arrives") {
				v, e := rapid.SampledFrom(accounts).Draw(t, "key").Admit(0)
				f := &request{Reservation: v, model: rapid.SampledFrom([]string{"m", "n"}).Draw(t, "model"), prompt: rapid.IntRange(0, 200).Draw(t, "prompt"), bound: rapid.IntRange(1, 200).Draw(t, "bound")}
				if e == nil && f.SetPrice(prices[f.model]) && f.Reserve(f.prompt, f.bound, 1, 0) == nil {
					open = append(open, f)
				} else {
					f.Release(0)
				}
				continue
			}
			i := rapid.IntRange(0, len(open)-1).Draw(t, "request")
			f := open[i]
			if f.generated += rapid.IntRange(0, 150).Draw(t, "tokens"); rapid.Bool().Draw(t, "continues") {
				f.Grow(f.generated, 0)
				continue
			}
			used := telemetry.Usage{Requests: 1, PromptTokens: int64(f.prompt), OutputTokens: int64(f.generated)}
			used.CachedTokens = rapid.Int64Range(0, used.PromptTokens).Draw(t, "cached")
			used = used.Priced(prices[f.model])
			excess += max(0, used.Cost-prices[f.model].Cost(int64(f.prompt), 0, int64(f.bound)))
			f.Settle(f.model, used, 0)
			f.Release(0)
			open = append(open[:i], open[i+1:]...)
		}
		for _, f := range open {
			f.Release(0)
		}
		byKey, byModel := map[string]service.NanoUSD{}, map[string]service.NanoUSD{}
		var keys, models service.NanoUSD
		for _, u := range l.Usage() {
			byKey[u.Key] += u.Cost
			byModel[u.Model] += u.Cost
		}
		for _, c := range byKey {
			keys += c
		}
		for _, c := range byModel {
			models += c
		}
		tenant := l.tenants["corp"]
		if keys != models || keys != tenant.total.Cost {
			t.Fatalf("keys %d, models %d, tenant %d", keys, models, tenant.total.Cost)
		}
		if keys > service.NanoUSDOf(budget)+excess {
			t.Fatalf("%d spent of %s, with an excess of %d", keys, service.NanoUSDOf(budget), excess)
		}
		for _, a := range append(accounts, tenant) {
			if a.inFlight != 0 || a.reserved != 0 || a.reservedCost != 0 {
				t.Fatalf("%s: %d in flight, %d tokens and %d reserved", a.name, a.inFlight, a.reserved, a.reservedCost)
			}
		}
	})
}
