package testca

import (
	"net"
	"strings"
	"sync"
	"testing"

	"github.com/miekg/dns"
)

// Names is a name server for one zone, over UDP and TCP.
type Names struct {
	// Addr is where it answers.
	Addr string

	zone string
	txt  func(name string) []string
	mu   sync.Mutex
	a    map[string][]string
	next int
}

// Serve runs a name server for a zone until the test ends; txt are the values of a name,
// nil = there are none.
func Serve(t testing.TB, zone string, txt func(name string) []string) *Names {
	t.Helper()
	n := &Names{zone: dns.Fqdn(zone), txt: txt, a: map[string][]string{}}
	tcp, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	n.Addr = tcp.Addr().String()
	udp, err := net.ListenPacket("udp", n.Addr)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range []*dns.Server{{Listener: tcp, Handler: n}, {PacketConn: udp, Handler: n}} {
		started, ended := make(chan struct{}), make(chan struct{})
		s.NotifyStartedFunc = func() { close(started) }
		go func() {
			defer close(ended)
			_ = s.ActivateAndServe() // until Shutdown
		}()
		<-started
		t.Cleanup(func() {
			_ = s.Shutdown()
			<-ended
		})
	}
	return n
}

// Set gives a name its addresses; questions get each in turn, so that nobody can rely on
// being the one that is asked.
func (n *Names) Set(name string, addrs ...string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.a[dns.Fqdn(name)] = addrs
}

// ServeDNS implements dns.Handler.
func (n *Names) ServeDNS(w dns.ResponseWriter, q *dns.Msg) {
	m := new(dns.Msg)
	m.SetReply(q)
	m.Authoritative = true
	for _, one := range q.Question {
		n.answer(m, one)
	}
	_ = w.WriteMsg(m) // who asked is gone
}

func (n *Names) answer(m *dns.Msg, q dns.Question) {
	name := strings.ToLower(q.Name)
	head := func(kind uint16) dns.RR_Header {
		return dns.RR_Header{Name: q.Name, Rrtype: kind, Class: dns.ClassINET, Ttl: 1}
	}
	soa := &dns.SOA{Hdr: dns.RR_Header{Name: n.zone, Rrtype: dns.TypeSOA, Class: dns.ClassINET}, Ns: "ns." + n.zone, Mbox: "ops." + n.zone, Serial: 1, Minttl: 1}
	switch q.Qtype {
	case dns.TypeA:
		n.mu.Lock()
		defer n.mu.Unlock()
		if addrs := n.a[name]; len(addrs) > 0 {
			n.next++
			m.Answer = append(m.Answer, &dns.A{Hdr: head(dns.TypeA), A: net.ParseIP(addrs[n.next%len(addrs)])})
		}
	case dns.TypeTXT:
		if n.txt == nil {
			break
		}
		for _, value := range n.txt(strings.TrimSuffix(name, ".")) {
			m.Answer = append(m.Answer, &dns.TXT{Hdr: head(dns.TypeTXT), Txt: []string{value}})
		}
	case dns.TypeSOA:
		if name == n.zone {
			m.Answer = append(m.Answer, soa)
			return
		}
	}
	if len(m.Answer) == 0 {
		m.Ns = append(m.Ns, soa)
	}
}
