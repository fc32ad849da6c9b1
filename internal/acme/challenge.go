package acme

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/libdns/libdns"
	"github.com/mholt/acmez/v3"

	"skyserve/internal/service"
)

// lookupTimeout is the timeout of a challenge lookup in the store: half of the timeout of an
// authority.
const lookupTimeout = 5 * time.Second

// recordTTL is the TTL of the DNS record of a dns-01 challenge: the minimum that name servers
// accept, since the next challenge has another value.
const recordTTL = time.Minute

// Handler serves http-01 challenges. It returns 404 for every other request, because clients
// must not use the service over plain HTTP.
func (m *Manager) Handler() http.Handler {
	challenges := m.issuer.HTTPChallengeHandler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "this port only serves ACME challenges; send API requests to https://"+m.opts.Name, http.StatusNotFound)
	}))
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx, done, err := m.lookup(r.Context())
		if err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		defer done()
		challenges.ServeHTTP(w, r.WithContext(ctx))
	})
}

// TLSConfig returns the TLS configuration for the handshake of a tls-alpn-01 challenge; nil for
// every other handshake.
func (m *Manager) TLSConfig(hello *tls.ClientHelloInfo) *tls.Config {
	isChallenge := len(hello.SupportedProtos) == 1 && hello.SupportedProtos[0] == acmez.ACMETLS1Protocol
	if m.opts.Challenge != service.ChallengeTLSALPN || !isChallenge || !strings.EqualFold(hello.ServerName, m.opts.Name) {
		return nil
	}
	return &tls.Config{
		MinVersion: tls.VersionTLS12, NextProtos: []string{acmez.ACMETLS1Protocol}, SessionTicketsDisabled: true,
		GetCertificate: func(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
			ctx, done, err := m.lookup(hello.Context())
			if err != nil {
				return nil, err
			}
			defer done()
			return m.solver.GetCertificateWithContext(ctx, hello)
		},
	}
}

// lookup waits until fewer than maxLookups lookups of challenges are in progress. The caller
// calls the returned function after its own lookup.
func (m *Manager) lookup(ctx context.Context) (context.Context, func(), error) {
	ctx, cancel := context.WithTimeout(ctx, lookupTimeout)
	select {
	case m.lookups <- struct{}{}:
		return ctx, func() { <-m.lookups; cancel() }, nil
	case <-ctx.Done():
		cancel()
		return nil, nil, fmt.Errorf("looking up the challenge: %d other lookups are in progress: %w", maxLookups, ctx.Err())
	}
}

// splitListen splits an address into host and port; the port is 0 if the address is invalid.
func splitListen(addr string) (host string, port int) {
	host, text, err := net.SplitHostPort(addr)
	if err != nil {
		return "", 0
	}
	port, _ = strconv.Atoi(text)
	return host, port
}

// Records writes the TXT record of a dns-01 challenge. A DNS name has one value.
type Records interface {
	// SetTXT sets the value of a DNS name, and replaces any others.
	SetTXT(ctx context.Context, name, value string, ttl time.Duration) error
	// RemoveTXT removes the record set by SetTXT. A missing record is not an error.
	RemoveTXT(ctx context.Context, name, value string, ttl time.Duration) error
}

// provider adapts Records to certmagic's DNS provider interface.
type provider struct{ records Records }

// AppendRecords implements libdns.RecordAppender.
func (p provider) AppendRecords(ctx context.Context, zone string, records []libdns.Record) ([]libdns.Record, error) {
	return records, p.each(zone, records, func(name string, r libdns.RR) error { return p.records.SetTXT(ctx, name, r.Data, r.TTL) })
}

// DeleteRecords implements libdns.RecordDeleter.
func (p provider) DeleteRecords(ctx context.Context, zone string, records []libdns.Record) ([]libdns.Record, error) {
	return records, p.each(zone, records, func(name string, r libdns.RR) error { return p.records.RemoveTXT(ctx, name, r.Data, r.TTL) })
}

func (p provider) each(zone string, records []libdns.Record, do func(name string, r libdns.RR) error) error {
	for _, r := range records {
		rr := r.RR()
		if rr.Type != "TXT" {
			return fmt.Errorf("writing the DNS record of a challenge: the type must be TXT, got %s", rr.Type)
		}
		if err := do(strings.TrimSuffix(libdns.AbsoluteName(rr.Name, zone), "."), rr); err != nil {
			return err
		}
	}
	return nil
}
