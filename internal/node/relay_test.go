package node

import (
	"errors"
	"net"
	"net/http"
	"testing"

	"skyserve/internal/identity"
)

// A relay leads to agents, and to nothing else; here to its own agent, the only one at
// its port.
func TestRelay(t *testing.T) {
	w := newWorld(t)
	listen := func(role identity.Role, id string) func(*Options) {
		addr := freePort(t)
		return func(o *Options) { o.Name.Role, o.Name.ID, o.Listen = role, id, addr }
	}
	balancer := w.boot(t.TempDir(), &notes{}, listen(identity.Balancer, "lb-us-0"))
	balancer.Name = identity.Name{Service: "chat", Role: identity.Balancer, ID: "lb-us-0"}
	op := w.operator()
	through := func(by Machine) *Operator {
		o := w.operator()
		o.Dial = op.Through(by)
		return o
	}
	if _, err := through(balancer.Machine).Status(t.Context(), balancer.Machine); !errors.Is(err, identity.ErrStranger) {
		t.Errorf("before it is enrolled: got %v, want %v", err, identity.ErrStranger)
	}
	if _, err := op.Ensure(t.Context(), balancer.Machine, Deployment{Revision: "1"}); err != nil {
		t.Fatal(err)
	}
	s, err := through(balancer.Machine).Status(t.Context(), balancer.Machine)
	if err != nil || s.Name != balancer.Name.String() || s.Revision != "1" {
		t.Errorf("by way of the relay: got %+v, %v", s, err)
	}

	elsewhere := balancer.Machine
	elsewhere.Address = freePort(t)
	_, port, _ := net.SplitHostPort(balancer.Address)
	nobody := balancer.Machine
	nobody.Address = net.JoinHostPort("127.0.0.1.invalid", port)
	replica := w.boot(t.TempDir(), &notes{}, listen(identity.Replica, "us-0"))
	if _, err := op.Ensure(t.Context(), replica.Machine, Deployment{Revision: "1"}); err != nil {
		t.Fatal(err)
	}
	for name, tt := range map[string]struct {
		by, to Machine
		status int
	}{
		"another port than agents'": {balancer.Machine, elsewhere, http.StatusForbidden},
		"nobody there":              {balancer.Machine, nobody, http.StatusBadGateway},
		"a replica's machine":       {replica.Machine, replica.Machine, http.StatusForbidden},
	} {
		var refusal *Refusal
		if _, err := through(tt.by).Status(t.Context(), tt.to); !errors.As(err, &refusal) || refusal.Status != tt.status {
			t.Errorf("%s: got %v, want status %d", name, err, tt.status)
		}
	}
	stranger := &Operator{Party: w.party(identity.Balancer, "lb-us-1"), Dial: op.Dial}
	if _, err := stranger.Through(balancer.Machine)(t.Context(), "tcp", balancer.Address); err == nil {
		t.Error("a balancer was let through, who is no operator")
	}
}
