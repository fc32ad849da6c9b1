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

// lookupTimeout is the timeout of a challenge lookup in the store: an authority waits 10 s.
const lookupTimeout = 5 * time.Second

// recordTTL is the TTL of the record of a dns-01 challenge: as short as name servers accept,
// since the next challenge has another value.
const recordTTL = time.Minute

// Handler answers http-01 challenges, and every other request with 404, because clients must
// not use the service over plain HTTP.
func (m *Manager) Handler() http.Handler {
	answer := m.issuer.HTTPChallengeHandler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "this port only serves ACME challenges; the API is at https://"+m.opts.Name, http.StatusNotFound)
	}))
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx, done, err := m.lookup(r.Context())
		if err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		defer done()
		answer.ServeHTTP(w, r.WithContext(ctx))
	})
}

// TLSConfig returns the config that answers the handshake of a tls-alpn-01 challenge; nil for
// every other handshake.
func (m *Manager) TLSConfig(hello *tls.ClientHelloInfo) *tls.Config {
	asked := len(hello.SupportedProtos) == 1 && hello.SupportedProtos[0] == acmez.ACMETLS1Protocol
	if m.opts.Challenge != service.ChallengeTLSALPN || !asked || !strings.EqualFold(hello.ServerName, m.opts.Name) {
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
			return m.answering.GetCertificateWithContext(ctx, hello)
		},
	}
}

// lookup waits until fewer than maxLookups others look up challenges in the store.
func (m *Manager) lookup(ctx context.Context) (context.Context, func(), error) {
	ctx, cancel := context.WithTimeout(ctx, lookupTimeout)
	select {
	case m.lookups <- struct{}{}:
		return ctx, func() { <-m.lookups; cancel() }, nil
	case <-ctx.Done():
		cancel()
		return nil, nil, fmt.Errorf("looking up a challenge: %d lookups in progress: %w", maxLookups, ctx.Err())
	}
}

// splitListen splits an address into host and port; 0 if it is invalid.
func splitListen(addr string) (host string, port int) {
	host, text, err := net.SplitHostPort(addr)
	if err != nil {
		return "", 0
	}
	port, _ = strconv.Atoi(text)
	return host, port
}

// Records writes the TXT record of a dns-01 challenge. A name has one value.
type Records interface {
	// SetTXT sets the value of a name, replacing any others.
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
			return fmt.Errorf("writing the record of a challenge: want TXT, got %s", rr.Type)
		}
		if err := do(strings.TrimSuffix(libdns.AbsoluteName(rr.Name, zone), "."), rr); err != nil {
			return err
		}
	}
	return nil
}
