package proxy

import (
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"skyserve/internal/service"
	"skyserve/lbd/core"
)

// pair returns two balancers of different regions that are peers.
func pair(t *testing.T, token string) (us, eu *balancer) {
	t.Helper()
	o := roundRobin(t)
	o.Self.PeerToken = token
	us = start(t, o)
	o = roundRobin(t)
	o.Self.ID, o.Self.Region, o.Self.PeerToken = "lb-eu-0", "local/eu", token
	eu = start(t, o)
	us.AddPeer(service.PeerConfig{ID: "lb-eu-0", Region: "local/eu", URL: eu.url}, nil)
	eu.AddPeer(service.PeerConfig{ID: "lb-us-0", Region: "local/us", URL: us.url}, nil)
	return us, eu
}

// receiveReport reports that a peer has one idle replica.
func (b *balancer) receiveReport(peer string) {
	b.Step(core.Event{Kind: core.EventPeerReport, Target: peer, PeerReport: &core.PeerReport{
		Models: []core.ModelLoad{{Model: testModel, Replicas: 1, Available: 1}},
	}})
}

func TestForward(t *testing.T) {
	us, eu := pair(t, "secret")
	eu.attach("eu-0", engine(t, func(w http.ResponseWriter, req *http.Request) {
		for name := range req.Header {
			if strings.HasPrefix(name, ownPrefix) {
				t.Errorf("the engine got %s", name)
			}
		}
		speak("a", " b")(w, req)
	}))
	us.receiveReport("lb-eu-0")
	resp := us.post(chatPath, streamBody, "X-Request-ID: r1", "X-Skyserve-Tier: IW-N")
	if got := read(t, resp); got != chunk("a")+chunk(" b")+doneEvent {
		t.Errorf("got %q", got)
	}
	for name, want := range map[string]string{
		headerRequestID: "r1", headerRegion: "local/eu", headerReplica: "eu-0", headerDecision: "round-robin:offload",
	} {
		if got := resp.Header.Get(name); got != want {
			t.Errorf("%s is %q, want %q", name, got, want)
		}
	}
	here, there := us.settled(), eu.settled()
	lawful(t, here)
	lawful(t, there)
	if here.ForwardedOut != 1 || here.Finished != 1 || there.ForwardedIn != 1 || there.Finished != 1 {
		t.Errorf("counts %+v and %+v, want one forwarded", here, there)
	}
	if p := us.History(0); len(p) != 1 || p[0].PromptTokens != 100 || p[0].OutputTokens != 2 || p[0].Tier != service.TierNormal {
		t.Errorf("points at the origin %+v, want the request with its usage", p)
	}
	if p := eu.History(0); len(p) != 0 {
		t.Errorf("points at the peer %+v, want none", p)
	}
	d, ok := eu.Decision("r1")
	if !ok || d.From != "lb-us-0" || d.Hop != core.HopRemote || d.Tier != service.TierNormal {
		t.Errorf("the peer remembers %+v", d)
	}
	if s := eu.TrafficStats(); s.TTFT != nil || *orZero(s.ByReplica["eu-0"].PrefixHitRate) != 0.64 {
		t.Errorf("stats of the peer %+v: want no TTFT and the replica's hit rate", s)
	}
}

func orZero(p *float64) *float64 {
	if p == nil {
		return new(float64)
	}
	return p
}

func TestBouncedRequestIsRetried(t *testing.T) {
	us, eu := pair(t, "")
	us.receiveReport("lb-eu-0") // without a replica: the peer has just lost its replicas
	answered := make(chan *http.Response)
	go func() { answered <- us.post(chatPath, plainBody, "X-Request-ID: r1") }()
	us.until(func() bool { c := us.View().Counts; return c.ForwardedOut == 1 && c.Queued == 1 })
	if c := eu.settled(); c.Bounced+c.Rejected != 0 && c.Bounced != 1 {
		t.Errorf("counts of the peer %+v, want at most a bounce", c)
	}
	us.attach("us-0", engine(t, whole(plainReply)))
	resp := <-answered
	expect(t, resp, http.StatusOK, "")
	if got := resp.Header.Get(headerReplica); got != "us-0" {
		t.Errorf("served by %q, want us-0", got)
	}
	c := us.settled()
	lawful(t, c)
	if c.Finished != 1 || c.Bounced != 0 {
		t.Errorf("counts %+v, want one finished", c)
	}
	d, _ := us.Decision("r1")
	if len(d.Attempts) != 2 || d.Attempts[0].Kind != core.ActionForward || d.Attempts[1].Kind != core.ActionDispatch {
		t.Errorf("attempts %+v, want a forward and a dispatch", d.Attempts)
	}
}

// The retries of a forwarded request are no retries of the clients of the balancer that serves it, as the request is
// none of theirs. The metric counts both.
func TestRetriesCountAtOriginOnly(t *testing.T) {
	us, eu := pair(t, "secret")
	eu.attach("eu-0", refusing(t))
	eu.attach("eu-1", engine(t, whole(plainReply)))
	us.receiveReport("lb-eu-0")
	expect(t, us.post(chatPath, plainBody), http.StatusOK, "")
	us.settled()
	eu.settled()
	retries := func() (clients int64, all float64) {
		return eu.TrafficStats().Outcomes.Retries, eu.gathered()["skyserve_retries_total{}"]
	}
	if clients, all := retries(); clients != 0 || all != 1 {
		t.Errorf("a forwarded request: %d retries of clients and %v in total, want 0 and 1", clients, all)
	}
	eu.report("eu-0")
	expect(t, eu.post(chatPath, plainBody), http.StatusOK, "")
	eu.settled()
	if clients, all := retries(); clients != 1 || all != 2 {
		t.Errorf("a client's request: %d retries of clients and %v in total, want 1 and 2", clients, all)
	}
}

// A rejection is no attempt.
func TestRejectionIsNoRetry(t *testing.T) {
	o := roundRobin(t)
	o.Core.MaxWait = time.Millisecond
	b := start(t, o)
	b.attach("us-0", refusing(t))
	if resp := b.post(chatPath, plainBody); resp.StatusCode < http.StatusInternalServerError {
		t.Errorf("status %d", resp.StatusCode)
	}
	b.settled()
	s := b.TrafficStats()
	if got := s.Models[testModel].Outcomes; got != s.Outcomes || got.Failed != 1 || got.Retries != 0 {
		t.Errorf("got %+v for the model and %+v in total, want a failure without retries", got, s.Outcomes)
	}
}

func TestBounceOfKnownModel(t *testing.T) {
	_, eu := pair(t, "")
	resp := eu.post(chatPath, plainBody, "X-Skyserve-Hop: remote", "X-Skyserve-From: lb-us-0")
	expect(t, resp, http.StatusServiceUnavailable, core.RejectNoReplica)
	if resp.Header.Get(headerBounce) == "" {
		t.Error("a forwarded request that cannot be placed is not bounced")
	}
	c := eu.settled()
	lawful(t, c)
	if c.Bounced != 1 || c.ForwardedIn != 1 {
		t.Errorf("counts %+v, want one bounced", c)
	}
	resp = eu.post(chatPath, `{"model":"gone"}`, "X-Skyserve-Hop: remote", "X-Skyserve-From: lb-us-0")
	expect(t, resp, http.StatusServiceUnavailable, "model_not_found")
	if resp.Header.Get(headerBounce) == "" {
		t.Error("a forwarded request for a model that is unknown here is not bounced")
	}
}

func TestSpoofedHopIsIgnored(t *testing.T) {
	for name, headers := range map[string][]string{
		"no token":    {"X-Skyserve-Hop: both", "X-Skyserve-From: lb-eu-0", "X-Skyserve-Tenant: boss"},
		"wrong token": {"X-Skyserve-Hop: both", "X-Skyserve-From: lb-eu-0", "X-Skyserve-Tenant: boss", "X-Skyserve-Peer-Token: guess"},
	} {
		t.Run(name, func(t *testing.T) {
			us, eu := pair(t, "secret")
			eu.attach("eu-0", engine(t, whole(plainReply)))
			us.receiveReport("lb-eu-0")
			expect(t, us.post(chatPath, plainBody, append(headers, "X-Request-ID: r1")...), http.StatusOK, "")
			d, _ := us.Decision("r1")
			if c := us.settled(); c.ForwardedIn != 0 || c.ForwardedOut != 1 || d.From != "" || d.Hop != core.HopNone {
				t.Errorf("counts %+v, decision %+v: a client was treated as a peer", c, d)
			}
		})
	}
}

func TestPeersNeedNoKeys(t *testing.T) {
	o := roundRobin(t)
	o.Self.PeerToken, o.Keys = "secret", apiKeys("k")
	b := start(t, o)
	b.attach("us-0", engine(t, whole(plainReply)))
	hop := []string{"X-Skyserve-Hop: remote", "X-Skyserve-From: lb-eu-0"}
	expect(t, b.post(chatPath, plainBody, hop...), http.StatusUnauthorized, "invalid_api_key")
	expect(t, b.post(chatPath, plainBody, append(hop, "X-Skyserve-Peer-Token: secret")...), http.StatusOK, "")
}

// A balancer that requires keys may be behind a reverse proxy on its own machine: then every client
// connects from loopback, and none of them is a peer.
func TestLoopbackIsNoPeerWithKeys(t *testing.T) {
	o := roundRobin(t)
	o.Keys = apiKeys("k")
	b := start(t, o)
	b.attach("us-0", engine(t, whole(plainReply)))
	expect(t, b.post(chatPath, plainBody, "X-Skyserve-Hop: remote", "X-Skyserve-From: lb-eu-0"), http.StatusUnauthorized, "invalid_api_key")
	expect(t, b.post(chatPath, plainBody, "Authorization: Bearer k"), http.StatusOK, "")
}

func TestFailingPeerIsReplaced(t *testing.T) {
	for name, h := range map[string]http.HandlerFunc{
		"401": status(401), "403": status(403), "502": status(502), "cut": cut("text/event-stream", ""), "queue full": status(429),
	} {
		t.Run(name, func(t *testing.T) {
			us, eu := pair(t, "")
			eu.attach("eu-0", engine(t, speak("x")))
			us.AddPeer(service.PeerConfig{ID: "lb-asia-0", Region: "local/asia", URL: engine(t, h)}, nil)
			us.receiveReport("lb-asia-0")
			us.receiveReport("lb-eu-0")
			resp := us.post(chatPath, streamBody)
			expect(t, resp, http.StatusOK, "")
			if got := resp.Header.Get(headerReplica); got != "eu-0" {
				t.Errorf("served by %q, want eu-0", got)
			}
			lawful(t, us.settled())
		})
	}
}

func TestPeerMakesModelAvailable(t *testing.T) {
	o := testOptions(t)
	o.Self.Models = nil
	us := start(t, o)
	us.AddPeer(service.PeerConfig{ID: "lb-eu-0", Region: "local/eu", URL: "http://127.0.0.1:1"}, nil)
	if code, _ := us.get("/readyz"); code != 503 {
		t.Errorf("readyz %d before the peer's first report", code)
	}
	us.receiveReport("lb-eu-0")
	if code, _ := us.get("/readyz"); code != 200 {
		t.Errorf("readyz %d with a peer that can serve", code)
	}
	if _, body := us.get("/v1/models"); !strings.Contains(body, testModel) {
		t.Errorf("the peer's model is not listed: %s", body)
	}
	us.RemovePeer("lb-eu-0")
	if _, body := us.get("/v1/models"); strings.Contains(body, testModel) {
		t.Errorf("a removed peer's model is listed: %s", body)
	}
}

// addedTransport records whether it was used.
type addedTransport struct {
	http.RoundTripper
	used chan struct{}
}

func (a addedTransport) RoundTrip(req *http.Request) (*http.Response, error) {
	a.used <- struct{}{}
	return a.RoundTripper.RoundTrip(req)
}

func TestPeerTransport(t *testing.T) {
	us := start(t, roundRobin(t))
	used := make(chan struct{}, 1)
	url := engine(t, func(w http.ResponseWriter, req *http.Request) {
		if req.Header.Get(headerHop) != string(core.HopLocal) || req.Header.Get(headerFrom) != "lb-us-0" || req.Header.Get(headerSession) == "" {
			t.Errorf("the peer got headers %v", req.Header)
		}
		_, _ = io.WriteString(w, plainReply)
	})
	us.AddPeer(service.PeerConfig{ID: "lb-us-1", Region: "local/us", URL: url}, addedTransport{us.transport, used})
	us.receiveReport("lb-us-1")
	expect(t, us.post(chatPath, plainBody), http.StatusOK, "")
	<-used
	us.AddPeer(service.PeerConfig{ID: "bad", URL: "::"}, nil)
	if len(us.View().Peers) != 1 {
		t.Error("a peer without a usable URL was added")
	}
}
