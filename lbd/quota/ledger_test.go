package quota

import (
	"fmt"
	"math"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"skyserve/internal/service"
	"skyserve/internal/telemetry"
)

func TestQuota(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := NewLedger()
		began := time.Now() // 2000-01-01 00:00 UTC, the start of synctest's clock
		now := func() time.Duration { return time.Since(began) }
		a := l.Open(limited(t, "tokens_per_day=100 requests_per_month=3")[0], now())
		v, e := a.Admit(now())
		if e != nil {
			t.Fatal(e)
		}
		if e := v.Reserve(50, 60, 1, now()); e == nil || e.Code != "insufficient_quota" || e.RetryAfter != 0 {
			t.Errorf("110 of 100 tokens: %+v", e)
		}
		if e := v.Reserve(40, 50, 1, now()); e != nil {
			t.Error(e)
		}
		other, _ := a.Admit(now())
		if e := other.Reserve(1, 10, 1, now()); e == nil || e.RetryAfter != 24*60*60 {
			t.Error("the tokens of a request in flight are given away twice")
		}
		other.Release(now())
		v.Settle("m", telemetry.Usage{Requests: 1, PromptTokens: 40, OutputTokens: 5}, now())
		v.Release(now())
		a.mu.Lock()
		a.quotaUsage = telemetry.KeyQuota{At: time.Now(), Day: telemetry.Usage{Requests: 2, PromptTokens: 99}, Month: telemetry.Usage{Requests: 2}, Own: a.total}
		a.mu.Unlock()
		v, e = a.Admit(now())
		if e != nil {
			t.Fatalf("one token and one request are left: %v", e)
		}
		if _, e := a.Admit(now()); e == nil || e.RetryAfter != 31*24*60*60 {
			t.Errorf("beside the last request of the month another gets in: %+v", e)
		}
		v.Settle("m", telemetry.Usage{Requests: 1, OutputTokens: 1}, now())
		v.Release(now())
		time.Sleep(time.Hour)
		if _, e := a.Admit(now()); e == nil || !strings.Contains(e.Message, "3 requests per month") {
			t.Errorf("over both quotas: %+v", e)
		}
	})
}

// Complaint: an operator whose fallbacks are skipped looks for the limit at a key, but it is that of the provider.
func TestDenialNamesHolderOfLimit(t *testing.T) {
	limits := service.KeyLimits{RequestsPerMinute: 1}
	for holder, a := range map[string]*Account{
		"key":      NewLedger().Open(service.APIKey{Name: "a", Limits: limits}, 0),
		"provider": NewLedger().OpenProvider("a", limits, 0),
	} {
		if _, d := a.Admit(0); d != nil {
			t.Fatal(d)
		}
		if _, d := a.Admit(0); d == nil || !strings.Contains(d.Message, "the limit of this "+holder+" is 1 request per minute") {
			t.Errorf("%s: %+v", holder, d)
		}
	}
}

func TestDenialsOfOneRequestAreSingular(t *testing.T) {
	for line, want := range map[string]struct{ message, limit string }{
		"concurrent=1":        {"rate limit reached: this key has 1 request in flight, the limit is 1", ""},
		"concurrent=2":        {"rate limit reached: this key has 2 requests in flight, the limit is 2", ""},
		"requests_per_day=1":  {"quota reached: the limit of this key is 1 request per day", "quota of key acme (1 request per day)"},
		"tokens_per_month=20": {"quota reached: the limit of this key is 20 tokens per month", "quota of key acme (20 tokens per month)"},
	} {
		a := NewLedger().Open(limited(t, line)[0], 0)
		var denied *Denial
		for range 3 {
			v, d := a.Admit(0)
			if d == nil {
				d = v.Reserve(1, 10, 1, 0)
			}
			if d != nil {
				denied = d
			}
		}
		if denied == nil || denied.Message != want.message || denied.Limit != want.limit || denied.Until.IsZero() != (want.limit == "") {
			t.Errorf("%s: got %+v, want %+v", line, denied, want)
		}
	}
}

// A request that alone exceeds a quota or budget gets an error that says so, also where the period's is used up: waiting
// does not help.
func TestRequestLargerThanQuotaHasNoRetryAfter(t *testing.T) {
	const fewer = "; shorten it or set a lower max_tokens"
	for line, want := range map[string]string{
		"tokens_per_day=100":                      "the request is larger than the quota: it may use 110 tokens, and the limit of this key is 100 per day" + fewer,
		"tokens_per_month=100 requests_per_day=1": "the request is larger than the quota: it may use 110 tokens, and the limit of this key is 100 per month" + fewer,
		"usd_per_day=0.0001":                      "the request is larger than the budget: it may cost 0.00011 USD, and the limit of this key is 0.0001 USD per day" + fewer,
		"usd_per_month=0.0001 tokens_per_day=150": "the request is larger than the budget: it may cost 0.00011 USD, and the limit of this key is 0.0001 USD per month" + fewer,
	} {
		a := NewLedger().Open(limited(t, line)[0], 0)
		v, d := a.Admit(0)
		if d != nil {
			t.Fatal(d)
		}
		v.SetPrice(dollar)
		a.mu.Lock()
		a.total = telemetry.Usage{Requests: 9, PromptTokens: 99}.Priced(dollar)
		a.mu.Unlock()
		if d := v.Reserve(50, 60, 1, 0); d == nil || d.Kind != "insufficient_quota" || d.Code != "insufficient_quota" || d.RetryAfter != 0 || d.Message != want {
			t.Errorf("%s: got %+v, want %q", line, d, want)
		}
		if d := v.Reserve(10, 10, 1, 0); d == nil || d.RetryAfter == 0 {
			t.Errorf("%s: a request that fits tomorrow gets %+v", line, d)
		}
	}
}

// A balancer receives the new day's usage shortly after the day began. Until then, usage
// of the old day does not count, so that it denies no request on the new day.
func TestQuotaResetsAtPeriodStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := NewLedger()
		a := l.Open(limited(t, "requests_per_day=1 tokens_per_month=100")[0], 0)
		may := func() *Denial {
			v, e := a.Admit(0)
			v.Release(0)
			return e
		}
		time.Sleep(31*24*time.Hour - 12*time.Hour) // noon of the last of January
		a.mu.Lock()
		a.quotaUsage = telemetry.KeyQuota{At: time.Now(), Day: telemetry.Usage{Requests: 1}, Month: telemetry.Usage{PromptTokens: 50}}
		a.mu.Unlock()
		time.Sleep(12*time.Hour - time.Millisecond)
		if e := may(); e == nil || e.RetryAfter != 1 {
			t.Errorf("a millisecond before midnight: %+v, want a wait of a second", e)
		}
		time.Sleep(time.Millisecond)
		if e := may(); e != nil {
			t.Errorf("at midnight: %+v", e)
		}
		a.mu.Lock()
		a.quotaUsage = telemetry.KeyQuota{At: time.Now().Add(-time.Millisecond), Month: telemetry.Usage{PromptTokens: 100}}
		a.mu.Unlock()
		if e := may(); e != nil {
			t.Errorf("in February, a request was denied because January's quota was used up: %+v", e)
		}
	})
}

func TestPeriodsEnd(t *testing.T) {
	for _, c := range []struct{ at, day, month string }{
		{"2026-11-21T10:00:00Z", "2026-11-22T00:00:00Z", "2026-12-01T00:00:00Z"},
		{"2026-12-31T23:59:59Z", "2027-01-01T00:00:00Z", "2027-01-01T00:00:00Z"},
		{"2028-02-28T23:30:00-02:00", "2028-03-01T00:00:00Z", "2028-03-01T00:00:00Z"},
	} {
		at, err := time.Parse(time.RFC3339, c.at)
		if err != nil {
			t.Fatal(err)
		}
		if day, month := oneDay.end(at).Format(time.RFC3339), oneMonth.end(at).Format(time.RFC3339); day != c.day || month != c.month {
			t.Errorf("%s: the day ends %s, the month %s", c.at, day, month)
		}
	}
}

// For many concurrent requests of a key: nothing stays in use, all usage is counted, and the bucket
// has the correct remaining tokens.
func TestAccountUnderConcurrency(t *testing.T) {
	l := NewLedger()
	const limit = 1_000_000
	a := l.Open(limited(t, fmt.Sprintf("tokens_per_minute=%d concurrent=64", limit))[0], 0)
	var all sync.WaitGroup
	for range 64 {
		all.Go(func() {
			for i := range 200 {
				v, e := a.Admit(0)
				if e != nil {
					t.Error(e)
					return
				}
				if e := v.Reserve(10, 10+i%7, 1, 0); e != nil {
					t.Error(e)
				}
				if i%3 > 0 {
					v.Settle("m", telemetry.Usage{Requests: 1, PromptTokens: 10, OutputTokens: 20}, 0)
					v.Settle("m", telemetry.Usage{Requests: 1, PromptTokens: 10, OutputTokens: 20}, 0) // counts once
				}
				v.Release(0)
				v.Release(0)
			}
		})
	}
	all.Wait()
	const settled = 64 * 133
	if a.inFlight != 0 || a.reserved != 0 || a.total != (telemetry.Usage{Requests: settled, PromptTokens: 10 * settled, OutputTokens: 20 * settled}) {
		t.Errorf("in flight %d, reserved %d, used %+v", a.inFlight, a.reserved, a.total)
	}
	if left, _ := a.tokens.remaining(0); left != limit-30*settled {
		t.Errorf("%d left, want %d", left, limit-30*settled)
	}
}

func BenchmarkLimitedKey(b *testing.B) {
	keys := limited(b, "requests_per_minute=1000000000 tokens_per_minute=1000000000 concurrent=9 requests_per_day=1000000000000 tokens_per_month=1000000000000000")
	ring := NewKeyring(NewLedger(), keys, 0)
	out := http.Header{}
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		now := time.Duration(i) * time.Millisecond
		a, _ := ring.Find(Hash("sk"))
		v, e := a.Admit(now)
		if e == nil {
			e = v.Reserve(1000, 256, 1, now)
		}
		if e != nil {
			b.Fatal(e)
		}
		a.WriteHeaders(out, now)
		v.Settle(testModel, telemetry.Usage{Requests: 1, PromptTokens: 1000, OutputTokens: 200}, now)
		v.Release(now)
	}
}

// An ended request reserves nothing, also if it is still listed as in flight after a panic of its
// handler.
func TestReleaseEndsReservation(t *testing.T) {
	a := NewLedger().Open(limited(t, "tokens_per_minute=100000")[0], 0)
	for range 200 {
		v, refused := a.Admit(0)
		if refused == nil {
			refused = v.Reserve(10, 10, 1, 0)
		}
		if refused != nil {
			t.Fatal(refused.Message)
		}
		var both sync.WaitGroup
		both.Go(func() { v.Grow(1000, 0) })
		both.Go(func() { v.Release(0) })
		both.Wait()
	}
	if a.reserved != 0 || a.inFlight != 0 {
		t.Errorf("%d tokens are reserved and %d in flight after all have left", a.reserved, a.inFlight)
	}
}

// Several answers without a bound are reserved as several, each with the mean length of the key's
// recent answers.
func TestSeveralAnswersAreReserved(t *testing.T) {
	l := NewLedger()
	a := l.Open(limited(t, "tokens_per_day=100000")[0], 0)
	reserved := func(bound, answers int) int64 {
		v, e := a.Admit(0)
		if e != nil {
			t.Fatal(e)
		}
		defer v.Release(0)
		if e := v.Reserve(10, bound, answers, 0); e != nil {
			t.Fatal(e)
		}
		return a.reserved
	}
	for _, c := range []struct {
		bound, answers int
		want           int64
	}{{0, 1, 10 + firstAnswer}, {0, 5, 10 + 5*firstAnswer}, {30, 5, 10 + 5*30}, {0, 0, 10}} {
		if got := reserved(c.bound, c.answers); got != c.want {
			t.Errorf("%d answers of at most %d tokens: %d reserved, want %d", c.answers, c.bound, got, c.want)
		}
	}
	v, _ := a.Admit(0)
	if e := v.Reserve(10, 0, 4, 0); e != nil {
		t.Fatal(e)
	}
	v.Settle("m", telemetry.Usage{Requests: 1, OutputTokens: 4 * firstAnswer}, 0)
	v.Release(0)
	if got := reserved(0, 1); got != 10+firstAnswer {
		t.Errorf("after a request with four answers of %d tokens, the next answer is expected to have %d", firstAnswer, got-10)
	}
}

// After a limit is lowered, the debt is not higher than with a limit that was always this low.
func TestDebtAfterLoweredLimit(t *testing.T) {
	var b bucket
	b.set(1_000_000, 0)
	b.giveBack(-math.MaxInt64, 0)
	b.set(10, 0)
	if wait, _, ok := b.take(1, 0); ok || wait > 61*time.Minute {
		t.Errorf("passes %v, else after %v; want an hour at most", ok, wait)
	}
	l := NewLedger()
	a := l.Open(service.APIKey{Name: "acme", Limits: service.KeyLimits{TokensPerMinute: 10}}, 0)
	if _, e := a.Admit(0); e != nil {
		t.Error(e)
	}
}
