package dns

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/miekg/dns"

	"skyserve/internal/service"
	"skyserve/provision"
)

// Server is a name server for the public DNS name of one service. It is authoritative for its zone only,
// sends no queries to other name servers, and caches nothing. Its responses depend only on its configuration
// and the health checks of its records.
type Server struct {
	config    service.NameServerConfig
	zone      string // absolute, as all names here
	name      string
	records   []target
	distances Distances
	networks  networks
	watch     *healthWatcher
	names     map[string]recordsFunc // the names of the zone, in lower case
	rotation  atomic.Uint64          // increments per response, so that clients are spread over the records of a region
	limit     limiter
	overLimit atomic.Uint64 // the number of responses beyond the limit
	log       *slog.Logger
}

// target is a record with the port for SRV records.
type target struct {
	provision.DNSRecord
	port uint16
}

// NewServer returns a server with a configuration. transport sends the health checks; nil = the default
// transport.
func NewServer(c service.NameServerConfig, transport http.RoundTripper, log *slog.Logger) (*Server, error) {
	s := &Server{
		config: c, zone: dns.CanonicalName(c.Zone), name: dns.CanonicalName(c.Name),
		distances: Distances{Routing: provision.DNSRouting(c.Routing), RTT: c.RTT},
		watch:     newHealthWatcher(transport), log: log,
	}
	var err error
	if s.networks, err = networksOf(c.Clients); err != nil {
		return nil, fmt.Errorf("parsing the client networks: %w", err)
	}
	if !dns.IsSubDomain(s.zone, s.name) {
		return nil, fmt.Errorf("checking the DNS name %s: not in zone %s", c.Name, c.Zone)
	}
	for _, r := range c.Records {
		t, err := targetOf(r)
		if err != nil {
			return nil, err
		}
		s.records = append(s.records, t)
	}
	s.names = s.zoneNames()
	return s, nil
}

// ParseRecord returns the record of a balancer from its public URL, whose host must be an address.
func ParseRecord(r service.NameRecord) (provision.DNSRecord, error) {
	t, err := targetOf(r)
	return t.DNSRecord, err
}

// targetOf parses the public URL of a record.
func targetOf(r service.NameRecord) (target, error) {
	u, err := url.Parse(r.Public)
	if err != nil {
		return target{}, fmt.Errorf("parsing the public URL of record %s: %w", r.ID, err)
	}
	t := target{DNSRecord: provision.DNSRecord{ID: r.ID, Region: r.Region, Check: r.Check}, port: 80}
	if u.Scheme == "https" {
		t.port = 443
	}
	if u.Port() != "" {
		ap, err := netip.ParseAddrPort(u.Host)
		t.Address, t.port = ap.Addr(), ap.Port()
		if err != nil {
			return target{}, fmt.Errorf("parsing the public URL of record %s: %w", r.ID, err)
		}
		return t, nil
	}
	if t.Address, err = netip.ParseAddr(u.Hostname()); err != nil {
		return target{}, fmt.Errorf("parsing the public URL of record %s: %w", r.ID, err)
	}
	return t, nil
}

// tcpTimeout is the maximum duration of a query over TCP, which occupies a connection.
const tcpTimeout = 5 * time.Second

// Run serves DNS over UDP and TCP, and checks the records, until ctx ends. It returns an error if it cannot
// listen. It checks the records once before it responds to the first query.
func (s *Server) Run(ctx context.Context) error {
	listener, err := net.Listen("tcp", s.config.Listen)
	if err != nil {
		return fmt.Errorf("starting the name server: %w", err)
	}
	packets, err := net.ListenPacket("udp", listener.Addr().String())
	if err != nil {
		listener.Close()
		return fmt.Errorf("starting the name server: %w", err)
	}
	return s.serve(ctx, listener, packets)
}

// serve serves DNS on two sockets, which it closes.
func (s *Server) serve(ctx context.Context, listener net.Listener, packets net.PacketConn) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	s.watch.checkAll(ctx, s.checkURLs())
	s.log.Info("name server started", "name", s.config.Name, "listen", listener.Addr().String(), "records", len(s.records))
	servers := []*dns.Server{
		{Listener: listener, Handler: s, ReadTimeout: tcpTimeout, WriteTimeout: tcpTimeout},
		{PacketConn: packets, Handler: s, UDPSize: maxPacket},
	}
	var wg sync.WaitGroup
	errs := make(chan error, len(servers))
	for _, server := range servers {
		started, ended := make(chan struct{}), make(chan struct{})
		server.NotifyStartedFunc = func() { close(started) }
		wg.Go(func() {
			defer close(ended)
			errs <- server.ActivateAndServe()
			cancel()
		})
		select { // Shutdown has no effect on a server that has not started
		case <-started:
		case <-ended:
		}
	}
	s.watchRecords(ctx)
	for _, server := range servers {
		_ = server.Shutdown() // a server that failed has already returned its error
	}
	wg.Wait()
	if err := errors.Join(<-errs, <-errs); err != nil {
		return fmt.Errorf("serving DNS: %w", err)
	}
	return nil
}

// watchRecords checks the records until ctx ends, and logs changes of their health.
func (s *Server) watchRecords(ctx context.Context) {
	tick := time.NewTicker(probeEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		before := s.candidates()
		s.watch.checkAll(ctx, s.checkURLs())
		for i, c := range s.candidates() {
			if c.Healthy != before[i].Healthy {
				_, reason := s.watch.healthy(c.ID)
				s.log.Info("health of a DNS record changed", "id", c.ID, "healthy", c.Healthy, "reason", reason)
			}
		}
	}
}

// checkURLs returns the check URLs of the records, by id.
func (s *Server) checkURLs() map[string]string {
	urls := map[string]string{}
	for _, r := range s.records {
		if r.Check != "" {
			urls[r.ID] = r.Check
		}
	}
	return urls
}

// candidates returns the records with their health.
func (s *Server) candidates() []Candidate {
	all := make([]Candidate, 0, len(s.records))
	for _, r := range s.records {
		healthy, _ := s.watch.healthy(r.ID)
		all = append(all, Candidate{DNSRecord: r.DNSRecord, Healthy: healthy})
	}
	return all
}

// ServeDNS responds to one query.
func (s *Server) ServeDNS(w dns.ResponseWriter, q *dns.Msg) {
	var from netip.Addr
	udp := false
	switch a := w.RemoteAddr().(type) {
	case *net.UDPAddr:
		from, udp = a.AddrPort().Addr(), true
	case *net.TCPAddr:
		from = a.AddrPort().Addr()
	}
	response := s.Answer(q, from.Unmap())
	if udp {
		response = s.limitUDP(response, q, from.Unmap())
	}
	if response == nil {
		return
	}
	if err := w.WriteMsg(response); err != nil {
		s.log.Debug("sending a DNS response failed", "to", w.RemoteAddr().String(), "err", err)
	}
}

// limitUDP truncates or drops a response over UDP, because the source address of its query may be forged. TXT
// records are sent over TCP only. Beyond a network's limit, every second response is truncated, so that the
// client retries over TCP. The other responses are dropped: limitUDP returns nil.
func (s *Server) limitUDP(response, q *dns.Msg, to netip.Addr) *dns.Msg {
	over := !s.limit.allow(to, time.Now())
	switch {
	case over && s.overLimit.Add(1)%2 == 0:
		return nil
	case over || len(q.Question) == 1 && q.Question[0].Qtype == dns.TypeTXT && len(response.Answer) > 0:
		opt := response.IsEdns0()
		response.Answer, response.Ns, response.Extra, response.Truncated = nil, nil, nil, true
		if opt != nil {
			response.Extra = []dns.RR{opt}
		}
		return response
	}
	response.Truncate(maxUDPSize(q))
	return response
}

// maxPacket is the maximum size of a UDP packet, so that none is fragmented (DNS flag day 2020).
const maxPacket = 1232

// maxUDPSize returns the maximum size of a response over UDP.
func maxUDPSize(q *dns.Msg) int {
	size := dns.MinMsgSize
	if opt := q.IsEdns0(); opt != nil {
		size = max(size, min(int(opt.UDPSize()), maxPacket))
	}
	return size
}

// clientPrefix returns the address prefix that locates the client of a query: the client subnet that its
// resolver sends (RFC 7871), else the source address.
func clientPrefix(q *dns.Msg, from netip.Addr) (netip.Prefix, *dns.EDNS0_SUBNET) {
	prefix, _ := from.Prefix(from.BitLen()) // the zero address is in no network
	opt := q.IsEdns0()
	if opt == nil {
		return prefix, nil
	}
	for _, o := range opt.Option {
		subnet, ok := o.(*dns.EDNS0_SUBNET)
		if !ok {
			continue
		}
		addr, ok := netip.AddrFromSlice(subnet.Address)
		if !ok || subnet.SourceNetmask == 0 {
			return prefix, subnet // the client opts out of sending its subnet
		}
		addr = addr.Unmap()
		if p, err := addr.Prefix(min(int(subnet.SourceNetmask), addr.BitLen())); err == nil {
			return p, subnet
		}
		return prefix, subnet
	}
	return prefix, nil
}

// ttl returns how long a response may be cached, in seconds.
func (s *Server) ttl() uint32 { return uint32(cmp.Or(s.config.TTL, defaultTTL) / time.Second) }

// joinName returns a name below another.
func joinName(label, name string) string { return strings.ToLower(label) + "." + name }
