package dns

import (
	"fmt"
	"net"
	"net/netip"
	"strings"

	"github.com/miekg/dns"
)

// recordsFunc returns the records of one name for a client. The caller filters them by type.
type recordsFunc func(c ClientLocation) []dns.RR

// zoneNames returns every name of the zone, with a function for its records.
func (s *Server) zoneNames() map[string]recordsFunc {
	names := map[string]recordsFunc{}
	for at := s.name; at != s.zone; _, at, _ = strings.Cut(at, ".") { // the names between the name and its zone exist without records
		names[at] = func(ClientLocation) []dns.RR { return nil }
	}
	ns := joinName("ns", s.zone)
	apex := []dns.RR{s.soa(), &dns.NS{Hdr: s.header(s.zone, dns.TypeNS), Ns: ns}}
	names[s.zone] = func(ClientLocation) []dns.RR { return apex }
	names[ns] = func(ClientLocation) []dns.RR { return s.selfAddress(ns) }
	names[s.name] = s.addressesFor
	if s.name == s.zone {
		names[s.name] = func(c ClientLocation) []dns.RR { return append(s.addressesFor(c), apex...) }
	}
	for _, r := range s.records {
		at := joinName(r.ID, s.name)
		names[at] = func(ClientLocation) []dns.RR { return s.addresses(at, []target{r}) }
	}
	names[joinName("_tcp", s.name)] = func(ClientLocation) []dns.RR { return nil }
	srv := joinName("_"+s.scheme()+"._tcp", s.name)
	names[srv] = func(c ClientLocation) []dns.RR {
		return s.srvRecords(srv, s.chooseTargets(c, s.rotation.Add(1), anyTarget))
	}
	names[joinName("_skyserve", s.name)] = func(ClientLocation) []dns.RR { return s.stateRecords() }
	return names
}

// scheme returns the URL scheme of the balancers' clients.
func (s *Server) scheme() string {
	for _, r := range s.config.Records {
		if strings.HasPrefix(r.Public, "https:") {
			return "https"
		}
	}
	return "http"
}

// Answer returns the response to a query from an address.
func (s *Server) Answer(q *dns.Msg, from netip.Addr) *dns.Msg {
	m := new(dns.Msg).SetReply(q)
	m.Authoritative = true
	client, subnet := clientPrefix(q, from)
	if opt := q.IsEdns0(); opt != nil {
		m.SetEdns0(maxPacket, opt.Do())
		if opt.Version() != 0 {
			m.Rcode = dns.RcodeBadVers
			return m
		}
		if subnet != nil { // the response is valid for the whole client subnet of the query
			echo := *subnet
			echo.SourceScope = subnet.SourceNetmask
			m.IsEdns0().Option = append(m.IsEdns0().Option, &echo)
		}
	}
	switch {
	case q.Opcode != dns.OpcodeQuery:
		m.Rcode = dns.RcodeNotImplemented
	case len(q.Question) != 1:
		m.Rcode = dns.RcodeFormatError
	case q.Question[0].Qclass != dns.ClassINET || !dns.IsSubDomain(s.zone, dns.CanonicalName(q.Question[0].Name)):
		m.Rcode, m.Authoritative = dns.RcodeRefused, false
	case q.Question[0].Qtype == dns.TypeAXFR, q.Question[0].Qtype == dns.TypeIXFR:
		m.Rcode = dns.RcodeRefused // zone transfers are not supported
	default:
		s.fill(m, q.Question[0], s.networks.locate(client))
	}
	return m
}

// fill adds the records of a name of the zone to a response.
func (s *Server) fill(m *dns.Msg, q dns.Question, c ClientLocation) {
	records, exists := s.names[dns.CanonicalName(q.Name)]
	if !exists {
		m.Rcode = dns.RcodeNameError
		m.Ns = []dns.RR{s.soa()}
		return
	}
	if q.Qtype == dns.TypeANY { // a minimal response (RFC 8482)
		m.Answer = []dns.RR{&dns.HINFO{Hdr: s.header(q.Name, dns.TypeHINFO), Cpu: "RFC8482"}}
		return
	}
	for _, rr := range records(c) {
		if rr.Header().Rrtype == q.Qtype {
			rr = dns.Copy(rr)
			rr.Header().Name = q.Name // the letter case of the question, which some resolvers randomize and compare
			m.Answer = append(m.Answer, rr)
		}
		if srv, ok := rr.(*dns.SRV); ok && q.Qtype == dns.TypeSRV {
			m.Extra = append(s.names[srv.Target](c), m.Extra...)
		}
	}
	if len(m.Answer) == 0 {
		m.Ns = []dns.RR{s.soa()}
	}
}

func (s *Server) header(name string, kind uint16) dns.RR_Header {
	return dns.RR_Header{Name: name, Rrtype: kind, Class: dns.ClassINET, Ttl: s.ttl()}
}

// soa returns the SOA record, which sets how long negative responses may be cached.
func (s *Server) soa() *dns.SOA {
	return &dns.SOA{
		Hdr: s.header(s.zone, dns.TypeSOA), Ns: joinName("ns", s.zone), Mbox: joinName("hostmaster", s.zone),
		Serial: 1, Refresh: 3600, Retry: 600, Expire: 86400, Minttl: s.ttl(),
	}
}

// selfAddress returns the server's own address; none if the server listens on all addresses.
func (s *Server) selfAddress(name string) []dns.RR {
	at, err := netip.ParseAddrPort(s.config.Listen)
	if err != nil || at.Addr().IsUnspecified() {
		return nil
	}
	return []dns.RR{s.address(name, at.Addr())}
}

// addressesFor returns the addresses for a client. For each address family it selects the best region among
// those with an address of that family. So, as with Route 53, an IPv4-only client has an address even if the
// nearest region has only IPv6 addresses.
func (s *Server) addressesFor(c ClientLocation) []dns.RR {
	turn := s.rotation.Add(1)
	ipv4 := s.chooseTargets(c, turn, func(t target) bool { return t.Address.Unmap().Is4() })
	ipv6 := s.chooseTargets(c, turn, func(t target) bool { return !t.Address.Unmap().Is4() })
	return append(s.addresses(s.name, ipv4), s.addresses(s.name, ipv6)...)
}

func anyTarget(target) bool { return true }

// chooseTargets returns the records for a client among those that kind accepts. turn rotates their order.
func (s *Server) chooseTargets(c ClientLocation, turn uint64, kind func(target) bool) []target {
	var targets []target
	var candidates []Candidate
	for i, candidate := range s.candidates() { // in the order of the records
		if kind(s.records[i]) {
			candidates = append(candidates, candidate)
		}
	}
	for _, b := range Choose(candidates, s.distances, c) {
		for _, r := range s.records {
			if r.ID == b.ID {
				targets = append(targets, r)
			}
		}
	}
	if len(targets) == 0 {
		return nil
	}
	first := int(turn % uint64(len(targets)))
	return append(targets[first:], targets[:first]...)
}

// addresses returns the addresses of records, without duplicates.
func (s *Server) addresses(name string, targets []target) []dns.RR {
	var rrs []dns.RR
	seen := map[netip.Addr]bool{}
	for _, t := range targets {
		if !seen[t.Address] {
			seen[t.Address] = true
			rrs = append(rrs, s.address(name, t.Address))
		}
	}
	return rrs
}

func (s *Server) address(name string, a netip.Addr) dns.RR {
	if a = a.Unmap(); a.Is4() {
		return &dns.A{Hdr: s.header(name, dns.TypeA), A: net.IP(a.AsSlice())}
	}
	return &dns.AAAA{Hdr: s.header(name, dns.TypeAAAA), AAAA: net.IP(a.AsSlice())}
}

// srvRecords returns the SRV records of the balancers, with their ports.
func (s *Server) srvRecords(name string, targets []target) []dns.RR {
	var rrs []dns.RR
	for _, t := range targets {
		rrs = append(rrs, &dns.SRV{Hdr: s.header(name, dns.TypeSRV), Weight: 1, Port: t.port, Target: joinName(t.ID, s.name)})
	}
	return rrs
}

// The values of state=... in the TXT records of stateRecords.
const (
	stateHealthy   = "healthy"
	stateUnhealthy = "unhealthy"
)

// stateRecords returns the state of the records as TXT records, for `skyserve status` and for people. They
// must not be cached.
func (s *Server) stateRecords() []dns.RR {
	head := s.header(joinName("_skyserve", s.name), dns.TypeTXT)
	head.Ttl = 0
	rrs := []dns.RR{&dns.TXT{Hdr: head, Txt: []string{fmt.Sprintf("%s service=%s routing=%s", notePrefix, s.config.Service, s.config.Routing)}}}
	for _, r := range s.records {
		healthy, reason := s.watch.healthy(r.ID)
		state := stateHealthy
		if !healthy {
			state = stateUnhealthy
		}
		words := []string{fmt.Sprintf("record=%s region=%s address=%s state=%s", r.ID, r.Region, netip.AddrPortFrom(r.Address, r.port), state)}
		if reason != "" {
			words = append(words, txtString(reason))
		}
		rrs = append(rrs, &dns.TXT{Hdr: head, Txt: words})
	}
	return rrs
}

// txtString converts a reason to one string of a TXT record, without characters that need escaping.
func txtString(reason string) string {
	reason = strings.Map(func(r rune) rune {
		switch {
		case r == '"':
			return '\''
		case r == '\\' || r < ' ' || r > '~':
			return '?'
		}
		return r
	}, reason)
	return reason[:min(len(reason), maxNote)]
}
