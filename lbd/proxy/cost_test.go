package proxy

import (
	"bytes"
	"log/slog"
	"net/http"
	"strings"
	"testing"

	"skyserve/internal/service"
	"skyserve/internal/telemetry"
)

// priced returns the test model with a price, and another one without.
func priced() []service.BalancerModel {
	cached := 0.25
	return []service.BalancerModel{
		{Name: testModel, Aliases: []string{"chat-small"}, LoRA: []string{"sql"}, Price: &service.Price{Input: 1, CachedInput: &cached, Output: 3}},
		{Name: "unpriced"},
	}
}

const pricedReply = `{"choices":[],"usage":{"prompt_tokens":100,"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":64}}}`

// 36 tokens at 1 USD per million, 64 cached ones at 0.25 and 2 output tokens at 3.
const pricedCost = 36_000 + 16_000 + 6_000

func TestCostOfRequests(t *testing.T) {
	o := testOptions(t)
	o.Self.Models, o.Keys = priced(), limited(t, "usd_per_month=0.0005")
	var log bytes.Buffer
	o.Logger, o.AccessLog = slog.New(slog.NewTextHandler(&log, nil)), true
	b := start(t, o)
	b.attach("us-0", engine(t, whole(pricedReply)))
	body := strings.Replace(plainBody, `"messages"`, `"max_tokens":10,"messages"`, 1)
	expect(t, b.post(chatPath, body, asAcme), 200, "")
	b.isIdle("acme")
	want := telemetry.Usage{Requests: 1, PromptTokens: 100, CachedTokens: 64, OutputTokens: 2, PricedRequests: 1, Cost: pricedCost}
	if got := b.usedBy("acme"); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	b.hasTraffic(testModel, "acme", telemetry.Outcomes{Served: 1}, want)
	got := b.gathered()
	for _, series := range []string{"skyserve_cost_usd_total{model=" + testModel + ",tier=IW-F}", "skyserve_key_cost_usd_total{key=acme,model=" + testModel + "}"} {
		if got[series] != 5.8e-05 {
			t.Errorf("%s is %g", series, got[series])
		}
	}
	if !strings.Contains(log.String(), "cost_usd=5.8e-05") {
		t.Errorf("the access log lacks the cost: %s", log.String())
	}
	// An adapter has the price of its model. The cost of a model without a price is unknown.
	expect(t, b.post(chatPath, strings.Replace(body, testModel, "sql", 1), asAcme), 200, "")
	message := expect(t, b.post(chatPath, strings.Replace(body, testModel, "unpriced", 1), asAcme), http.StatusForbidden, "model_not_priced")
	if !strings.Contains(message, `unpriced`) {
		t.Errorf("the model is not named: %s", message)
	}
	expect(t, b.post(chatPath, strings.Replace(body, `"max_tokens":10`, `"max_tokens":1000`, 1), asAcme), http.StatusTooManyRequests, "insufficient_quota")
	b.isIdle("acme")
	b.hasTraffic(testModel, "acme", telemetry.Outcomes{Served: 2, Limited: 1}, want.Plus(want))
	if got := b.usedBy("acme"); got != want.Plus(want) {
		t.Errorf("got %+v, want twice %+v", got, want)
	}
}

// A key with a budget opens WebSockets only to models with a price. The cost of one is unknown, as its tokens are.
func TestWebSocketNeedsPriceWithBudget(t *testing.T) {
	o := testOptions(t)
	o.Self.Models, o.Keys = priced(), limited(t, "usd_per_day=1")
	h, accepted := realtimeEngine(t)
	b := start(t, o)
	b.attach("us-0", engine(t, h))
	if _, resp, err := b.dial(realtime+"?model=unpriced", nil, asAcme); err == nil {
		t.Error("a model without a price is accepted")
	} else if body := read(t, resp); resp.StatusCode != http.StatusForbidden || !strings.Contains(body, "model_not_priced") {
		t.Errorf("got %d %s", resp.StatusCode, body)
	}
	conn, _, err := b.dial(realtime+"?model="+testModel, nil, asAcme)
	if err != nil {
		t.Fatal(err)
	}
	close((<-accepted).done)
	_ = conn.CloseNow()
	b.isIdle("acme")
	if u := b.usedBy("acme"); u.Requests != 1 || u.CostUSD() != nil {
		t.Errorf("got %+v, want a request of unknown cost", u)
	}
}

// The cost of a request without a price is unknown, never zero.
func TestUnpricedRequestHasNoCost(t *testing.T) {
	o := testOptions(t)
	o.Keys = limited(t, "")
	b := start(t, o)
	b.attach("us-0", engine(t, whole(pricedReply)))
	expect(t, b.post(chatPath, plainBody, asAcme), 200, "")
	b.isIdle("acme")
	if u := b.usedBy("acme"); u.Requests != 1 || u.PricedRequests != 0 || u.CostUSD() != nil {
		t.Errorf("got %+v", u)
	}
	for series := range b.gathered() {
		if strings.Contains(series, "cost_usd") {
			t.Errorf("%s shows a cost that is unknown", series)
		}
	}
}

// A changed price applies to requests that arrive after it.
func TestPriceIsReloaded(t *testing.T) {
	o := testOptions(t)
	o.Keys = limited(t, "")
	b := start(t, o)
	b.attach("us-0", engine(t, whole(pricedReply)))
	b.SetModels(priced(), nil)
	expect(t, b.post(chatPath, plainBody, asAcme), 200, "")
	b.isIdle("acme")
	if u := b.usedBy("acme"); u.Cost != pricedCost {
		t.Errorf("got %+v", u)
	}
}

// A forwarded request costs once, where its client asked, with the tokens that the peer's engine had cached.
func TestForwardedCostCountsAtOrigin(t *testing.T) {
	us, eu := pair(t, "token")
	for _, b := range []*balancer{us, eu} {
		b.SetModels(priced(), nil)
		b.SetKeys(limited(t, ""))
	}
	eu.attach("eu-0", engine(t, speak("a", "b")))
	us.receiveReport("lb-eu-0")
	expect(t, us.post(chatPath, streamBody, asAcme), 200, "")
	us.isIdle("acme")
	eu.settled()
	if u := us.usedBy("acme"); u.Cost != pricedCost || u.PricedRequests != 1 {
		t.Errorf("usage where the client asked: %+v", u)
	}
	for series := range eu.gathered() {
		if strings.Contains(series, "cost_usd") {
			t.Errorf("the peer counts %s", series)
		}
	}
}

// hasTraffic checks the traffic of the last minute of a model and of a key.
func (b *balancer) hasTraffic(model, key string, outcomes telemetry.Outcomes, used telemetry.Usage) {
	b.t.Helper()
	s := b.TrafficStats()
	if got := s.Models[model]; got.Outcomes != outcomes || got.Usage != used || got.E2E == nil {
		b.t.Errorf("model %s: got %+v, want %+v, %+v", model, got, outcomes, used)
	}
	for _, k := range s.Keys {
		if k.Key == key {
			if k.Traffic.Usage != used || k.Traffic.E2E == nil {
				b.t.Errorf("key %s: got %+v, want %+v", key, k.Traffic, used)
			}
			return
		}
	}
	b.t.Errorf("no traffic of key %s: %+v", key, s.Keys)
}
