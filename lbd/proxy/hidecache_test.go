package proxy

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"skyserve/internal/service"
)

const (
	completedEvent = "event: response.completed\ndata: " + `{"type":"response.completed","response":{"id":"resp_s","usage":{"input_tokens":100,"input_tokens_details":{"cached_tokens":64},"output_tokens":1}}}` + "\n\n"
	wholeUsage     = `"usage":{"prompt_tokens":100,"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":64}}`
	responseUsage  = `"usage":{"input_tokens":100,"output_tokens":2,"input_tokens_details":{"cached_tokens":64}}`
)

// answersThatTell returns responses of engines that report 64 cached tokens.
func answersThatTell() map[string]struct{ path, body, kind, answer string } {
	const events, whole = "text/event-stream", "application/json"
	usageBody := strings.Replace(streamBody, `{`, `{"stream_options":{"include_usage":true},`, 1)
	long := strings.Repeat("x", 1<<20+5) // beyond the buffer limit of a response or an event
	return map[string]struct{ path, body, kind, answer string }{
		"a chat":                       {chatPath, plainBody, whole, `{"id":"c","choices":[],` + wholeUsage + `}`},
		"a completion":                 {"/v1/completions", `{"model":"chat-small","prompt":"x"}`, whole, `{"choices":[{"text":"a"}],` + wholeUsage + `}`},
		"a response":                   {responsesPath, responseBody("", false), whole, `{"id":"resp_1","output":[],` + responseUsage + `}`},
		"a stream":                     {chatPath, usageBody, events, chunk("a") + usageEvent(100, 64, 1) + doneEvent},
		"a stream's every event":       {chatPath, usageBody, events, strings.Replace(chunk("a"), `"choices"`, wholeUsage+`,"choices"`, 1) + strings.Replace(chunk("b"), `"choices"`, wholeUsage+`,"choices"`, 1) + doneEvent},
		"a response's stream":          {responsesPath, responseBody("", true), events, completedEvent},
		"a stream without its end":     {responsesPath, responseBody("", true), events, strings.TrimSuffix(completedEvent, "\n")},
		"a long response":              {responsesPath, responseBody("", false), whole, `{"id":"resp_1","instructions":"` + long + `",` + responseUsage + `}`},
		"a long response, usage first": {responsesPath, responseBody("", false), whole, `{"id":"resp_1",` + responseUsage + `,"instructions":"` + long + `"}`},
		"a long event":                 {responsesPath, responseBody("", true), events, "data: " + `{"type":"response.completed","response":{"id":"resp_s","instructions":"` + long + `",` + responseUsage + `}}` + "\n\n"},
		"a long event, and another":    {chatPath, usageBody, events, "data: " + `{"choices":[{"index":0,"delta":{"content":"` + long + `"}}]}` + "\n\n" + usageEvent(100, 64, 1) + doneEvent},
	}
}

// A client with an API key receives no cached token counts, in any format of a response, and
// everything else unchanged. An operator can allow the counts. Clients of a service without keys
// receive everything. Cached tokens are counted in all cases.
func TestCachedTokensAreHiddenFromKeys(t *testing.T) {
	for name, c := range answersThatTell() {
		for _, mode := range []struct {
			name          string
			keys, exposed bool
		}{{"with a key", true, false}, {"exposed", true, true}, {"without keys", false, false}} {
			t.Run(name+"/"+mode.name, func(t *testing.T) {
				o := testOptions(t)
				o.ExposeCache = mode.exposed
				if mode.keys {
					o.Keys = limited(t, "")
				}
				b := start(t, o)
				b.attach("us-0", engine(t, func(w http.ResponseWriter, req *http.Request) {
					_, _ = io.Copy(io.Discard, req.Body)
					w.Header().Set("Content-Type", c.kind)
					_, _ = io.WriteString(w, c.answer)
				}))
				resp := b.post(c.path, c.body, asAcme)
				got := expect(t, resp, 200, "")
				want, header := c.answer, "0.000"
				if mode.keys && !mode.exposed {
					want, header = strings.ReplaceAll(want, `"cached_tokens":64`, `"cached_tokens":0 `), ""
				}
				if got != want {
					t.Errorf("got %s\nwant %s", ends(got), ends(want))
				}
				if h := resp.Header.Get(headerPrefixMatch); h != header {
					t.Errorf("%s is %q, want %q", headerPrefixMatch, h, header)
				}
				if resp.Header.Get(headerDecision) == "" {
					t.Error("no decision header")
				}
				b.settled()
				if known := !strings.HasPrefix(name, "a long"); known && b.tallied().CachedTokens != 64 {
					t.Errorf("%d cached tokens are counted, want 64", b.tallied().CachedTokens)
				}
			})
		}
	}
}

func ends(s string) string {
	if len(s) > 400 {
		return s[:150] + " ... " + s[len(s)-200:]
	}
	return s
}

// A peer receives cached token counts: it counts them, and decides whether its clients receive
// them.
func TestCachedTokensReachPeer(t *testing.T) {
	us, eu := pair(t, "token")
	us.SetKeys(limited(t, ""))
	eu.SetKeys(limited(t, ""))
	eu.attach("eu-0", engine(t, speak("a", "b")))
	us.receiveReport("lb-eu-0")
	resp := us.post(chatPath, strings.Replace(streamBody, `{`, `{"stream_options":{"include_usage":true},`, 1), asAcme)
	body := expect(t, resp, 200, "")
	if strings.Contains(body, `"cached_tokens":64`) || !strings.Contains(body, `"cached_tokens":0 `) || resp.Header.Get(headerPrefixMatch) != "" {
		t.Errorf("the client got %s and %q", body, resp.Header.Get(headerPrefixMatch))
	}
	us.isIdle("acme")
	if u := us.KeyUsage(); len(u) != 1 || u[0].CachedTokens != 64 {
		t.Errorf("usage %+v, want 64 cached tokens", u)
	}
}

// A stored response that is requested later contains no more counts than when it was generated.
func TestStoredResponseHidesCachedTokens(t *testing.T) {
	const stored = `{"id":"resp_1","output":[],` + responseUsage + `}`
	o := testOptions(t)
	o.Keys = limited(t, "")
	b := start(t, o)
	b.attach("us-0", engine(t, whole(stored)))
	expect(t, b.post(responsesPath, responseBody("", false), asAcme), 200, "")
	for _, exposed := range []bool{false, true} {
		b.SetExposeCache(exposed)
		got := expect(t, b.about("GET", "resp_1", asAcme), 200, "")
		if strings.Contains(got, `"cached_tokens":64`) != exposed {
			t.Errorf("exposed %v: %s", exposed, got)
		}
	}
}

// cachedChunk returns an event with the usage so far, for a prompt with 8 cached tokens.
func cachedChunk(content string, output int) string {
	return strings.Replace(chunk(content), "}]}\n", fmt.Sprintf(`}],"usage":{"prompt_tokens":9,"completion_tokens":%d,"prompt_tokens_details":{"cached_tokens":8}}}`+"\n", output), 1)
}

// The usage so far contains no cached tokens in any event, requested or not.
func TestContinuousUsageHidesCachedTokens(t *testing.T) {
	for requested, want := range map[string]int{`{"include_usage":true}`: 1, `{"include_usage":true,"continuous_usage_stats":true}`: 5} {
		o := testOptions(t)
		o.Keys = limited(t, "")
		b := start(t, o)
		answer := cachedChunk("a", 1) + cachedChunk("b", 2) + cachedChunk("c", 3) + cachedChunk("d", 4) + finished + usageEvent(9, 8, 4) + doneEvent
		b.attachAs("us-0", engine(t, speakRaw(answer)), service.EngineVLLM)
		got := expect(t, b.post(chatPath, strings.Replace(streamBody, `{`, `{"stream_options":`+requested+`,`, 1), asAcme), 200, "")
		if n := strings.Count(got, `"cached_tokens":0`); n != want || strings.Contains(got, `"cached_tokens":8`) {
			t.Errorf("asked for %s: %d figures that read 0, want %d and no other, in %s", requested, n, want, got)
		}
	}
}

// A response that another replica continues contains no counts either.
func TestContinuedResponseHidesCachedTokens(t *testing.T) {
	o := roundRobin(t)
	o.Keys = limited(t, "")
	b := start(t, o)
	b.attachAs("us-0", engine(t, cut("text/event-stream", cachedChunk("Hel", 1))), service.EngineVLLM)
	b.attachAs("us-1", engine(t, speakRaw(chunk("lo")+finished+usageEvent(9, 8, 1)+doneEvent)), service.EngineVLLM)
	got := expect(t, b.post(chatPath, strings.Replace(streamBody, `{`, `{"stream_options":{"include_usage":true},`, 1), asAcme), 200, "")
	if !strings.Contains(got, "Hel") || !strings.Contains(got, "lo") || !strings.Contains(got, `"cached_tokens":0`) || strings.Contains(got, `"cached_tokens":8`) {
		t.Errorf("the client got %s", got)
	}
}

// If tenants share prefixes, the reason of a decision is hidden too, because it would reveal a
// match.
func TestDecisionReasonIsHiddenWithSharedPrefixes(t *testing.T) {
	for _, c := range []struct {
		shares, exposes bool
		want            string
	}{{false, false, "skylb:prefix_match"}, {true, false, "skylb"}, {true, true, "skylb:prefix_match"}} {
		o := testOptions(t)
		o.Keys, o.SharePrefixes, o.ExposeCache = twoTenants(t), c.shares, c.exposes
		b := start(t, o)
		b.attach("us-0", engine(t, whole(plainReply)))
		b.attach("us-1", engine(t, whole(plainReply)))
		expect(t, b.post(chatPath, longBody, asAnna), 200, "")
		resp := b.post(chatPath, longBody, asAnna)
		expect(t, resp, 200, "")
		if got := resp.Header.Get(headerDecision); got != c.want {
			t.Errorf("%+v: %s is %q", c, headerDecision, got)
		}
	}
}
