package proxy

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"skyserve/internal/service"
	"skyserve/internal/telemetry"
	"skyserve/lbd/quota"
)

// limited returns one key, "sk", with the name acme and the limits of a line.
func limited(t testing.TB, attributes string) []service.APIKey {
	t.Helper()
	keys, err := service.ParseKeys("sk name=acme "+attributes, service.KeyLimits{})
	if err != nil {
		t.Fatal(err)
	}
	return keys
}

const asAcme = "Authorization: Bearer sk"

// reserved returns the number of requests of a key in flight, and the number of tokens that they may
// still use.
func (b *balancer) reserved(name string) (inFlight, tokens int64) {
	t := b.ledger.Totals()[name]
	if t == nil {
		return 0, 0
	}
	return t.InFlight, t.Reserved
}

// usedBy returns the usage of a key over all models.
func (b *balancer) usedBy(name string) (sum telemetry.Usage) {
	for _, u := range b.KeyUsage() {
		if u.Key == name {
			sum = sum.Plus(u.Usage)
		}
	}
	return sum
}

// tokensLeft returns the remaining tokens of the key "sk" in its minute.
func (b *balancer) tokensLeft() int {
	b.t.Helper()
	a, ok := b.keyring().Find(quota.Hash("sk"))
	if !ok {
		b.t.Fatal("no such key")
	}
	h := http.Header{}
	a.WriteHeaders(h, b.Elapsed())
	left, err := strconv.Atoi(h.Get("X-Ratelimit-Remaining-Tokens"))
	if err != nil {
		b.t.Fatal(err)
	}
	return left
}

// isIdle checks that no resource of an account is in use.
func (b *balancer) isIdle(name string) {
	b.t.Helper()
	b.settled()
	b.until(func() bool {
		inFlight, tokens := b.reserved(name)
		return inFlight == 0 && tokens == 0
	})
}

func TestRequestsPerMinute(t *testing.T) {
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
		t.Errorf("a denial reports %q remaining", resp.Header.Get("x-ratelimit-remaining-requests"))
	}
	b.isIdle("acme")
	if c := b.settled(); c.Arrived != 2 {
		t.Errorf("%d requests reached the queue, want 2", c.Arrived)
	}
}

func TestTokensAreReservedAndSettled(t *testing.T) {
	o := testOptions(t)
	o.Keys = limited(t, "tokens_per_minute=1000")
	o.Keys = append(o.Keys, limited(t, "tokens_per_minute=1000")...) // two keys may have the same name
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
	b.until(func() bool { _, tokens := b.reserved("acme"); return tokens >= 600 })
	body := expect(t, b.post(chatPath, bounded, asAcme), http.StatusTooManyRequests, "rate_limit_exceeded")
	if _, kind, _ := apiErrorOf(t, body); kind != "tokens" {
		t.Errorf("type %q, want tokens", kind)
	}
	resp := b.post(chatPath, strings.Replace(plainBody, `{`, `{"max_tokens":6000,`, 1), asAcme)
	expect(t, resp, http.StatusTooManyRequests, "rate_limit_exceeded")
	if resp.Header.Get("Retry-After") != "" {
		t.Error("a request that can never pass gets Retry-After")
	}
	close(release)
	expect(t, <-done, 200, "")
	b.isIdle("acme")
	if left := b.tokensLeft(); left < 1000-14 || left > 1000 {
		t.Errorf("%d tokens left, want 1000 less the 14 that the engine counted", left)
	}
	if got, want := b.usedBy("acme"), (telemetry.Usage{Requests: 1, PromptTokens: 12, OutputTokens: 2}); got != want {
		t.Errorf("used %+v, want %+v", got, want)
	}
}

func TestConcurrencyLimitOfKey(t *testing.T) {
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
	b.isIdle("acme")
	go func() { <-inside }()
	expect(t, b.post(chatPath, plainBody, asAcme), 200, "")
	for _, bad := range []string{`{`, `{"model":"none"}`} {
		if resp := b.post(chatPath, bad, asAcme); resp.StatusCode == 429 || resp.StatusCode == 200 {
			t.Errorf("%s: status %d", bad, resp.StatusCode)
		}
	}
	b.isIdle("acme")
}

func TestForwardedRequestsAreChargedAtOrigin(t *testing.T) {
	us, eu := pair(t, "token")
	us.SetKeys(limited(t, "requests_per_minute=3 tokens_per_minute=10000 tier=IW-N tenant=corp"))
	eu.SetKeys(limited(t, "requests_per_minute=1"))
	eu.attach("eu-0", engine(t, speak("a", "b")))
	us.receiveReport("lb-eu-0")
	for range 3 {
		resp := us.post(chatPath, streamBody, asAcme)
		expect(t, resp, 200, "")
		if resp.Header.Get("X-Ratelimit-Limit-Requests") != "3" || resp.Header.Get("X-Skyserve-Replica") != "eu-0" {
			t.Errorf("headers %v", resp.Header)
		}
	}
	us.isIdle("acme")
	eu.isIdle("acme")
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

// A request that no engine served costs nothing. A request that was running when the client
// disconnected costs its prompt.
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
		b.isIdle("acme")
		return b.usedBy("acme")
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
		t.Errorf("an engine without usage: %+v, want the estimate", estimated)
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
		t.Errorf("a client that disconnected: %+v after %+v, want another prompt", u, estimated)
	}
}

func TestSetKeysKeepsUsage(t *testing.T) {
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
	b.isIdle("acme")
	if got := b.KeyUsage(); len(got) != 2 {
		t.Errorf("usage %+v, want that of the removed key too", got)
	}
}

func TestKeyMetricsAreLimited(t *testing.T) {
	l := quota.NewLedger()
	const keys = quota.MaxLabelled + 5
	for i := range keys {
		a := l.Open(service.APIKey{Name: fmt.Sprintf("key-%03d", i), Limits: service.KeyLimits{RequestsPerMinute: 1}}, 0)
		v, e := a.Admit(0)
		if e != nil {
			t.Fatal(e)
		}
		v.Settle("m", telemetry.Usage{Requests: 1, PromptTokens: 10, CachedTokens: 4, OutputTokens: 2}, 0)
		v.Release(0)
		if _, e := a.Admit(0); e == nil {
			t.Fatal("a second request passes")
		}
	}
	l.Open(service.APIKey{Name: "never-used"}, 0)
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
	if series["skyserve_key_requests_total"] != quota.MaxLabelled+1 || series["skyserve_key_in_flight"] != quota.MaxLabelled+1 {
		t.Errorf("series %v, want %d", series, quota.MaxLabelled+1)
	}
}
