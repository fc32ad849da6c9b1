package proxy

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"skyserve/internal/printable"
	"skyserve/internal/service"
	simulated "skyserve/internal/sim/engine/server"
	"skyserve/lbd/core"
	"skyserve/lbd/policy"
	"skyserve/lbd/record"
)

// attachAs attaches a replica with an engine of a kind. vLLM and SGLang are proven to continue a message,
// other engines are known to begin a new one. Both are known before the replica is ready: a continuation
// that waits for it would start a check.
func (b *balancer) attachAs(id, url string, kind service.EngineKind) {
	b.t.Helper()
	p := b.attachUnready(id, url, kind)
	p.mu.Lock()
	if p.state = ContinuationProven; kind != service.EngineVLLM && kind != service.EngineSGLang {
		p.state, p.cause = ContinuationUnproven, errRestarted
	}
	p.mu.Unlock()
	b.report(id)
}

// attachUnchecked attaches a replica of which nothing is known.
func (b *balancer) attachUnchecked(id, url string, kind service.EngineKind) {
	b.t.Helper()
	b.attachUnready(id, url, kind)
	b.report(id)
}

// attachUnready attaches a replica that has not reported yet and returns its proof.
func (b *balancer) attachUnready(id, url string, kind service.EngineKind) *proof {
	b.t.Helper()
	if _, err := b.AddReplica(service.ReplicaConfig{ID: id, URL: url, Model: testModel, Kind: kind}); err != nil {
		b.t.Fatal(err)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return &b.replicas[id].count.proof
}

// full reports that a replica has no capacity.
func (b *balancer) full(id string) {
	b.Step(core.Event{Kind: core.EventReplicaReport, Target: id, Report: &core.ProbeReport{
		Ready: true, Pending: policy.Known(1), Running: policy.Known(8), KV: policy.Known(0.9),
	}})
}

// continuations returns skyserve_continuations_total by outcome.
func (b *balancer) continuations() map[string]int {
	b.t.Helper()
	counts := map[string]int{}
	for name, n := range b.gathered() {
		if outcome, ok := strings.CutPrefix(name, "skyserve_continuations_total{outcome="); ok {
			counts[strings.TrimSuffix(outcome, "}")] = int(n)
		}
	}
	return counts
}

// clientView is a stream as its client assembles it.
type clientView struct {
	text, id, created, finish string
	roles, ends, finishes     int
	usage                     map[string]any
	broken                    string // the message of an error event
}

// parseStream assembles a stream; it fails if the chunks do not belong to one response.
func parseStream(t *testing.T, stream string) clientView {
	t.Helper()
	var all clientView
	// The last event may have no empty line, as from the engine.
	for event := range strings.SplitSeq(strings.TrimRight(stream, "\n"), "\n\n") {
		data, ok := strings.CutPrefix(event, "data: ")
		if !ok {
			t.Fatalf("%q is no event of data", event)
		}
		if data == "[DONE]" {
			all.ends++
			continue
		}
		var c struct {
			ID, Model string
			Created   json.Number
			Choices   []struct {
				Index        int
				Text         string
				Delta        struct{ Role, Content string }
				FinishReason *string `json:"finish_reason"`
			}
			Usage map[string]any
			Error *struct{ Message string }
		}
		if err := json.Unmarshal([]byte(data), &c); err != nil {
			t.Fatalf("event %q: %v", data, err)
		}
		if c.Error != nil {
			all.broken = c.Error.Message
			continue
		}
		if all.id == "" {
			all.id, all.created = c.ID, c.Created.String()
		}
		if c.ID != all.id || c.Created.String() != all.created {
			t.Fatalf("event %q belongs to another answer than %s of %s", data, all.id, all.created)
		}
		if c.Usage != nil {
			all.usage = c.Usage
		}
		for _, choice := range c.Choices {
			all.text += choice.Text + choice.Delta.Content
			if choice.Delta.Role != "" {
				all.roles++
			}
			if choice.FinishReason != nil {
				all.finishes++
				all.finish = *choice.FinishReason
			}
			if choice.Index != 0 {
				t.Fatalf("event %q has an index of its own", data)
			}
		}
	}
	return all
}

// simulator is a simulated engine with configurable faults.
type simulator struct {
	*simulated.Server
	url string
}

func simulate(t *testing.T) *simulator { return simulateWith(t, simulated.Options{}) }

// simulateWith is simulate with options of the engine.
func simulateWith(t *testing.T, o simulated.Options) *simulator {
	t.Helper()
	o.Model, o.Speed, o.Seed = testModel, 1e5, 11
	s, err := simulated.New(o)
	if err != nil {
		t.Fatal(err)
	}
	srv := httptest.NewServer(s.Handler())
	t.Cleanup(func() {
		srv.CloseClientConnections()
		srv.Close()
		s.Close()
	})
	return &simulator{s, srv.URL}
}

func (s *simulator) fault(t *testing.T, faults string) {
	t.Helper()
	resp, err := client.Post(s.url+"/fault", "application/json", strings.NewReader(faults))
	if err != nil {
		t.Fatal(err)
	}
	if body := read(t, resp); resp.StatusCode != http.StatusOK {
		t.Fatalf("setting %s: %d %s", faults, resp.StatusCode, body)
	}
}

// At any failure of a replica within a response, the client receives the same response as without the
// failure.
func TestStreamSurvivesReplicaFailure(t *testing.T) {
	bodies := map[string]string{
		"short chat":         `{"model":"` + testModel + `","stream":true,"stream_options":{"include_usage":true},"max_tokens":12,"messages":[{"role":"user","content":"Where is the old bridge?"}]}`,
		"chat without limit": `{"model":"` + testModel + `","stream":true,"stream_options":{"include_usage":true},"messages":[{"role":"user","content":"Tell me of the harbor."}]}`,
		"continued chat":     `{"model":"` + testModel + `","stream":true,"stream_options":{"include_usage":true},"max_tokens":30,"continue_final_message":true,"add_generation_prompt":false,"messages":[{"role":"user","content":"Well?"},{"role":"assistant","content":"I think that"}]}`,
		"chat with tools":    `{"model":"` + testModel + `","stream":true,"stream_options":{"include_usage":true},"max_tokens":9,"tools":[{"type":"function","function":{"name":"f"}}],"messages":[{"role":"user","content":"Well?"}]}`,
		"completion":         `{"model":"` + testModel + `","stream":true,"stream_options":{"include_usage":true},"max_tokens":20,"prompt":"The river in the valley"}`,
		"cut completion":     `{"model":"` + testModel + `","stream":true,"stream_options":{"include_usage":true},"max_tokens":90,"prompt":["A storm over the station"]}`,
		"raw completion":     `{"model":"` + testModel + `","stream":true,"stream_options":{"include_usage":true},"prompt":"Every student"}`,
	}
	b := start(t, roundRobin(t))
	dying, healthy := simulate(t), simulate(t)
	for name, body := range bodies {
		path := chatPath
		if strings.Contains(name, "completion") {
			path = textPath
		}
		b.attachAs("healthy", healthy.url, service.EngineSim)
		want := parseStream(t, expect(t, b.post(path, body), http.StatusOK, ""))
		tokens := int(want.usage["completion_tokens"].(float64))
		if _, err := b.RemoveReplica("healthy", 0); err != nil {
			t.Fatal(err)
		}
		for _, after := range []int{1, 2, tokens - 1, tokens} {
			dying.fault(t, fmt.Sprintf(`{"reset-after-tokens":%d}`, after))
			b.attachAs("dying", dying.url, service.EngineSim)
			if after < tokens {
				b.attachAs("healthy", healthy.url, service.EngineSim)
				b.full("healthy")
			}
			resp := b.post(path, body, fmt.Sprintf("X-Request-ID: %s-%d", strings.ReplaceAll(name, " ", "-"), after))
			if after < tokens {
				b.until(func() bool { return b.View().Counts.Queued == 1 })
				b.report("healthy")
			}
			got := parseStream(t, expect(t, resp, http.StatusOK, ""))
			chat := 1
			if path == textPath {
				chat = 0
			}
			if got.text != want.text || got.finish != want.finish || got.roles != chat || got.ends != 1 || got.finishes != 1 || got.broken != "" {
				t.Fatalf("%s, dead after %d of %d tokens: %+v\nwant %+v", name, after, tokens, got, want)
			}
			checkUsage(t, fmt.Sprintf("%s, dead after %d", name, after), got.usage, want.usage, after < tokens)
			checkRecord(t, b, resp.Header.Get(headerRequestID), after, tokens)
			_, _ = b.RemoveReplica("dying", 0)
			_, _ = b.RemoveReplica("healthy", 0)
		}
	}
	c := b.settled()
	lawful(t, c)
	if c.Finished != c.Arrived || c.Outstanding+c.Queued != 0 {
		t.Errorf("counts %+v: want all finished", c)
	}
	if got := b.continuations(); got["whole"] != 4*len(bodies) || len(got) != 1 {
		t.Errorf("continuations %v, want %d whole", got, 4*len(bodies))
	}
}

// checkUsage compares the usage that a client receives. A replica that fails after the last token has
// not reported usage.
func checkUsage(t *testing.T, when string, got, want map[string]any, allReported bool) {
	t.Helper()
	if !allReported {
		if got != nil {
			t.Errorf("%s: usage %v, though no engine reported it", when, got)
		}
		return
	}
	for _, key := range []string{"prompt_tokens", "completion_tokens", "total_tokens"} {
		if got[key] != want[key] {
			t.Errorf("%s: %s is %v, want %v", when, key, got[key], want[key])
		}
	}
}

// checkRecord compares the record of a request with the actual attempts.
func checkRecord(t *testing.T, b *balancer, id string, after, tokens int) {
	t.Helper()
	b.settled()
	d, _ := b.Decision(id)
	if d.State != record.StateFinished || d.Status != http.StatusOK || (d.OutputTokens != nil && *d.OutputTokens != tokens) {
		t.Errorf("%s: %+v, want finished with %d tokens", id, d, tokens)
	}
	if after == tokens {
		return
	}
	want := "dying closed the connection early after " + printable.Count(after, "token")
	if len(d.Attempts) != 2 || d.Attempts[0].Failure != want || d.Attempts[1].Target != "healthy" || d.Attempts[1].Decision.Attempt != 1 || d.OutputTokens == nil {
		t.Errorf("%s: attempts %+v, want one that failed with %q and one that continued", id, d.Attempts, want)
	}
}
