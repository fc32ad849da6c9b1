package proxy

import (
	"bytes"
	"context"
	"net/http"
	"testing"
	"time"

	"skyserve/internal/service"
	"skyserve/lbd/core"
	"skyserve/lbd/record"
)

// recorded starts a balancer whose record can be read after end.
func recorded(t *testing.T, o Options) (b *balancer, end func() []record.Line) {
	t.Helper()
	var log bytes.Buffer
	o.Record = &log
	rt, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	t.Cleanup(stop)
	rt.Start(ctx)
	return serveWith(t, rt), func() []record.Line {
		stop()
		if err := rt.Close(); err != nil {
			t.Fatal(err)
		}
		_, lines := readRecord(t, &log)
		return lines
	}
}

// arrivals returns the requests of a record.
func arrivals(lines []record.Line) (all []*core.Request) {
	for _, l := range lines {
		if l.Event != nil && l.Event.Kind == core.EventArrived {
			all = append(all, l.Event.Request)
		}
	}
	return all
}

// forwardAge returns the session's age in the record's first forward.
func forwardAge(t *testing.T, lines []record.Line) time.Duration {
	t.Helper()
	for _, l := range lines {
		for _, a := range l.Actions {
			if a.Kind == core.ActionForward {
				return a.SessionAge
			}
		}
	}
	t.Fatal("nothing was forwarded")
	return 0
}

func TestSessionAgeReachesPeer(t *testing.T) {
	o := roundRobin(t)
	o.Self.PeerToken = "secret"
	us, usEnds := recorded(t, o)
	o = roundRobin(t)
	o.Self.ID, o.Self.Region, o.Self.PeerToken = "lb-eu-0", "local/eu", "secret"
	eu, euEnds := recorded(t, o)
	us.AddPeer(service.PeerConfig{ID: "lb-eu-0", Region: "local/eu", URL: eu.url}, nil)
	eu.attach("eu-0", engine(t, whole(plainReply)))
	us.Step(core.Event{Kind: core.EventPeerReport, Target: "lb-eu-0", PeerReport: &core.PeerReport{
		Models: []core.ModelLoad{{Model: testModel, Replicas: 1}}, // the peer is full
	}})
	answered := make(chan *http.Response)
	go func() { answered <- us.post(chatPath, plainBody) }()
	us.until(func() bool { return us.View().Counts.Queued == 1 })
	const age = 5 * time.Millisecond
	queued := us.Elapsed()
	us.until(func() bool { return us.Elapsed() > queued+age })
	us.receiveReport("lb-eu-0")
	expect(t, <-answered, http.StatusOK, "")
	us.settled()
	eu.settled()
	reported := forwardAge(t, usEnds())
	got := arrivals(euEnds())
	if reported < age || len(got) != 1 || got[0].SessionAge != reported.Truncate(time.Millisecond) {
		t.Errorf("the peer received %+v, want one request of a session of age %s in whole milliseconds", got, reported)
	}
	if limit := core.DefaultConfig(nil).MaxWait; len(got) == 1 && (got[0].MaxWait <= 0 || got[0].MaxWait > limit-age) {
		t.Errorf("the peer may queue it for %s, want the rest of %s after %s", got[0].MaxWait, limit, age)
	}
}

func TestSessionAgeIsTrustedFromPeersOnly(t *testing.T) {
	peer := []string{"X-Skyserve-Hop: remote", "X-Skyserve-From: lb-eu-0", "X-Skyserve-Peer-Token: secret"}
	tests := []struct {
		name    string
		headers []string
		want    time.Duration
	}{
		{"a peer", append(peer[:3:3], "X-Skyserve-Session-Age-Ms: 1500"), 1500 * time.Millisecond},
		{"a peer without the header", peer, 0},
		{"more than a day", append(peer[:3:3], "X-Skyserve-Session-Age-Ms: 9223372036854775807"), maxPeerDuration},
		{"negative", append(peer[:3:3], "X-Skyserve-Session-Age-Ms: -1500"), 0},
		{"not a number", append(peer[:3:3], "X-Skyserve-Session-Age-Ms: 15e2"), 0},
		{"too many digits", append(peer[:3:3], "X-Skyserve-Session-Age-Ms: 99999999999999999999999"), 0},
		{"a client", []string{"X-Skyserve-Session-Age-Ms: 1500"}, 0},
		{"a client with a guessed token", []string{peer[0], peer[1], "X-Skyserve-Peer-Token: guess", "X-Skyserve-Session-Age-Ms: 1500"}, 0},
	}
	o := roundRobin(t)
	o.Self.PeerToken = "secret"
	b, ends := recorded(t, o)
	b.attach("us-0", engine(t, whole(plainReply)))
	for _, c := range tests {
		expect(t, b.post(chatPath, plainBody, c.headers...), http.StatusOK, "")
	}
	b.settled()
	got := arrivals(ends())
	if len(got) != len(tests) {
		t.Fatalf("%d requests arrived, want %d", len(got), len(tests))
	}
	for i, c := range tests {
		if got[i].SessionAge != c.want {
			t.Errorf("%s: session age %s, want %s", c.name, got[i].SessionAge, c.want)
		}
	}
}

// A session age sent by a client is not forwarded either.
func TestClientSessionAgeIsNotForwarded(t *testing.T) {
	received := make(chan string, 1)
	o := roundRobin(t)
	o.Self.PeerToken = "secret"
	us := start(t, o)
	us.AddPeer(service.PeerConfig{ID: "lb-eu-0", Region: "local/eu", URL: engine(t, func(w http.ResponseWriter, req *http.Request) {
		received <- req.Header.Get(headerSessionAge)
		whole(plainReply)(w, req)
	})}, nil)
	us.receiveReport("lb-eu-0")
	const spoofed = "86399999"
	expect(t, us.post(chatPath, plainBody, headerSessionAge+": "+spoofed), http.StatusOK, "")
	if got := <-received; got == spoofed {
		t.Errorf("the peer received %q", got)
	}
}
