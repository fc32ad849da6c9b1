package store

import (
	"crypto/tls"
	"io"
	"net"
	"strconv"
	"strings"
	"testing"
	"time"

	"skyserve/internal/identity"
	"skyserve/internal/testkit"
)

// party returns a party of the service chat with a certificate signed by an authority.
func party(t *testing.T, a *identity.Authority, role identity.Role) identity.Party {
	t.Helper()
	key, err := identity.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	chain, err := a.Certify(key.Public(), identity.Name{Service: "chat", Role: role, ID: "x"}, time.Now(), time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	return identity.NewParty(chain, key)
}

// A store with TLS requires no token. It only accepts parties with a certificate of the service and
// a permitted role.
func TestTLSAuthenticatesClients(t *testing.T) {
	ours, theirs := must[*identity.Authority](t)(identity.NewAuthority("chat", time.Now())), must[*identity.Authority](t)(identity.NewAuthority("chat", time.Now()))
	srv := must[*Server](t)(Serve(t.Context(), Options{
		Dir: t.TempDir(), Listen: "127.0.0.1:0", TLS: party(t, ours, identity.Controller).Server(identity.Balancer, identity.Controller),
	}))
	t.Cleanup(srv.Close)
	for name, c := range map[string]struct {
		tls   *tls.Config
		enter bool
	}{
		"a balancer":                       {party(t, ours, identity.Balancer).Client(identity.Controller), true},
		"the controller":                   {party(t, ours, identity.Controller).Client(identity.Controller), true},
		"a replica":                        {party(t, ours, identity.Replica).Client(identity.Controller), false},
		"another service's":                {party(t, theirs, identity.Balancer).Client(identity.Controller), false},
		"expects a balancer as the server": {party(t, ours, identity.Balancer).Client(identity.Balancer), false},
		"without a certificate":            {&tls.Config{InsecureSkipVerify: true}, false},
	} {
		s, err := Connect(t.Context(), srv.URL(), "", Secure(c.tls))
		if c.enter {
			if err == nil {
				_, err = s.Put(t.Context(), "key", []byte("value"))
				s.Close()
			}
			if err != nil {
				t.Errorf("%s: %v", name, err)
			}
			continue
		}
		if err == nil {
			s.Close()
			t.Errorf("%s: was accepted", name)
		}
	}
	conn := must[net.Conn](t)(net.Dial("tcp", net.JoinHostPort(srv.host, strconv.Itoa(srv.port))))
	defer conn.Close()
	if _, err := io.WriteString(conn, "CONNECT {}\r\nPING\r\n"); err != nil {
		t.Fatal(err)
	}
	if text, err := io.ReadAll(conn); strings.Contains(string(text), "PONG") {
		t.Errorf("without TLS: got %q, %v", text, err)
	}
}

// Routes require a certificate of the service and the role of a controller on both sides.
func TestTLSAuthenticatesMembers(t *testing.T) {
	t.Parallel()
	ours, theirs := must[*identity.Authority](t)(identity.NewAuthority("chat", time.Now())), must[*identity.Authority](t)(identity.NewAuthority("chat", time.Now()))
	c := newTestCluster(t, "a", "b", "c")
	start := func(node string, p identity.Party) {
		o := c.options(node)
		o.Cluster.Accept, o.Cluster.Dial = p.Server(identity.Controller), p.Client(identity.Controller)
		c.servers[node] = must[*Server](t)(Serve(t.Context(), o))
		t.Cleanup(c.servers[node].Close)
	}
	start("a", party(t, ours, identity.Controller))
	start("b", party(t, theirs, identity.Controller))
	start("c", party(t, ours, identity.Balancer))
	testkit.Eventually(t, "the members have observed the cluster", func() bool { return c.servers["a"].Cluster().Clustered })
	for node, s := range c.servers {
		if n := routes(s); n != 0 {
			t.Errorf("%s has %d routes", node, n)
		}
	}
	for _, node := range []string{"b", "c"} {
		c.servers[node].Close()
		start(node, party(t, ours, identity.Controller))
	}
	c.waitReplicated()
}

// routes counts the connections of a member to others.
func routes(s *Server) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.maintainer.ns.NumRoutes()
}
