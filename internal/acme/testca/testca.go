// Package testca is an authority that speaks ACME, in this process, for tests: pebble, the
// one that the authors of Let's Encrypt test clients with, which really connects to who
// asks. Names resolve by its own name server, so that nothing leaves this machine.
package testca

import (
	"encoding/pem"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/letsencrypt/pebble/v2/ca"
	"github.com/letsencrypt/pebble/v2/db"
	"github.com/letsencrypt/pebble/v2/va"
	"github.com/letsencrypt/pebble/v2/wfe"
)

// Options say how the authority behaves.
type Options struct {
	// HTTPPort and TLSPort are where it connects to for http-01 and tls-alpn-01.
	HTTPPort, TLSPort int
	// Resolver is the DNS server that it asks, host:port.
	Resolver string
	// Accounts are the keys, base64url, of accounts that exist, by their ids; with some,
	// nobody else gets certificates.
	Accounts map[string]string
}

// CA is an authority.
type CA struct {
	// URL is that of its directory.
	URL string
	// Root is the certificate of its server, PEM.
	Root []byte

	mu     sync.Mutex
	orders int
	refuse bool
}

// Start runs an authority until the test ends.
func Start(t testing.TB, o Options) *CA {
	t.Helper()
	for name, value := range map[string]string{"PEBBLE_VA_NOSLEEP": "1", "PEBBLE_WFE_NONCEREJECT": "0", "PEBBLE_AUTHZREUSE": "0"} {
		if err := os.Setenv(name, value); err != nil { //nolint:usetesting // tests that run at once share them
			t.Fatal(err)
		}
	}
	quiet := log.New(io.Discard, "", 0)
	store := db.NewMemoryStore()
	for id, key := range o.Accounts {
		if err := store.AddExternalAccountKeyByID(id, key); err != nil {
			t.Fatal(err)
		}
	}
	profiles := map[string]ca.Profile{"default": {Description: "the only one"}}
	issuing := ca.New(quiet, store, "", "ecdsa", 0, 1, profiles)
	validating := va.New(quiet, o.HTTPPort, o.TLSPort, true, o.Resolver, store)
	front := wfe.New(quiet, store, validating, issuing, []string{"ca.example.com"}, true, len(o.Accounts) > 0, 0, 0)
	c := &CA{}
	server := httptest.NewTLSServer(c.count(front.Handler()))
	t.Cleanup(server.Close)
	c.URL = server.URL + wfe.DirectoryPath
	c.Root = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	return c
}

// count notes new orders, and turns them down while Refuse says so.
func (c *CA) count(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost && strings.HasPrefix(r.URL.Path, "/order-plz") {
			c.mu.Lock()
			c.orders++
			refuse := c.refuse
			c.mu.Unlock()
			if refuse {
				w.Header().Set("Content-Type", "application/problem+json")
				w.WriteHeader(http.StatusTooManyRequests)
				_, _ = io.WriteString(w, `{"type":"urn:ietf:params:acme:error:rateLimited","detail":"too many certificates already issued"}`)
				return
			}
		}
		next.ServeHTTP(w, r)
	})
}

// Orders is how many certificates were asked for.
func (c *CA) Orders() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.orders
}

// Refuse has the authority answer that a rate limit is reached, or no longer.
func (c *CA) Refuse(refuse bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.refuse = refuse
}
