package proxy

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"skyserve/internal/telemetry"
)

// with inserts members into a body.
func with(body, members string) string { return strings.Replace(body, `{`, `{`+members+`,`, 1) }

// The maximum in a client's request is an arbitrary number. No value may bypass the limits or
// increase them.
func TestAbsurdTokenLimits(t *testing.T) {
	const limit = 1000
	o := testOptions(t)
	o.Keys = limited(t, fmt.Sprintf("tokens_per_minute=%d tokens_per_day=%d", limit, limit))
	b := start(t, o)
	b.attach("us-0", engine(t, whole(plainReply)))
	for _, c := range []struct {
		members string
		denied  bool
	}{
		{`"max_tokens":9223372036854775807`, true},
		{`"max_tokens":9223372036854775000`, true},
		{`"max_tokens":99999999999999999999999999`, true},
		{`"max_tokens":1e300`, true},
		{`"max_tokens":6e3`, true},
		{`"max_tokens":6000.0`, true},
		{`"max_completion_tokens":6000,"max_tokens":1`, true},
		{`"n":100,"max_tokens":60`, true},
		{`"n":9223372036854775807,"max_tokens":9223372036854775807`, true},
		{`"max_tokens":600`, false},
		{`"max_tokens":6e2`, false},
		{`"n":2,"max_tokens":60`, false},
		{`"max_tokens":-6000`, false}, // the engine decides their meaning
		{`"max_tokens":"6000"`, true}, // engines accept it as a number
		{`"max_tokens":"many"`, false},
		{`"max_tokens":0.5`, false},
		{`"max_tokens":null,"n":null`, false},
		{`"n":-5,"max_tokens":60`, false},
	} {
		resp := b.post(chatPath, with(plainBody, c.members), asAcme)
		switch body := read(t, resp); {
		case c.denied && (resp.StatusCode != http.StatusTooManyRequests):
			t.Errorf("%s: status %d: %s", c.members, resp.StatusCode, body)
		case !c.denied && resp.StatusCode != http.StatusOK:
			t.Errorf("%s: status %d: %s", c.members, resp.StatusCode, body)
		}
		b.isIdle("acme")
		if left := b.tokensLeft(); left > limit {
			t.Errorf("%s: %d of %d tokens are left", c.members, left, limit)
		}
	}
}

// A key whose limit has no capacity for a response can still request embeddings of its prompt.
func TestNoOutputReservedWithoutGeneration(t *testing.T) {
	o := testOptions(t)
	o.Keys = limited(t, "tokens_per_minute=100")
	b := start(t, o)
	b.attach("us-0", engine(t, whole(`{"object":"list","data":[],"usage":{"prompt_tokens":3,"total_tokens":3}}`)))
	expect(t, b.post("/v1/embeddings", `{"model":"chat-small","input":"hello"}`, asAcme), http.StatusOK, "")
	b.isIdle("acme")
}

// Impossible usage figures of an engine are ignored: neither sums nor limits overflow, and the cached
// tokens never exceed the sent tokens.
func TestAbsurdUsage(t *testing.T) {
	for _, c := range []struct {
		usage string
		want  telemetry.Usage
	}{
		{`{"prompt_tokens":9223372036854775807,"completion_tokens":9223372036854775807}`, telemetry.Usage{Requests: 1, PromptTokens: -1}},
		{`{"prompt_tokens":1e18,"completion_tokens":2}`, telemetry.Usage{Requests: 1, PromptTokens: -1, OutputTokens: 2}},
		{`{"prompt_tokens":-12,"completion_tokens":-2}`, telemetry.Usage{Requests: 1, PromptTokens: -1}},
		{`{"prompt_tokens":12,"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":4000}}`, telemetry.Usage{Requests: 1, PromptTokens: 12, CachedTokens: 12, OutputTokens: 2}},
		{`{"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":9223372036854775807}}`, telemetry.Usage{Requests: 1, PromptTokens: -1, OutputTokens: 2}},
		{`"a lot"`, telemetry.Usage{Requests: 1, PromptTokens: -1}},
		{`null`, telemetry.Usage{Requests: 1, PromptTokens: -1}},
	} {
		o := testOptions(t)
		o.Keys = limited(t, "tokens_per_minute=1000000 tokens_per_day=1000000")
		b := start(t, o)
		b.attach("us-0", engine(t, whole(`{"id":"x","object":"chat.completion","choices":[],"usage":`+c.usage+`}`)))
		for n := range int64(3) {
			expect(t, b.post(chatPath, plainBody, asAcme), http.StatusOK, "")
			b.isIdle("acme")
			got, want := b.usedBy("acme"), c.want
			if want.PromptTokens < 0 { // the estimate applies
				want.PromptTokens = got.PromptTokens / (n + 1)
				if want.PromptTokens <= 0 || want.PromptTokens > 100 {
					t.Fatalf("%s: used %+v, want an estimate of the prompt", c.usage, got)
				}
			}
			one := want
			for range n {
				want = want.Plus(one)
			}
			if got != want {
				t.Errorf("%s: after %d requests %+v is used, want %+v", c.usage, n+1, got, want)
			}
		}
		for _, p := range b.History(0) {
			if p.CachedTokens > p.PromptTokens || p.PromptTokens < 0 || p.OutputTokens < 0 {
				t.Errorf("%s: a point of %+v", c.usage, p)
			}
		}
		if rate := b.TrafficStats().PrefixHitRate; rate != nil && (*rate < 0 || *rate > 1) {
			t.Errorf("%s: a hit rate of %v", c.usage, *rate)
		}
		reg := prometheus.NewRegistry()
		b.RegisterMetrics(reg)
		if _, err := reg.Gather(); err != nil {
			t.Errorf("%s: %v", c.usage, err)
		}
	}
}
