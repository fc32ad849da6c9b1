package dns

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miekg/dns"
	"go.uber.org/goleak"

	"skyserve/internal/service"
	calls "skyserve/provision/record"
)

// TestMain records the calls to the emulated cloud, if the environment requires it.
func TestMain(m *testing.M) {
	if err := calls.Start("go test", "test"); err != nil {
		panic(err)
	}
	goleak.VerifyTestMain(m)
}

// balancers respond to health checks: those of a failed host do not respond, draining ones return 503.
type balancers struct {
	mu    sync.Mutex
	state map[string]string // by host: "", "down", "draining"
}

func (b *balancers) set(host, state string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.state == nil {
		b.state = map[string]string{}
	}
	b.state[host] = state
}

func (b *balancers) RoundTrip(r *http.Request) (*http.Response, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	res := &http.Response{StatusCode: http.StatusOK, Status: "200 OK", Body: http.NoBody, Request: r}
	switch b.state[r.URL.Host] {
	case "down":
		return nil, errors.New("connection refused")
	case "draining":
		res.StatusCode, res.Status = http.StatusServiceUnavailable, "503 Service Unavailable"
	}
	return res, nil
}

// nameServer is the configuration for chat.example.com, with two balancers in us and one in eu.
func nameServer() service.NameServerConfig {
	return service.NameServerConfig{
		Service: "chat", Listen: "127.0.0.1:0", Name: "chat.example.com", Zone: "example.com", Routing: "latency", TTL: 30 * time.Second,
		Records: []service.NameRecord{
			{ID: "lb-us-0", Region: "local/us", Public: "http://192.0.2.1:8001", Check: "http://us0/readyz"},
			{ID: "lb-us-1", Region: "local/us", Public: "http://192.0.2.2:8002", Check: "http://us1/readyz"},
			{ID: "lb-eu-0", Region: "local/eu", Public: "http://[2001:db8::3]", Check: "http://eu0/readyz"},
		},
		Clients: []service.DNSClient{{Network: "10.1.0.0/16", Region: "local/us"}, {Network: "10.2.0.0/16", Region: "local/eu"}},
	}
}

func newServer(t *testing.T, c service.NameServerConfig, checks http.RoundTripper) *Server {
	t.Helper()
	s, err := NewServer(c, checks, slog.New(slog.NewTextHandler(io.Discard, nil)))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// question is a query for a type of a name; subnet is the EDNS client subnet, empty = none.
func question(name, kind, subnet string) *dns.Msg {
	q := new(dns.Msg).SetQuestion(name, dns.StringToType[kind])
	if subnet != "" {
		p := netip.MustParsePrefix(subnet)
		family := uint16(1)
		if p.Addr().Is6() {
			family = 2
		}
		q.SetEdns0(4096, false)
		q.IsEdns0().Option = append(q.IsEdns0().Option, &dns.EDNS0_SUBNET{
			Code: dns.EDNS0SUBNET, Family: family, SourceNetmask: uint8(p.Bits()), Address: p.Addr().AsSlice(),
		})
	}
	return q
}

// summary formats a response, sorted: its code and the records of its sections.
func summary(m *dns.Msg) []string {
	lines := []string{"= " + dns.RcodeToString[m.Rcode]}
	for mark, rrs := range map[string][]dns.RR{"": m.Answer, "ns ": m.Ns, "+ ": m.Extra} {
		for _, rr := range rrs {
			if _, opt := rr.(*dns.OPT); !opt {
				lines = append(lines, mark+strings.Join(strings.Fields(rr.String()), " "))
			}
		}
	}
	slices.Sort(lines)
	return lines
}

func TestAnswers(t *testing.T) {
	const soa = "ns example.com. 30 IN SOA ns.example.com. hostmaster.example.com. 1 3600 600 86400 30"
	checks := &balancers{}
	s := newServer(t, nameServer(), checks)
	s.watch.checkAll(t.Context(), s.checkURLs())
	for _, tt := range []struct {
		name, kind, subnet, from string
		want                     []string
	}{
		{"chat.example.com.", "A", "", "10.1.2.3", []string{"= NOERROR", "chat.example.com. 30 IN A 192.0.2.1", "chat.example.com. 30 IN A 192.0.2.2"}},
		{"chat.example.com.", "A", "10.1.0.0/24", "10.2.0.1", []string{"= NOERROR", "chat.example.com. 30 IN A 192.0.2.1", "chat.example.com. 30 IN A 192.0.2.2"}},
		{"chat.example.com.", "AAAA", "10.2.0.0/24", "10.1.0.1", []string{"= NOERROR", "chat.example.com. 30 IN AAAA 2001:db8::3"}},
		{"cHaT.eXample.com.", "AAAA", "", "10.2.0.1", []string{"= NOERROR", "cHaT.eXample.com. 30 IN AAAA 2001:db8::3"}},
		{"chat.example.com.", "A", "", "10.2.0.1", []string{"= NOERROR", "chat.example.com. 30 IN A 192.0.2.1", "chat.example.com. 30 IN A 192.0.2.2"}}, // the nearest region has none
		{"chat.example.com.", "AAAA", "", "10.1.0.1", []string{"= NOERROR", "chat.example.com. 30 IN AAAA 2001:db8::3"}},
		{"chat.example.com.", "AAAA", "0.0.0.0/0", "10.2.0.1", []string{"= NOERROR", "chat.example.com. 30 IN AAAA 2001:db8::3"}},
		{"chat.example.com.", "A", "", "192.0.2.99", []string{"= NOERROR", "chat.example.com. 30 IN A 192.0.2.1", "chat.example.com. 30 IN A 192.0.2.2"}},
		{"lb-eu-0.chat.example.com.", "AAAA", "", "10.1.0.1", []string{"= NOERROR", "lb-eu-0.chat.example.com. 30 IN AAAA 2001:db8::3"}},
		{"_http._tcp.chat.example.com.", "SRV", "", "10.2.0.1", []string{
			"+ lb-eu-0.chat.example.com. 30 IN AAAA 2001:db8::3", "= NOERROR", "_http._tcp.chat.example.com. 30 IN SRV 0 1 80 lb-eu-0.chat.example.com.",
		}},
		{"_tcp.chat.example.com.", "SRV", "", "10.2.0.1", []string{"= NOERROR", soa}},
		{"chat.example.com.", "MX", "", "10.1.0.1", []string{"= NOERROR", soa}},
		{"chat.example.com.", "ANY", "", "10.1.0.1", []string{"= NOERROR", `chat.example.com. 30 IN HINFO "RFC8482" ""`}},
		{"other.example.com.", "A", "", "10.1.0.1", []string{"= NXDOMAIN", soa}},
		{"example.com.", "NS", "", "10.1.0.1", []string{"= NOERROR", "example.com. 30 IN NS ns.example.com."}},
		{"ns.example.com.", "A", "", "10.1.0.1", []string{"= NOERROR", "ns.example.com. 30 IN A 127.0.0.1"}},
		{"example.org.", "A", "", "10.1.0.1", []string{"= REFUSED"}},
		{".", "NS", "", "10.1.0.1", []string{"= REFUSED"}},
		{"_skyserve.chat.example.com.", "TXT", "", "10.1.0.1", []string{
			"= NOERROR",
			`_skyserve.chat.example.com. 0 IN TXT "record=lb-eu-0 region=local/eu address=[2001:db8::3]:80 state=healthy"`,
			`_skyserve.chat.example.com. 0 IN TXT "record=lb-us-0 region=local/us address=192.0.2.1:8001 state=healthy"`,
			`_skyserve.chat.example.com. 0 IN TXT "record=lb-us-1 region=local/us address=192.0.2.2:8002 state=healthy"`,
			`_skyserve.chat.example.com. 0 IN TXT "skyserve service=chat routing=latency"`,
		}},
	} {
		got := summary(s.Answer(question(tt.name, tt.kind, tt.subnet), netip.MustParseAddr(tt.from)))
		if !reflect.DeepEqual(got, tt.want) {
			t.Errorf("%s %s from %s %s:\ngot  %q\nwant %q", tt.name, tt.kind, tt.from, tt.subnet, got, tt.want)
		}
	}
}

// A response to a query with a client subnet is valid for the whole subnet. Invalid queries are errors.
func TestProtocol(t *testing.T) {
	s := newServer(t, nameServer(), &balancers{})
	from := netip.MustParseAddr("10.9.9.9")
	m := s.Answer(question("chat.example.com.", "A", "10.1.3.0/24"), from)
	subnet, ok := m.IsEdns0().Option[0].(*dns.EDNS0_SUBNET)
	if !ok || subnet.SourceScope != 24 || subnet.SourceNetmask != 24 || !m.Authoritative || m.RecursionAvailable {
		t.Errorf("got %v", m)
	}
	old := question("chat.example.com.", "A", "10.1.3.0/24")
	old.IsEdns0().SetVersion(1)
	notify := new(dns.Msg).SetNotify("example.com.")
	chaos := question("chat.example.com.", "A", "")
	chaos.Question[0].Qclass = dns.ClassCHAOS
	for _, tt := range []struct {
		q    *dns.Msg
		want int
	}{{old, dns.RcodeBadVers}, {notify, dns.RcodeNotImplemented}, {chaos, dns.RcodeRefused}, {new(dns.Msg), dns.RcodeFormatError}} {
		if got := s.Answer(tt.q, from); got.Rcode != tt.want || len(got.Answer) > 0 {
			t.Errorf("%v: got %s, want %s", tt.q, dns.RcodeToString[got.Rcode], dns.RcodeToString[tt.want])
		}
	}
}

// Clients of one region are spread over its balancers.
func TestBalancersAreRotated(t *testing.T) {
	s := newServer(t, nameServer(), &balancers{})
	first := map[string]int{}
	for range 10 {
		m := s.Answer(question("chat.example.com.", "A", "10.1.0.0/24"), netip.Addr{})
		first[m.Answer[0].(*dns.A).A.String()]++
	}
	if first["192.0.2.1"] != 5 || first["192.0.2.2"] != 5 {
		t.Errorf("went first: %v", first)
	}
}

// A balancer that does not respond, or drains, is excluded after three checks and included again after three.
// A single failed check has no effect.
func TestHealthFollowsChecks(t *testing.T) {
	checks := &balancers{}
	s := newServer(t, nameServer(), checks)
	given := func() string {
		var ids []string
		for _, c := range s.chooseTargets(ClientLocation{Region: "local/us"}, 0, anyTarget) {
			ids = append(ids, c.ID)
		}
		slices.Sort(ids)
		return strings.Join(ids, " ")
	}
	for i, step := range []struct {
		host, state string
		rounds      int
		want        string
	}{
		{"us0", "down", 1, "lb-us-1"}, // it may be starting: the last check counts
		{"us0", "", 1, "lb-us-0 lb-us-1"},
		{"us0", "down", 2, "lb-us-0 lb-us-1"},
		{"us0", "down", 1, "lb-us-1"},
		{"us0", "", 2, "lb-us-1"},
		{"us0", "", 1, "lb-us-0 lb-us-1"},
		{"us1", "draining", 2, "lb-us-0 lb-us-1"},
		{"us1", "", 1, "lb-us-0 lb-us-1"},
		{"us1", "draining", 2, "lb-us-0 lb-us-1"},
		{"us1", "draining", 1, "lb-us-0"},
		{"us0", "down", 3, "lb-eu-0"},
		{"eu0", "down", 3, "lb-us-0 lb-us-1"}, // all are unhealthy: all are returned
		{"us1", "", 3, "lb-us-1"},
	} {
		checks.set(step.host, step.state)
		for range step.rounds {
			s.watch.checkAll(t.Context(), s.checkURLs())
		}
		if got := given(); got != step.want {
			t.Errorf("step %d: got %q, want %q", i, got, step.want)
		}
	}
	if _, reason := s.watch.healthy("lb-us-0"); !strings.Contains(reason, "connection refused") {
		t.Errorf("reason: %q", reason)
	}
}

// The server checks every second while it runs. Checks that a shutdown interrupts have no effect.
func TestRunChecksEverySecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		checks := &balancers{}
		s := newServer(t, nameServer(), checks)
		s.watch.checkAll(t.Context(), s.checkURLs())
		ctx, cancel := context.WithCancel(t.Context())
		go s.watchRecords(ctx)
		checks.set("eu0", "down")
		for _, want := range []bool{true, true, true, false} {
			if well, _ := s.watch.healthy("lb-eu-0"); well != want {
				t.Errorf("at %s: healthy is %t", time.Now(), well)
			}
			time.Sleep(probeEvery)
			synctest.Wait()
		}
		cancel()
		s.watch.checkAll(ctx, map[string]string{"lb-us-0": "http://us0/readyz"})
		if well, reason := s.watch.healthy("lb-us-0"); !well || reason != "" {
			t.Errorf("a check that was cut off said %t, %q", well, reason)
		}
	})
}

// running serves a configuration on sockets until the test ends, and returns its address.
func running(t *testing.T, c service.NameServerConfig, checks http.RoundTripper) string {
	t.Helper()
	listener, err := net.Listen("tcp", c.Listen)
	if err != nil {
		t.Fatal(err)
	}
	packets, err := net.ListenPacket("udp", listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() { ended <- newServer(t, c, checks).serve(ctx, listener, packets) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return listener.Addr().String()
}

// Go's resolver finds balancers and their ports, over UDP and TCP.
func TestStandardResolver(t *testing.T) {
	at := running(t, nameServer(), &balancers{})
	for _, network := range []string{"udp", "tcp"} {
		r := &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, network, at)
		}}
		addrs, err := r.LookupHost(t.Context(), "chat.example.com.")
		slices.Sort(addrs)
		if err != nil || !reflect.DeepEqual(addrs, []string{"192.0.2.1", "192.0.2.2", "2001:db8::3"}) {
			t.Errorf("%s: got %q, %v", network, addrs, err)
		}
		_, found, err := r.LookupSRV(t.Context(), "http", "tcp", "chat.example.com.")
		if err != nil || len(found) != 2 {
			t.Errorf("%s: got %v, %v", network, found, err)
		}
		var none *net.DNSError
		if _, err := r.LookupHost(t.Context(), "nobody.example.com."); !errors.As(err, &none) || !none.IsNotFound {
			t.Errorf("%s: got %v", network, err)
		}
	}
}

// A response that is too long for a packet is truncated, and requested again over TCP.
func TestLongAnswers(t *testing.T) {
	c := nameServer()
	c.Records = nil
	for i := range 120 {
		addr := netip.AddrFrom4([4]byte{192, 0, 2, byte(i + 1)}).String()
		c.Records = append(c.Records, service.NameRecord{ID: "lb-us-" + addr, Region: "local/us", Public: "http://" + addr})
	}
	at := running(t, c, &balancers{})
	for _, tt := range []struct {
		network   string
		edns      uint16
		truncated bool
		size      int
	}{{"udp", 0, true, 512}, {"udp", 4096, true, maxPacket}, {"tcp", 0, false, dns.MaxMsgSize}} {
		q := question("chat.example.com.", "A", "")
		if tt.edns > 0 {
			q.SetEdns0(tt.edns, false)
		}
		m, _, err := (&dns.Client{Net: tt.network}).ExchangeContext(t.Context(), q, at)
		m.Compress = true // unchanged
		if err != nil || m.Truncated != tt.truncated || m.Len() > tt.size || !tt.truncated && len(m.Answer) != 120 {
			t.Errorf("%s: %v, truncated %t, %d bytes, %d answers", tt.network, err, m.Truncated, m.Len(), len(m.Answer))
		}
	}
	states, err := QueryRecords(t.Context(), at, c.Name)
	if err != nil || len(states) != 120 {
		t.Errorf("requesting the records: %d, %v", len(states), err)
	}
}

// A shutdown during startup works.
func TestShutdownDuringStart(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for range 20 {
		if err := newServer(t, nameServer(), &balancers{}).Run(ctx); err != nil {
			t.Fatal(err)
		}
	}
}

func TestQueryRecords(t *testing.T) {
	checks := &balancers{}
	checks.set("eu0", "down")
	at := running(t, nameServer(), checks)
	got, err := QueryRecords(t.Context(), at, "chat.example.com")
	want := []RecordState{
		{"lb-us-0", "local/us", "192.0.2.1:8001", true, ""},
		{"lb-us-1", "local/us", "192.0.2.2:8002", true, ""},
		{"lb-eu-0", "local/eu", "[2001:db8::3]:80", false, "Get 'http://eu0/readyz': connection refused"},
	}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, %v; want %+v", got, err, want)
	}
	if _, err := QueryRecords(t.Context(), at, "code.example.com"); err == nil || !strings.Contains(err.Error(), "no records for code.example.com") {
		t.Errorf("another name: got %v", err)
	}
	if _, err := QueryRecords(t.Context(), "127.0.0.1:1", "chat.example.com"); err == nil {
		t.Error("no response")
	}
}

// A name may be its own zone.
func TestNameEqualToZone(t *testing.T) {
	c := nameServer()
	c.Zone = c.Name
	s := newServer(t, c, &balancers{})
	m := s.Answer(question("chat.example.com.", "AAAA", "10.2.0.0/24"), netip.Addr{})
	if len(m.Answer) != 1 || len(s.Answer(question("chat.example.com.", "SOA", ""), netip.Addr{}).Answer) != 1 {
		t.Errorf("got %v", m)
	}
}

func TestInvalidConfigurations(t *testing.T) {
	for _, tt := range []struct {
		change func(*service.NameServerConfig)
		says   string
	}{
		{func(c *service.NameServerConfig) { c.Zone = "example.org" }, "not in zone example.org"},
		{func(c *service.NameServerConfig) { c.Clients[0].Network = "10.1" }, "client networks"},
		{func(c *service.NameServerConfig) { c.Records[0].Public = "http://us.example.com" }, "record lb-us-0"},
		{func(c *service.NameServerConfig) { c.Records[1].Public = "http://us.example.com:8001" }, "record lb-us-1"},
		{func(c *service.NameServerConfig) { c.Records[1].Public = ":" }, "record lb-us-1"},
	} {
		c := nameServer()
		tt.change(&c)
		if _, err := NewServer(c, nil, slog.Default()); err == nil || !strings.Contains(err.Error(), tt.says) {
			t.Errorf("got %v, want %s", err, tt.says)
		}
	}
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	c := nameServer()
	c.Listen = taken.Addr().String()
	if err := newServer(t, c, &balancers{}).Run(t.Context()); err == nil || !strings.Contains(err.Error(), "starting the name server") {
		t.Errorf("got %v", err)
	}
}

// The server survives any bytes that it receives.
func FuzzQuestions(f *testing.F) {
	for _, q := range []*dns.Msg{question("chat.example.com.", "A", "10.1.0.0/16"), question("_http._tcp.chat.example.com.", "SRV", "::/0"), new(dns.Msg)} {
		packed, err := q.Pack()
		if err != nil {
			f.Fatal(err)
		}
		f.Add(packed)
	}
	s, err := NewServer(nameServer(), &balancers{}, slog.Default())
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		q := new(dns.Msg)
		if q.Unpack(data) != nil {
			return
		}
		m := s.Answer(q, netip.MustParseAddr("10.1.0.1"))
		for _, rr := range m.Answer { // with the letter case of the question
			if rr.Header().Name != q.Question[0].Name {
				t.Errorf("query for %v: got %v", q.Question, rr)
			}
		}
		nothing := len(m.Answer) == 0 && (m.Rcode == dns.RcodeSuccess || m.Rcode == dns.RcodeNameError)
		if nothing && (len(m.Ns) != 1 || m.Ns[0].Header().Rrtype != dns.TypeSOA) {
			t.Errorf("%v: nothing, and not for how long: %v", q, m)
		}
		m.Truncate(maxUDPSize(q))
		packed, err := m.Pack()
		if err != nil {
			t.Fatalf("%v: %v", q, err)
		}
		if len(m.Answer) > 0 && len(packed) > maxPacket {
			t.Errorf("%d bytes", len(packed))
		}
	})
}
