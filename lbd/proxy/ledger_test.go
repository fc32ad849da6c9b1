package proxy

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"skyserve/internal/service"
	"skyserve/internal/telemetry"
)

// limited is one key, "sk", of the name acme, with its limits as a line states them.
func limited(t testing.TB, attributes string) []service.APIKey {
	t.Helper()
	keys, err := service.ParseKeys("sk name=acme "+attributes, service.KeyLimits{})
	if err != nil {
		t.Fatal(err)
	}
	return keys
}

const asAcme = "Authorization: Bearer sk"

// accountOf is the one account of a runtime.
func (b *balancer) accountOf(name string) *account {
	for _, a := range b.ledger.list() {
		if a.name == name {
			return a
		}
	}
	b.t.Fatalf("no account %q", name)
	return nil
}

// atRest checks that nothing of an account is in use.
func (b *balancer) atRest(name string) {
	b.t.Helper()
	b.settled()
	a := b.accountOf(name)
	b.until(func() bool {
		a.mu.Lock()
		defer a.mu.Unlock()
		return a.inFlight == 0 && a.reserved == 0
	})
}

func TestRequestsOfAMinute(t *testing.T) {
	o := testOptions(t)
	o.Keys = limited(t, "requests_per_minute=2")
	b := start(t, o)
	b.attach("us-0", engine(t, whole(plainReply)))
	for _, left := range []string{"1", "0"} {
		resp := b.post(chatPath, plainBody, asAcme)
		expect(t, resp, 200, "")
		h := resp.Header
		if h.Get("x-ratelimit-limit-requests") != "2" || h.Get("x-ratelimit-remaining-requests") != left {
			t.Errorf("headers %v, want a limit of 2 and %s left", h, left)
		}
		if d, err := time.ParseDuration(h.Get("x-ratelimit-reset-requests")); err != nil || d <= 0 || d > time.Minute {
			t.Errorf("reset %q: %v", h.Get("x-ratelimit-reset-requests"), err)
		}
		if h.Get("x-ratelimit-limit-tokens") != "" {
			t.Error("headers of a limit that the key does not have")
		}
	}
	resp := b.post(chatPath, plainBody, asAcme)
	body := expect(t, resp, http.StatusTooManyRequests, "rate_limit_exceeded")
	if _, kind, _ := apiErrorOf(t, body); kind != "requests" {
		t.Errorf("type %q, want requests", kind)
	}
	if n, err := strconv.Atoi(resp.Header.Get("Retry-After")); err != nil || n < 1 || n > 30 {
		t.Errorf("Retry-After %q, want up to the 30 s that a request takes to come", resp.Header.Get("Retry-After"))
	}
	if resp.Header.Get("x-ratelimit-remaining-requests") != "0" {
		t.Errorf("a denial says that %q are left", resp.Header.Get("x-ratelimit-remaining-requests"))
	}
	b.atRest("acme")
	if c := b.settled(); c.Arrived != 2 {
		t.Errorf("%d requests reached the queue, want 2", c.Arrived)
	}
}

func TestTokensAreReservedAndSettled(t *testing.T) {
	o := testOptions(t)
	o.Keys = limited(t, "tokens_per_minute=1000")
	o.Keys = append(o.Keys, limited(t, "tokens_per_minute=1000")...) // a name may have two keys
	b := start(t, o)
	release := make(chan struct{})
	b.attach("us-0", engine(t, func(w http.ResponseWriter, req *http.Request) {
		_, _ = io.Copy(io.Discard, req.Body)
		<-release
		whole(plainReply)(w, req)
	}))
	bounded := strings.Replace(plainBody, `{`, `{"max_tokens":600,`, 1)
	done := make(chan *http.Response)
	go func() { done <- b.post(chatPath, bounded, asAcme) }()
	a := b.accountOf("acme")
	b.until(func() bool { a.mu.Lock(); defer a.mu.Unlock(); return a.reserved >= 600 })
	body := expect(t, b.post(chatPath, bounded, asAcme), http.StatusTooManyRequests, "rate_limit_exceeded")
	if _, kind, _ := apiErrorOf(t, body); kind != "tokens" {
		t.Errorf("type %q, want tokens", kind)
	}
	resp := b.post(chatPath, strings.Replace(plainBody, `{`, `{"max_tokens":6000,`, 1), asAcme)
	expect(t, resp, http.StatusTooManyRequests, "rate_limit_exceeded")
	if resp.Header.Get("Retry-After") != "" {
		t.Error("a request that never passes is told to come again")
	}
	close(release)
	expect(t, <-done, 200, "")
	b.atRest("acme")
	a.mu.Lock()
	defer a.mu.Unlock()
	if left, _ := a.tokens.left(b.Elapsed()); left < 1000-14 || left > 1000 {
		t.Errorf("%d tokens left, want 1000 less the 14 that the engine counted", left)
	}
	if want := (telemetry.Usage{Requests: 1, PromptTokens: 12, OutputTokens: 2}); a.total != want {
		t.Errorf("used %+v, want %+v", a.total, want)
	}
}

func TestConcurrentRequestsOfAKey(t *testing.T) {
	o := testOptions(t)
	o.Keys = limited(t, "concurrent=1")
	b := start(t, o)
	inside, release := make(chan struct{}), make(chan struct{})
	b.attach("us-0", engine(t, func(w http.ResponseWriter, req *http.Request) {
		_, _ = io.Copy(io.Discard, req.Body)
		inside <- struct{}{}
		<-release
		whole(plainReply)(w, req)
	}))
	done := make(chan *http.Response)
	go func() { done <- b.post(chatPath, plainBody, asAcme) }()
	<-inside
	resp := b.post(chatPath, plainBody, asAcme)
	expect(t, resp, http.StatusTooManyRequests, "rate_limit_exceeded")
	if resp.Header.Get("Retry-After") != "1" {
		t.Errorf("Retry-After %q, want 1", resp.Header.Get("Retry-After"))
	}
	close(release)
	expect(t, <-done, 200, "")
	b.atRest("acme")
	go func() { <-inside }()
	expect(t, b.post(chatPath, plainBody, asAcme), 200, "")
	for _, bad := range []string{`{`, `{"model":"none"}`} {
		if resp := b.post(chatPath, bad, asAcme); resp.StatusCode == 429 || resp.StatusCode == 200 {
			t.Errorf("%s: status %d", bad, resp.StatusCode)
		}
	}
	b.atRest("acme")
}

func TestQuota(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLedger()
		began := time.Now() // 2000-01-01 00:00 UTC, as synctest has it
		now := func() time.Duration { return time.Since(began) }
		a := l.open(limited(t, "tokens_per_day=100 requests_per_month=3")[0], now())
		v, e := a.enter(now())
		if e != nil {
			t.Fatal(e)
		}
		if e := v.reserve(50, 60, 1, now()); e == nil || e.code != "insufficient_quota" || e.status != 429 || e.retryAfter != 24*60*60 {
			t.Errorf("110 of 100 tokens: %+v", e)
		}
		if e := v.reserve(40, 50, 1, now()); e != nil {
			t.Error(e)
		}
		other, _ := a.enter(now())
		if e := other.reserve(1, 10, 1, now()); e == nil {
			t.Error("the tokens of a request in flight are given away twice")
		}
		other.leave(now())
		v.settle("m", telemetry.Usage{Requests: 1, PromptTokens: 40, OutputTokens: 5}, now())
		v.leave(now())
		a.mu.Lock()
		a.quota = telemetry.KeyQuota{At: time.Now(), Day: telemetry.Usage{Requests: 2, PromptTokens: 99}, Month: telemetry.Usage{Requests: 2}, Own: a.total}
		a.mu.Unlock()
		v, e = a.enter(now())
		if e != nil {
			t.Fatalf("one token and one request are left: %v", e)
		}
		if _, e := a.enter(now()); e == nil || e.retryAfter != 31*24*60*60 {
			t.Errorf("beside the last request of the month another gets in: %+v", e)
		}
		v.settle("m", telemetry.Usage{Requests: 1, OutputTokens: 1}, now())
		v.leave(now())
		time.Sleep(time.Hour)
		if _, e := a.enter(now()); e == nil || !strings.Contains(e.message, "3 requests a month") {
			t.Errorf("over both quotas: %+v", e)
		}
	})
}

// A balancer is told of a new day a moment after it began. Until then what is used
// of the old one does not count, and nobody is sent away until the day after.
func TestQuotaBeginsAnewOnTheStroke(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLedger()
		a := l.open(limited(t, "requests_per_day=1 tokens_per_month=100")[0], 0)
		may := func() *apiError {
			v, e := a.enter(0)
			v.leave(0)
			return e
		}
		time.Sleep(31*24*time.Hour - 12*time.Hour) // noon of the last of January
		a.mu.Lock()
		a.quota = telemetry.KeyQuota{At: time.Now(), Day: telemetry.Usage{Requests: 1}, Month: telemetry.Usage{PromptTokens: 50}}
		a.mu.Unlock()
		time.Sleep(12*time.Hour - time.Millisecond)
		if e := may(); e == nil || e.retryAfter != 1 {
			t.Errorf("a millisecond before midnight: %+v, want a wait of a second", e)
		}
		time.Sleep(time.Millisecond)
		if e := may(); e != nil {
			t.Errorf("at midnight: %+v", e)
		}
		a.mu.Lock()
		a.quota = telemetry.KeyQuota{At: time.Now().Add(-time.Millisecond), Month: telemetry.Usage{PromptTokens: 100}}
		a.mu.Unlock()
		if e := may(); e != nil {
			t.Errorf("of January's quota nothing was left, in February: %+v", e)
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
		if day, month := aDay.end(at).Format(time.RFC3339), aMonth.end(at).Format(time.RFC3339); day != c.day || month != c.month {
			t.Errorf("%s: the day ends %s, the month %s", c.at, day, month)
		}
	}
}

// Whatever many requests of a key do at once: nothing stays in use, everything
// that was used is counted, and the bucket holds what is left.
func TestAccountUnderConcurrency(t *testing.T) {
	l := newLedger()
	const limit = 1_000_000
	a := l.open(limited(t, fmt.Sprintf("tokens_per_minute=%d concurrent=64", limit))[0], 0)
	var all sync.WaitGroup
	for range 64 {
		all.Go(func() {
			for i := range 200 {
				v, e := a.enter(0)
				if e != nil {
					t.Error(e)
					return
				}
				if e := v.reserve(10, 10+i%7, 1, 0); e != nil {
					t.Error(e)
				}
				if i%3 > 0 {
					v.settle("m", telemetry.Usage{Requests: 1, PromptTokens: 10, OutputTokens: 20}, 0)
					v.settle("m", telemetry.Usage{Requests: 1, PromptTokens: 10, OutputTokens: 20}, 0) // counts once
				}
				v.leave(0)
				v.leave(0)
			}
		})
	}
	all.Wait()
	const settled = 64 * 133
	if a.inFlight != 0 || a.reserved != 0 || a.total != (telemetry.Usage{Requests: settled, PromptTokens: 10 * settled, OutputTokens: 20 * settled}) {
		t.Errorf("in flight %d, reserved %d, used %+v", a.inFlight, a.reserved, a.total)
	}
	if left, _ := a.tokens.left(0); left != limit-30*settled {
		t.Errorf("%d left, want %d", left, limit-30*settled)
	}
}

func TestForwardedRequestsAreChargedOnceWhereTheyCame(t *testing.T) {
	us, eu := pair(t, "token")
	us.SetKeys(limited(t, "requests_per_minute=3 tokens_per_minute=10000 tier=IW-N tenant=corp"))
	eu.SetKeys(limited(t, "requests_per_minute=1"))
	eu.attach("eu-0", engine(t, speak("a", "b")))
	us.hear("lb-eu-0")
	for range 3 {
		resp := us.post(chatPath, streamBody, asAcme)
		expect(t, resp, 200, "")
		if resp.Header.Get("X-Ratelimit-Limit-Requests") != "3" || resp.Header.Get("X-Skyserve-Replica") != "eu-0" {
			t.Errorf("headers %v", resp.Header)
		}
	}
	us.atRest("acme")
	eu.atRest("acme")
	want := []telemetry.KeyUsage{{Key: "acme", Model: testModel, Usage: telemetry.Usage{Requests: 3, PromptTokens: 300, CachedTokens: 192, OutputTokens: 6}}}
	if got := us.KeyUsage(); !slices.Equal(got, want) {
		t.Errorf("usage where the client asked: %+v, want %+v", got, want)
	}
	if got := eu.KeyUsage(); len(got) != 0 {
		t.Errorf("usage where it was served: %+v, want none", got)
	}
	if p := us.History(0); len(p) == 0 || p[0].Tier != service.TierNormal {
		t.Errorf("history %+v, want the key's tier", p)
	}
}

// What an engine did not serve costs nothing; what it was still busy with when
// the client left costs the prompt.
func TestChargesByOutcome(t *testing.T) {
	o := testOptions(t)
	o.Keys = limited(t, "")
	b := start(t, o)
	inside := make(chan struct{}, 1)
	b.attach("us-0", engine(t, func(w http.ResponseWriter, req *http.Request) {
		body, _ := io.ReadAll(req.Body)
		switch {
		case strings.Contains(string(body), "refuse"):
			w.WriteHeader(http.StatusBadRequest)
		case strings.Contains(string(body), "silent"):
			_, _ = io.WriteString(w, `{"choices":[]}`)
		default:
			inside <- struct{}{}
			<-req.Context().Done()
		}
	}))
	used := func() telemetry.Usage {
		b.atRest("acme")
		a := b.accountOf("acme")
		a.mu.Lock()
		defer a.mu.Unlock()
		return a.total
	}
	expect(t, b.post(chatPath, strings.Replace(plainBody, "hello", "refuse", 1), asAcme), 400, "")
	if u := used(); u != (telemetry.Usage{}) {
		t.Errorf("a request that the engine refused costs %+v", u)
	}
	expect(t, b.post("/tokenize", strings.Replace(plainBody, "hello", "silent", 1), asAcme), 200, "")
	if u := used(); u != (telemetry.Usage{Requests: 1}) {
		t.Errorf("counting tokens costs %+v", u)
	}
	expect(t, b.post(chatPath, strings.Replace(plainBody, "hello", "silent", 1), asAcme), 200, "")
	estimated := used()
	if estimated.Requests != 2 || estimated.PromptTokens == 0 {
		t.Errorf("an engine that counts nothing: %+v, want the estimate", estimated)
	}
	ctx, cancel := context.WithCancel(t.Context())
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, b.url+chatPath, strings.NewReader(plainBody))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer sk")
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		if resp, err := client.Do(req); err == nil {
			_ = resp.Body.Close()
		}
	}()
	<-inside
	cancel()
	<-gone
	if u := used(); u.Requests != 3 || u.PromptTokens <= estimated.PromptTokens {
		t.Errorf("a client that left: %+v after %+v, want another prompt", u, estimated)
	}
}

func TestSetKeysKeepsAccounts(t *testing.T) {
	o := testOptions(t)
	o.Keys = limited(t, "requests_per_minute=2")
	b := start(t, o)
	b.attach("us-0", engine(t, whole(plainReply)))
	expect(t, b.post(chatPath, plainBody, asAcme), 200, "")
	b.SetKeys(append(apiKeys("sk-new"), limited(t, "requests_per_minute=1")...))
	expect(t, b.post(chatPath, plainBody, asAcme), 200, "")
	expect(t, b.post(chatPath, plainBody, asAcme), 429, "rate_limit_exceeded")
	expect(t, b.post(chatPath, plainBody, "Authorization: Bearer sk-new"), 200, "")
	b.SetKeys(apiKeys("sk-new"))
	expect(t, b.post(chatPath, plainBody, asAcme), 401, "invalid_api_key")
	b.atRest("acme")
	if got := b.KeyUsage(); len(got) != 2 {
		t.Errorf("usage %+v, want that of the key that is gone too", got)
	}
}

func TestKeyMetricsAreBounded(t *testing.T) {
	l := newLedger()
	const keys = maxLabelled + 5
	for i := range keys {
		a := l.open(service.APIKey{Name: fmt.Sprintf("key-%03d", i), Limits: service.KeyLimits{RequestsPerMinute: 1}}, 0)
		v, e := a.enter(0)
		if e != nil {
			t.Fatal(e)
		}
		v.settle("m", telemetry.Usage{Requests: 1, PromptTokens: 10, CachedTokens: 4, OutputTokens: 2}, 0)
		v.leave(0)
		if _, e := a.enter(0); e == nil {
			t.Fatal("a second request passes")
		}
	}
	l.open(service.APIKey{Name: "never-used"}, 0)
	reg := prometheus.NewRegistry()
	reg.MustRegister(keyMetrics{l})
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	sums, series := map[string]float64{}, map[string]int{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			sums[f.GetName()] += m.GetCounter().GetValue()
			series[f.GetName()]++
			if strings.Contains(m.String(), `"other"`) && f.GetName() == "skyserve_key_requests_total" && m.GetCounter().GetValue() != 5 {
				t.Errorf("other keys: %v, want 5 requests", m)
			}
		}
	}
	if sums["skyserve_key_requests_total"] != keys || sums["skyserve_key_tokens_total"] != 16*keys || sums["skyserve_key_denied_total"] != keys {
		t.Errorf("sums %v", sums)
	}
	if series["skyserve_key_requests_total"] != maxLabelled+1 || series["skyserve_key_in_flight"] != maxLabelled+1 {
		t.Errorf("series %v, want %d", series, maxLabelled+1)
	}
}

func BenchmarkLimitedKey(b *testing.B) {
	keys := limited(b, "requests_per_minute=1000000000 tokens_per_minute=1000000000 concurrent=9 requests_per_day=1000000000000 tokens_per_month=1000000000000000")
	ring := newKeyring(newLedger(), keys, 0)
	in := http.Header{"Authorization": {"Bearer sk"}}
	out := http.Header{}
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		now := time.Duration(i) * time.Millisecond
		a, _ := ring.admit(in)
		v, e := a.enter(now)
		if e == nil {
			e = v.reserve(1000, 256, 1, now)
		}
		if e != nil {
			b.Fatal(e)
		}
		a.announce(out, now)
		v.settle(testModel, telemetry.Usage{Requests: 1, PromptTokens: 1000, OutputTokens: 200}, now)
		v.leave(now)
	}
}

// What a request has left reserves nothing any more, also where its flight is still known,
// as after a panic of its handler.
func TestNothingIsReservedAfterALeave(t *testing.T) {
	a := newLedger().open(limited(t, "tokens_per_minute=100000")[0], 0)
	for range 200 {
		v, refused := a.enter(0)
		if refused == nil {
			refused = v.reserve(10, 10, 1, 0)
		}
		if refused != nil {
			t.Fatal(refused)
		}
		var both sync.WaitGroup
		both.Go(func() { v.grow(1000, 0) })
		both.Go(func() { v.leave(0) })
		both.Wait()
	}
	if a.reserved != 0 || a.inFlight != 0 {
		t.Errorf("%d tokens are reserved and %d in flight after all have left", a.reserved, a.inFlight)
	}
}
