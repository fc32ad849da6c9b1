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

// lookupTimeout bounds looking for a challenge in the store: an authority waits 10 s.
const lookupTimeout = 5 * time.Second

// recordTTL is how long the record of a dns-01 challenge may be kept: as short as name
// servers take it, since the next one has another value.
const recordTTL = time.Minute

// Handler answers http-01 challenges, and everything else with 404: who speaks plain HTTP to
// the service must not come to believe in it.
func (m *Manager) Handler() http.Handler {
	answer := m.issuer.HTTPChallengeHandler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "this port answers an authority's challenges; the API is at https://"+m.opts.Name, http.StatusNotFound)
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

// TLSConfig is how the handshake of a tls-alpn-01 challenge is answered; nil for every other
// handshake.
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

// lookup waits for its turn to look for a challenge in the store.
func (m *Manager) lookup(ctx context.Context) (context.Context, func(), error) {
	ctx, cancel := context.WithTimeout(ctx, lookupTimeout)
	select {
	case m.lookups <- struct{}{}:
		return ctx, func() { <-m.lookups; cancel() }, nil
	case <-ctx.Done():
		cancel()
		return nil, nil, fmt.Errorf("looking for a challenge: %d others do: %w", maxLookups, ctx.Err())
	}
}

// splitListen parts an address into host and port; 0 where it is none.
func splitListen(addr string) (host string, port int) {
	host, text, err := net.SplitHostPort(addr)
	if err != nil {
		return "", 0
	}
	port, _ = strconv.Atoi(text)
	return host, port
}

// Records writes the record that a dns-01 challenge asks for. One name has one value.
type Records interface {
	// SetTXT gives a name the one value; whatever it had before goes.
	SetTXT(ctx context.Context, name, value string, ttl time.Duration) error
	// RemoveTXT removes what SetTXT made; one that is not there is no error.
	RemoveTXT(ctx context.Context, name, value string, ttl time.Duration) error
}

// provider is Records as certmagic knows providers of DNS.
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
