package agent

import (
	"crypto/tls"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"skyserve/internal/identity"
	"skyserve/internal/testkit"
)

// A relay connects to agents only; here to its own agent, the only one on its port.
func TestRelayConnectsOnlyToAgents(t *testing.T) {
	w := newTestService(t)
	listen := func(role identity.Role, id string) func(*Options) {
		addr := testkit.FreeAddr()
		return func(o *Options) { o.Name.Role, o.Name.ID, o.Listen = role, id, addr }
	}
	balancer := w.boot(t.TempDir(), &fakeRunner{}, listen(identity.Balancer, "lb-us-0"))
	balancer.Name = identity.Name{Service: "chat", Role: identity.Balancer, ID: "lb-us-0"}
	op := w.operator()
	through := func(relay Target) *Client {
		o := w.operator()
		o.Dial = op.DialThrough(relay)
		return o
	}
	if _, err := through(balancer.Target).Status(t.Context(), balancer.Target); !errors.Is(err, identity.ErrUntrusted) {
		t.Errorf("before the enrolment: got %v, want %v", err, identity.ErrUntrusted)
	}
	if _, err := op.Ensure(t.Context(), balancer.Target, Deployment{Revision: "1"}); err != nil {
		t.Fatal(err)
	}
	replica := w.boot(t.TempDir(), &fakeRunner{}, listen(identity.Replica, "us-0"))
	if _, err := op.Ensure(t.Context(), replica.Target, Deployment{Revision: "1"}); err != nil {
		t.Fatal(err)
	}
	s, err := through(balancer.Target).Status(t.Context(), balancer.Target)
	if err != nil || s.Name != balancer.Name.String() || s.Revision != "1" {
		t.Errorf("through the relay: got %+v, %v", s, err)
	}

	_, port, _ := net.SplitHostPort(balancer.Address)
	for name, tt := range map[string]struct {
		by, to Target
		status int
	}{
		"another port than agents'": {balancer.Target, Target{balancer.Name, testkit.FreeAddr(), nil}, http.StatusForbidden},
		"unreachable host":          {balancer.Target, Target{balancer.Name, net.JoinHostPort("127.0.0.1.invalid", port), nil}, http.StatusBadGateway},
		"a replica's machine":       {replica.Target, replica.Target, http.StatusForbidden},
	} {
		var refusal *StatusError
		if _, err := through(tt.by).Status(t.Context(), tt.to); !errors.As(err, &refusal) || refusal.Status != tt.status {
			t.Errorf("%s: got %v, want status %d", name, err, tt.status)
		}
	}
	otherBalancer := &Client{Party: w.party(identity.Balancer, "lb-us-1"), Dial: op.Dial}
	if _, err := otherBalancer.DialThrough(balancer.Target)(t.Context(), balancer.Address, ""); err == nil {
		t.Error("a balancer was relayed; only operators and controllers may be")
	}
	if _, err := op.DialThrough(balancer.Target)(t.Context(), balancer.Address, strings.Repeat("b", 52)); !errors.Is(err, identity.ErrPin) {
		t.Errorf("to the key of another machine: got %v, want %v", err, identity.ErrPin)
	}
}

// A relay connects to machines of its service, and to an unenrolled one by its key. No other
// server receives a byte from the operator.
func TestRelayVerifiesTarget(t *testing.T) {
	w, other := newTestService(t), newTestService(t)
	balancer := w.boot(t.TempDir(), &fakeRunner{}, func(o *Options) { o.Name.Role, o.Name.ID = identity.Balancer, "lb-us-0" })
	balancer.Name = identity.Name{Service: "chat", Role: identity.Balancer, ID: "lb-us-0"}
	if _, err := w.operator().Ensure(t.Context(), balancer.Target, Deployment{Revision: "1"}); err != nil {
		t.Fatal(err)
	}
	enrolled := func(w *testService) *testMachine {
		m := w.boot(t.TempDir(), &fakeRunner{})
		if _, err := w.operator().Ensure(t.Context(), m.Target, Deployment{Revision: "1"}); err != nil {
			t.Fatal(err)
		}
		return m
	}
	listen := func(config *tls.Config) string {
		ln, err := tls.Listen("tcp", "127.0.0.1:0", config)
		if err != nil {
			t.Fatal(err)
		}
		server := &http.Server{ErrorLog: slog.NewLogLogger(slog.DiscardHandler, 0)}
		t.Cleanup(func() { server.Close() })
		go server.Serve(ln)
		return ln.Addr().String()
	}
	operator := w.party(identity.Operator, "bob")
	plain := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(plain.Close)
	ours, theirs, newcomer := enrolled(w), enrolled(other), w.boot(t.TempDir(), &fakeRunner{})
	for name, tt := range map[string]struct {
		addr, key string
		status    int // 0 = relayed
	}{
		"a machine of the service":       {ours.Address, "", 0},
		"unenrolled, by its key":         {newcomer.Address, newcomer.agent.Fingerprint(), 0},
		"unenrolled":                     {newcomer.Address, "", http.StatusMisdirectedRequest},
		"unenrolled, by another key":     {newcomer.Address, ours.agent.Fingerprint(), http.StatusMisdirectedRequest},
		"a machine of another service":   {theirs.Address, "", http.StatusMisdirectedRequest},
		"an operator":                    {listen(operator.Server(identity.Balancer)), "", http.StatusMisdirectedRequest},
		"a server without TLS":           {plain.Listener.Addr().String(), "", http.StatusBadGateway},
		"a server without TLS, by a key": {plain.Listener.Addr().String(), ours.agent.Fingerprint(), http.StatusBadGateway},
		"closed port":                    {testkit.FreeAddr(), "", http.StatusBadGateway},
	} {
		t.Run(name, func(t *testing.T) {
			conn, status, err := balancer.agent.dialVerified(t.Context(), tt.addr, tt.key)
			if (err == nil) != (tt.status == 0) || err != nil && status != tt.status {
				t.Errorf("got status %d (%v), want %d", status, err, tt.status)
			}
			if err == nil {
				conn.Close()
			}
		})
	}
}
