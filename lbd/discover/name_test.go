package discover

import (
	"context"
	"net"
	"net/netip"
	"reflect"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miekg/dns"

	"skyserve/internal/service"
)

// nameServer is a DNS server with records that can change; a name without records does not exist.
type nameServer struct {
	mu      sync.Mutex
	records map[string][]string // by name, in zone file notation without the name
	fails   bool                // it responds SERVFAIL
}

// newNameServer starts a server, and returns a resolver that uses it.
func newNameServer(t *testing.T) (*nameServer, *net.Resolver) {
	t.Helper()
	s := &nameServer{records: map[string][]string{}}
	conn, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	started := make(chan struct{})
	srv := &dns.Server{PacketConn: conn, Handler: s, NotifyStartedFunc: func() { close(started) }}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = srv.ActivateAndServe()
	}()
	<-started
	clients := &connections{}
	t.Cleanup(func() {
		clients.closeAll()
		_ = srv.Shutdown()
		<-done
	})
	return s, &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return clients.add((&net.Dialer{}).DialContext(ctx, "udp", conn.LocalAddr().String()))
	}}
}

// connections are the connections of a resolver. A cancelled lookup reads from its connection until a
// timeout of seconds, which would outlive the test.
type connections struct {
	mu     sync.Mutex
	open   []net.Conn
	closed bool
}

// add adds a connection that was dialled; after closeAll it closes the connection and returns an error.
func (c *connections) add(conn net.Conn, err error) (net.Conn, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case err != nil:
		return nil, err
	case c.closed:
		_ = conn.Close() // nothing was sent
		return nil, net.ErrClosed
	}
	c.open = append(c.open, conn)
	return conn, nil
}

// closeAll closes all connections; most are closed already.
func (c *connections) closeAll() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	for _, conn := range c.open {
		_ = conn.Close()
	}
}

// ServeDNS implements dns.Handler.
func (s *nameServer) ServeDNS(w dns.ResponseWriter, request *dns.Msg) {
	s.mu.Lock()
	defer s.mu.Unlock()
	reply := new(dns.Msg).SetReply(request)
	question := request.Question[0]
	records, known := s.records[strings.TrimSuffix(question.Name, ".")]
	switch {
	case s.fails:
		reply.Rcode = dns.RcodeServerFailure
	case !known:
		reply.Rcode = dns.RcodeNameError
	}
	for _, r := range records {
		if rr, err := dns.NewRR(question.Name + " 1 IN " + r); err == nil && rr.Header().Rrtype == question.Qtype && !s.fails {
			reply.Answer = append(reply.Answer, rr)
		}
	}
	_ = w.WriteMsg(reply)
}

func (s *nameServer) set(name string, records ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.records[name] = records
}

func (s *nameServer) fail(fails bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fails = fails
}

// resolved returns a source for a URL.
func resolved(t *testing.T, r Resolver, template service.ReplicaConfig) *nameSource {
	t.Helper()
	s, err := newNameSource(template, r)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// Every address of a name is a replica with a stable id and the settings of the name.
func TestNamesAreResolved(t *testing.T) {
	server, resolver := newNameServer(t)
	server.set("engines.example.com", "A 127.0.0.3", "A 127.0.0.2", "AAAA fd00::1")
	server.set("_vllm._tcp.example.com", "SRV 1 1 8001 a.example.com.", "SRV 1 1 8002 b.example.com.")
	server.set("a.example.com", "A 127.0.0.4")
	server.set("b.example.com", "A 127.0.0.4", "A 127.0.0.5")
	for _, c := range []struct {
		template service.ReplicaConfig
		want     []service.ReplicaConfig
	}{
		{service.ReplicaConfig{URL: "dns+http://engines.example.com:8000", Model: "m"}, []service.ReplicaConfig{
			{ID: "127.0.0.2:8000", URL: "http://127.0.0.2:8000", Model: "m"}, {ID: "127.0.0.3:8000", URL: "http://127.0.0.3:8000", Model: "m"}, {ID: "[fd00::1]:8000", URL: "http://[fd00::1]:8000", Model: "m"},
		}},
		{service.ReplicaConfig{ID: "paris", URL: "srv+http://_vllm._tcp.example.com/base/"}, []service.ReplicaConfig{
			{ID: "paris-127.0.0.4:8001", URL: "http://127.0.0.4:8001/base"}, {ID: "paris-127.0.0.4:8002", URL: "http://127.0.0.4:8002/base"}, {ID: "paris-127.0.0.5:8002", URL: "http://127.0.0.5:8002/base"},
		}},
		{service.ReplicaConfig{URL: "srv+https://_vllm._tcp.example.com"}, []service.ReplicaConfig{
			{ID: "a.example.com:8001", URL: "https://a.example.com:8001"}, {ID: "b.example.com:8002", URL: "https://b.example.com:8002"},
		}},
	} {
		s := resolved(t, resolver, c.template)
		got, changed, err := s.list(t.Context())
		if err != nil || !changed || !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s: %+v, %v, %v", c.template.URL, got, changed, err)
		}
		if _, changed, err := s.list(t.Context()); changed || err != nil {
			t.Errorf("%s: the same answer changed something: %v", c.template.URL, err)
		}
	}
}

// A failing resolver, and a name that does not exist any more, change nothing.
func TestFailingResolverKeepsAnswer(t *testing.T) {
	server, resolver := newNameServer(t)
	s := resolved(t, resolver, service.ReplicaConfig{URL: "dns+http://engines.example.com:8000"})
	if _, changed, err := s.list(t.Context()); err == nil || !changed {
		t.Fatalf("unknown: %v, %v", changed, err)
	}
	server.set("engines.example.com", "A 127.0.0.2")
	if got, changed, err := s.list(t.Context()); err != nil || !changed || len(got) != 1 {
		t.Fatalf("known: %v, %v, %v", got, changed, err)
	}
	server.fail(true)
	if _, changed, err := s.list(t.Context()); err == nil || !changed {
		t.Fatalf("failing: %v, %v", changed, err)
	}
	server.fail(false)
	server.set("engines.example.com", "TXT none")
	if _, changed, err := s.list(t.Context()); err == nil || !changed {
		t.Fatalf("without addresses: %v, %v", changed, err)
	}
	server.set("engines.example.com", "A 127.0.0.2")
	if got, changed, err := s.list(t.Context()); err != nil || !changed || len(got) != 1 {
		t.Fatalf("again: %v, %v, %v", got, changed, err)
	}
}

// An address is removed once it is missing in three answers: a server may return a part of the addresses.
func TestMissingAddressIsKeptForAWhile(t *testing.T) {
	server, resolver := newNameServer(t)
	s := resolved(t, resolver, service.ReplicaConfig{URL: "dns+http://e.example.com:1"})
	now := []string(nil)
	for i, c := range []struct{ records, want string }{
		{"2 3", "2 3"}, {"2", "2 3"}, {"3", "2 3"}, {"2", "2 3"}, {"2", "2 3"}, {"2", "2"}, {"2 3", "2 3"}, {"4", "2 3 4"}, {"4", "2 3 4"}, {"4", "4"},
	} {
		var records, want []string
		for _, n := range strings.Fields(c.records) {
			records = append(records, "A 127.0.0."+n)
		}
		for _, n := range strings.Fields(c.want) {
			want = append(want, "http://127.0.0."+n+":1")
		}
		server.set("e.example.com", records...)
		got, changed, err := s.list(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if changed {
			now = urls(got)
		}
		if !reflect.DeepEqual(now, want) {
			t.Errorf("answer %d: %v, want %v", i, now, want)
		}
	}
}

// deadServers are two name servers that do not respond and a third that does. The system's resolver waits 5 s
// for each.
type deadServers struct{}

func (deadServers) LookupNetIP(ctx context.Context, _, _ string) ([]netip.Addr, error) {
	return []netip.Addr{netip.MustParseAddr("127.0.0.2")}, waitForThird(ctx)
}

func (deadServers) LookupSRV(ctx context.Context, _, _, _ string) (string, []*net.SRV, error) {
	return "", []*net.SRV{{Target: "a.example.com.", Port: 1}, {Target: "b.example.com.", Port: 2}}, waitForThird(ctx)
}

func waitForThird(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(10 * time.Second):
		return nil
	}
}

// A lookup lasts until the last of three name servers has responded.
func TestDeadNameServersAreSkipped(t *testing.T) {
	for url, want := range map[string]int{"dns+http://e.example.com:1": 1, "srv+http://e.example.com": 2} {
		synctest.Test(t, func(t *testing.T) {
			got, _, err := resolved(t, deadServers{}, service.ReplicaConfig{URL: url}).list(t.Context())
			if err != nil || len(got) != want {
				t.Errorf("%s: %+v, %v", url, got, err)
			}
		})
	}
}

// A problem says which name could not be resolved, and whether there was an earlier answer.
func TestNameProblems(t *testing.T) {
	server, resolver := newNameServer(t)
	server.set("_vllm._tcp.example.com", "SRV 1 1 8001 gone.example.com.")
	for _, c := range []struct {
		url  string
		have int
		want string
	}{
		{"dns+http://gone.example.com:1", 0, "resolving dns+http://gone.example.com:1 failed: no such host; no address was found yet"},
		{"dns+http://gone.example.com:1", 1, "resolving dns+http://gone.example.com:1 failed: no such host; the last answer with 1 address stays in effect"},
		{"srv+http://_vllm._tcp.example.com", 2, "resolving srv+http://_vllm._tcp.example.com failed: gone.example.com: no such host; the last answer with 2 addresses stays in effect"},
	} {
		s := resolved(t, resolver, service.ReplicaConfig{URL: c.url})
		_, _, err := s.list(t.Context())
		if got, _ := s.problem(err, c.have); got != c.want {
			t.Errorf("%q, want %q", got, c.want)
		}
	}
	// Each lookup uses another port of this machine. The problem stays the same one.
	s := resolved(t, resolver, service.ReplicaConfig{URL: "dns+http://example.com:1"})
	refused := &net.DNSError{Name: "example.com", Err: "read udp 10.0.0.5:41512->10.0.0.2:53: read: connection refused"}
	want := "resolving dns+http://example.com:1 failed: read udp 10.0.0.2:53: read: connection refused; no address was found yet"
	if got, _ := s.problem(refused, 0); got != want {
		t.Errorf("%q, want %q", got, want)
	}
}
