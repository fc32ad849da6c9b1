package dns

import (
	"context"
	"encoding/binary"
	"math/rand/v2"
	"net"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miekg/dns"
)

// askUDP sends one query over UDP.
func askUDP(t *testing.T, at string, q *dns.Msg) (*dns.Msg, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	m, _, err := (&dns.Client{Net: "udp", UDPSize: maxPacket}).ExchangeContext(ctx, q, at)
	return m, err
}

// A response to a forged source address is hardly longer than the query. Long responses are sent over TCP
// only, where addresses cannot be forged.
func TestUDPResponsesAreNotAmplified(t *testing.T) {
	c := nameServer()
	at := running(t, c, &balancers{})
	for _, name := range []string{"_skyserve.chat.example.com.", "_SkyServe.chat.example.com."} {
		q := question(name, "TXT", "")
		q.SetEdns0(4096, false)
		m, err := askUDP(t, at, q)
		if err != nil || !m.Truncated || len(m.Answer) > 0 || m.Len() > 2*q.Len() {
			t.Errorf("%s over UDP: %v (%v)", name, m, err)
		}
	}
	if states, err := QueryRecords(t.Context(), at, c.Name); err != nil || len(states) != 3 {
		t.Errorf("over TCP: %v (%v)", states, err)
	}
}

// Zone transfers are rejected, over TCP and UDP.
func TestZonesAreNotTransferred(t *testing.T) {
	s := newServer(t, nameServer(), &balancers{})
	for _, kind := range []string{"AXFR", "IXFR"} {
		if m := s.Answer(question("example.com.", kind, ""), netip.MustParseAddr("10.9.9.9")); m.Rcode != dns.RcodeRefused || len(m.Answer)+len(m.Ns) > 0 {
			t.Errorf("%s: got %v", kind, m)
		}
	}
}

// Queries with padding, cookies and other options of resolvers may be longer than 512 bytes.
func TestLongQuestions(t *testing.T) {
	at := running(t, nameServer(), &balancers{})
	q := question("chat.example.com.", "A", "10.1.0.0/16")
	q.IsEdns0().Option = append(q.IsEdns0().Option, &dns.EDNS0_PADDING{Padding: make([]byte, 900)})
	m, err := askUDP(t, at, q)
	if err != nil || m.Rcode != dns.RcodeSuccess || len(m.Answer) != 2 {
		t.Errorf("got %v (%v)", m, err)
	}
}

// The limiter never lets in more of a network than a reference implementation with one bucket per network, and of a
// single network exactly as many. Networks that share a bucket wait for each other, so that a later query may be let in
// instead of an earlier one.
func TestLimits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := rand.New(rand.NewPCG(1, 2))
		var l limiter
		twin, letIn := map[netip.Prefix]*bucket{}, map[netip.Prefix]int{} // letIn: more than by the twin
		for range 20_000 {
			time.Sleep(time.Duration(r.IntN(3)) * time.Millisecond)
			from := netip.AddrFrom4([4]byte{192, 0, byte(r.IntN(3)), byte(r.IntN(256))})
			if r.IntN(3) == 0 {
				var a [16]byte
				copy(a[:], "\x20\x01\x0d\xb8\x00\x01\x00")
				binary.BigEndian.PutUint64(a[8:], r.Uint64())
				from = netip.AddrFrom16(a)
			}
			network, _ := from.Prefix(24)
			if from.Is6() {
				network, _ = from.Prefix(56)
			}
			b := twin[network]
			if b == nil {
				b = &bucket{tokens: burstSize, at: time.Now()}
				twin[network] = b
			}
			if l.allow(from, time.Now()) {
				letIn[network]++
			}
			if b.take(time.Now()) {
				letIn[network]--
			}
			if letIn[network] > 0 {
				t.Fatalf("%s was let in, beyond its limit", from)
			}
		}
		l = limiter{}
		let := func(from string) (n int) {
			for range 10 * burstSize {
				if l.allow(netip.MustParseAddr(from), time.Now()) {
					n++
				}
			}
			return n
		}
		if n := let("198.51.100.7"); n != burstSize {
			t.Errorf("%d at once, want %d", n, burstSize)
		}
		time.Sleep(time.Second)
		if n := let("198.51.100.8"); n != ratePerSecond {
			t.Errorf("%d a second later, want %d", n, ratePerSecond)
		}
	})
}

// A network beyond its limit gets truncated responses, or none.
func TestFloodIsRateLimited(t *testing.T) {
	s := newServer(t, nameServer(), &balancers{})
	from := &net.UDPAddr{IP: net.IPv4(192, 0, 2, 9), Port: 5353}
	var whole, cut, none int
	for range 4 * burstSize {
		w := &recorder{from: from}
		s.ServeDNS(w, question("chat.example.com.", "A", ""))
		switch {
		case w.last == nil:
			none++
		case w.last.Truncated && len(w.last.Answer) == 0:
			cut++
		default:
			whole++
		}
	}
	if whole < burstSize || whole > 2*burstSize || cut == 0 || none == 0 {
		t.Errorf("%d answers, %d cut, %d nothing", whole, cut, none)
	}
	w := &recorder{from: &net.TCPAddr{IP: from.IP, Port: 1}}
	if s.ServeDNS(w, question("chat.example.com.", "A", "")); w.last == nil || len(w.last.Answer) == 0 {
		t.Errorf("over TCP: %v", w.last)
	}
}

// A truncated response has neither records nor the addresses of the targets: it is no longer than its query.
func TestTruncatedResponseIsShort(t *testing.T) {
	s := newServer(t, nameServer(), &balancers{})
	from := &net.UDPAddr{IP: net.IPv4(192, 0, 2, 9), Port: 5353}
	for _, edns := range []bool{false, true} {
		q := question("_http._tcp.chat.example.com.", "SRV", "")
		if edns {
			q.SetEdns0(4096, false)
		}
		truncated := 0
		for range 4 * burstSize {
			w := &recorder{from: from}
			if s.ServeDNS(w, q); w.last == nil || !w.last.Truncated {
				continue
			}
			truncated++
			if w.last.Len() > q.Len() || (w.last.IsEdns0() != nil) != edns {
				t.Fatalf("EDNS %v: %d bytes for a query of %d:\n%v", edns, w.last.Len(), q.Len(), w.last)
			}
		}
		if truncated == 0 {
			t.Errorf("EDNS %v: nothing was truncated", edns)
		}
	}
}

// recorder is a response writer that keeps the last response.
type recorder struct {
	dns.ResponseWriter
	from net.Addr
	last *dns.Msg
}

func (r *recorder) RemoteAddr() net.Addr { return r.from }

func (r *recorder) WriteMsg(m *dns.Msg) error {
	r.last = m
	return nil
}
