package proxy

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"skyserve/internal/service"
	"skyserve/internal/testkit"
	"skyserve/lbd/core"
	"skyserve/lbd/openai"
	"skyserve/lbd/policy"
	"skyserve/lbd/record"
)

// fragileEngine is an engine that crashes on a request with the word deadly: it sends its prelude,
// then closes its port and its connections.
type fragileEngine struct {
	url  string
	dead atomic.Bool
	srv  *httptest.Server
	die  sync.Once
}

func newFragileEngine(t *testing.T, prelude string, h http.HandlerFunc) *fragileEngine {
	f := &fragileEngine{}
	f.srv = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		body, _ := io.ReadAll(req.Body)
		if f.dead.Load() {
			panic(http.ErrAbortHandler)
		}
		if bytes.Contains(body, []byte("deadly")) {
			if prelude != "" {
				w.Header().Set("Content-Type", "text/event-stream")
				_, _ = io.WriteString(w, prelude)
				_ = http.NewResponseController(w).Flush()
			}
			f.kill()
			panic(http.ErrAbortHandler)
		}
		req.Body = io.NopCloser(bytes.NewReader(body))
		h(w, req)
	}))
	f.url = f.srv.URL
	t.Cleanup(func() { f.kill(); f.srv.Close() })
	return f
}

func (f *fragileEngine) kill() {
	f.die.Do(func() {
		f.dead.Store(true)
		_ = f.srv.Listener.Close()
		f.srv.CloseClientConnections()
	})
}

// fleet is a balancer with fragile engines that are probed until the test ends.
type fleet struct {
	*balancer
	engines []*fragileEngine
}

// probed returns options with a service's defaults for probes, because newFleet starts probes.
func probed(t *testing.T) Options {
	o := roundRobin(t)
	d := core.DefaultConfig(o.Core.Policy)
	o.Core.ProbeInterval, o.Core.KillProbeTime = d.ProbeInterval, d.KillProbeTime
	return o
}

func newFleet(t *testing.T, o Options, n int, prelude string, h http.HandlerFunc) *fleet {
	f := &fleet{balancer: start(t, o)}
	for i := range n {
		e := newFragileEngine(t, prelude, h)
		f.engines = append(f.engines, e)
		f.attachAs(fmt.Sprint(o.Self.ID, "-", i), e.url, service.EngineVLLM)
	}
	ctx, end := context.WithCancel(t.Context())
	var probing sync.WaitGroup
	probing.Go(func() {
		for ticker := time.NewTicker(20 * time.Millisecond); ; {
			select {
			case <-ctx.Done():
				ticker.Stop()
				return
			case <-ticker.C:
				f.probe(o.Self.ID)
			}
		}
	})
	t.Cleanup(func() { end(); probing.Wait() })
	return f
}

func (f *fleet) probe(name string) {
	for i, e := range f.engines {
		report := core.ProbeReport{Ready: !e.dead.Load(), Pending: policy.Known(0), Running: policy.Known(0), KV: policy.Known(0.0)}
		if !report.Ready {
			report.Reason = "connection refused"
		}
		f.Step(core.Event{Kind: core.EventReplicaReport, Target: fmt.Sprint(name, "-", i), Report: &report})
	}
}

// deaths returns the number of engines that crashed.
func (f *fleet) deaths() (n int) {
	for _, e := range f.engines {
		if e.dead.Load() {
			n++
		}
	}
	return n
}

func lethalPrompt(stream bool, rest string) string {
	return fmt.Sprintf(`{"model":"%s","stream":%v,"messages":[{"role":"user","content":"deadly"}]%s}`, testModel, stream, rest)
}

func TestRequestThatCrashesEnginesIsStopped(t *testing.T) {
	for _, stream := range []bool{false, true} {
		t.Run(fmt.Sprint("stream ", stream), func(t *testing.T) {
			o := probed(t)
			o.Keys = apiKeys("sk-one", "sk-two")
			f := newFleet(t, o, 8, "", speak("fine"))
			resp := f.post(chatPath, lethalPrompt(stream, ""), "X-Request-ID: r1", "Authorization: Bearer sk-one")
			body := expect(t, resp, http.StatusBadRequest, "request_kills_engines")
			if message, kind, _ := apiErrorOf(t, body); kind != openai.TypeInvalid || !strings.Contains(message, "engine") {
				t.Errorf("%s: %q", kind, message)
			}
			if n := f.deaths(); n != 2 {
				t.Fatalf("%d engines died of it", n)
			}
			f.settled()
			d, _ := f.Decision("r1")
			last := d.Attempts[len(d.Attempts)-1]
			if d.State != record.StateRejected || d.Reason != core.RejectKills || len(d.Attempts) != 3 || !slices.Equal(last.Engines, []string{d.Attempts[0].Target, d.Attempts[1].Target}) {
				t.Errorf("its record is %+v", d)
			}
			for i, again := range []string{lethalPrompt(!stream, ""), lethalPrompt(stream, `,"user":"somebody else"`), strings.Replace(lethalPrompt(stream, ""), testModel, "chat-small", 1)} {
				expect(t, f.post(chatPath, again, "Authorization: Bearer sk-two"), http.StatusBadRequest, "request_kills_engines")
				if n := f.deaths(); n != 2 {
					t.Fatalf("repeat %d: %d engines died", i, n)
				}
			}
			expect(t, f.post(chatPath, plainBody, "Authorization: Bearer sk-two"), http.StatusOK, "")
			lawful(t, f.settled())
		})
	}
}

// An interrupted stream counts like a request without a response.
func TestStreamThatCrashesEnginesIsStopped(t *testing.T) {
	f := newFleet(t, probed(t), 8, chunk("so")+chunk(" far"), speak("fine"))
	body := expect(t, f.post(chatPath, lethalPrompt(true, "")), http.StatusOK, "")
	if n := f.deaths(); n != 2 {
		t.Errorf("%d engines died of it", n)
	}
	i := strings.LastIndex(strings.TrimSpace(body), "data: ")
	if _, _, code := apiErrorOf(t, body[i+len("data: "):]); code != "request_kills_engines" || strings.Contains(body, "[DONE]") {
		t.Errorf("the stream ends in %q", body[i:])
	}
	expect(t, f.post(chatPath, lethalPrompt(true, "")), http.StatusBadRequest, "request_kills_engines")
	lawful(t, f.settled())
}

// Other requests at engines that such a request crashes are served.
func TestOtherRequestsAreServed(t *testing.T) {
	gate := make(chan struct{}) // blocks the requests at their engines
	f := newFleet(t, probed(t), 8, "", func(w http.ResponseWriter, req *http.Request) {
		select {
		case <-gate:
			speak("fine")(w, req)
		case <-req.Context().Done():
			panic(http.ErrAbortHandler)
		}
	})
	const n = 16
	var pending sync.WaitGroup
	var served atomic.Int64
	for i := range n {
		pending.Go(func() {
			body := strings.Replace(streamBody, "hello", fmt.Sprint("hello ", i), 1)
			resp, err := client.Post(f.url+chatPath, "application/json", strings.NewReader(body))
			if err != nil {
				return
			}
			got, err := io.ReadAll(resp.Body)
			_ = resp.Body.Close()
			if err == nil && resp.StatusCode == http.StatusOK && bytes.HasSuffix(got, []byte(doneEvent)) {
				served.Add(1)
			}
		})
	}
	f.until(func() bool { return f.View().Counts.Outstanding == n })
	expect(t, f.post(chatPath, lethalPrompt(true, "")), http.StatusBadRequest, "request_kills_engines")
	close(gate)
	pending.Wait()
	if dead := f.deaths(); dead != 2 || served.Load() != n {
		t.Errorf("%d engines died, %d of %d other requests were served", dead, served.Load(), n)
	}
	lawful(t, f.settled())
}

// A request whose connection fails is retried if the engine is alive.
func TestConnectionFailuresOfHealthyEngines(t *testing.T) {
	testkit.Slow(t)
	t.Parallel()
	var resets atomic.Int64
	f := newFleet(t, probed(t), 5, "", func(w http.ResponseWriter, req *http.Request) {
		if resets.Add(1) <= 4 {
			panic(http.ErrAbortHandler)
		}
		speak("fine")(w, req)
	})
	expect(t, f.post(chatPath, streamBody), http.StatusOK, "")
	if f.deaths() != 0 || resets.Load() != 5 {
		t.Errorf("%d engines died, %d got the request", f.deaths(), resets.Load())
	}
}

// Balancers forward the count with a request and its response, and share the requests that they
// stopped.
func TestCrashesAreCountedAcrossPeers(t *testing.T) {
	for name, prelude := range map[string]string{"before the first byte": "", "in the middle": chunk("so")} {
		t.Run(name, func(t *testing.T) {
			oUS, oEU := probed(t), probed(t)
			oUS.Self.PeerToken, oEU.Self.PeerToken = "secret", "secret"
			oEU.Self.ID, oEU.Self.Region = "lb-eu-0", "local/eu"
			us, eu := newFleet(t, oUS, 1, prelude, speak("fine")), newFleet(t, oEU, 4, prelude, speak("fine"))
			us.AddPeer(service.PeerConfig{ID: "lb-eu-0", Region: "local/eu", URL: eu.url}, nil)
			eu.AddPeer(service.PeerConfig{ID: "lb-us-0", Region: "local/us", URL: us.url}, nil)
			done := make(chan struct{})
			var beating sync.WaitGroup
			beat := func(b *balancer, peer string, of *balancer) {
				b.Step(core.Event{Kind: core.EventPeerReport, Target: peer, PeerReport: &core.PeerReport{Models: of.ModelLoads(), StoppedFingerprints: of.StoppedRequests()}})
			}
			beating.Go(func() {
				for ticker := time.NewTicker(20 * time.Millisecond); ; {
					select {
					case <-done:
						ticker.Stop()
						return
					case <-ticker.C:
						beat(us.balancer, "lb-eu-0", eu.balancer)
						beat(eu.balancer, "lb-us-0", us.balancer)
					}
				}
			})
			t.Cleanup(func() { close(done); beating.Wait() })
			us.until(func() bool { v := us.View(); return len(v.Peers) == 1 && len(v.Peers[0].Models) == 1 })
			resp := us.post(chatPath, lethalPrompt(true, ""), "X-Request-ID: r1")
			body := read(t, resp)
			if !strings.Contains(body, `"request_kills_engines"`) || strings.Contains(body, "skyserve-kills") {
				t.Errorf("the client got %q", body)
			}
			if here, there := us.deaths(), eu.deaths(); here != 1 || there != 1 {
				t.Errorf("%d engines died here and %d there", here, there)
			}
			beat(eu.balancer, "lb-us-0", us.balancer)
			expect(t, eu.post(chatPath, lethalPrompt(false, "")), http.StatusBadRequest, "request_kills_engines")
			if there := eu.deaths(); there != 1 {
				t.Errorf("%d engines of the peer died after its heartbeat", there)
			}
			lawful(t, us.settled())
			lawful(t, eu.settled())
		})
	}
}

// Headers of a client and comments of an engine do not change the count.
func TestOnlyPeersReportCrashes(t *testing.T) {
	b := start(t, testOptions(t))
	b.attach("us-0", engine(t, speakRaw(": skyserve-kills 2\n\n"+chunk("x")+doneEvent)))
	resp := b.post(chatPath, streamBody, headerKills+": 2", headerFingerprint+": 1")
	if got := expect(t, resp, http.StatusOK, ""); !strings.HasPrefix(got, chunk("x")) && !strings.HasPrefix(got, ": ") {
		t.Errorf("got %q", got)
	}
	if c := b.settled(); c.Finished != 1 {
		t.Errorf("counts %+v", c)
	}
}
