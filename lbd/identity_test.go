package lbd

import (
	"crypto/tls"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"skyserve/internal/identity"
	"skyserve/internal/service"
	"skyserve/internal/telemetry"
	"skyserve/internal/testkit"
)

// family is a service whose members have certificates.
type family struct {
	*identity.Authority
	t   *testing.T
	dir string
}

func newFamily(t *testing.T) family {
	t.Helper()
	a, err := identity.NewAuthority("chat", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	return family{a, t, t.TempDir()}
}

// files creates the files of an identity with a certificate of the given lifetime.
func (f family) files(role identity.Role, id string, life time.Duration) *service.Identity {
	f.t.Helper()
	key, err := identity.NewKey()
	if err != nil {
		f.t.Fatal(err)
	}
	made := time.Now()
	if life < 0 {
		made = made.Add(2 * life)
		life = -life
	}
	chain, err := f.Certify(key.Public(), identity.Name{Service: "chat", Role: role, ID: id}, made, life)
	if err != nil {
		f.t.Fatal(err)
	}
	secret, err := identity.EncodeKey(key)
	if err != nil {
		f.t.Fatal(err)
	}
	at := func(suffix string) string { return filepath.Join(f.dir, string(role)+"-"+id+suffix) }
	files := &service.Identity{Cert: at(".crt"), Key: at(".key"), CA: at(".ca")}
	for path, text := range map[string][]byte{files.Cert: identity.EncodeChain(chain), files.Key: secret, files.CA: identity.EncodeChain(chain[len(chain)-1:])} {
		if err := identity.WriteFile(path, text); err != nil {
			f.t.Fatal(err)
		}
	}
	return files
}

// party returns the party with these files.
func (f family) party(role identity.Role, id string, life time.Duration) identity.Party {
	f.t.Helper()
	files := f.files(role, id, life)
	p, err := identity.Load(files.Cert, files.Key, files.CA)
	if err != nil {
		f.t.Fatal(err)
	}
	return p
}

// replica serves an engine over mTLS, only for balancers.
func (f family) replica(e *engine, id string) service.ReplicaConfig {
	f.t.Helper()
	s := httptest.NewUnstartedServer(e.Config.Handler)
	s.Listener = tls.NewListener(s.Listener, f.party(identity.Replica, id, time.Hour).Server(identity.Balancer))
	s.Config.ErrorLog = log.New(io.Discard, "", 0) // it logs every rejected client
	s.Start()
	f.t.Cleanup(s.Close)
	return service.ReplicaConfig{ID: id, URL: "https" + strings.TrimPrefix(s.URL, "http"), Model: e.model, MTLS: true}
}

// administer returns a client of a balancer's admin API for this identity.
func (f family) administer(n *node, p identity.Party) *telemetry.Client {
	hc := telemetry.SecureClient(p.Client(identity.Balancer))
	f.t.Cleanup(hc.CloseIdleConnections)
	return telemetry.NewClient(n.adminURL, hc)
}

// In a service whose members authenticate only by certificates, replicas accept balancers,
// balancers forward to each other, and the admin API accepts operators and the controller.
func TestServiceOverMTLS(t *testing.T) {
	f := newFamily(t)
	e := newEngine(t, "m", "")
	us := start(t, service.BalancerConfig{
		ID: "lb-us-0", Region: "aws/us-east-1", PeerToken: "p", Identity: f.files(identity.Balancer, "lb-us-0", time.Hour),
		Replicas: []service.ReplicaConfig{f.replica(e, "us-0")},
	}, Options{})
	eu := start(t, service.BalancerConfig{
		ID: "lb-eu-0", Region: "gcp/europe-west4", PeerToken: "p", Identity: f.files(identity.Balancer, "lb-eu-0", time.Hour),
		Peers: []service.PeerConfig{{ID: "lb-us-0", Region: "aws/us-east-1", URL: us.adminURL}},
	}, Options{})
	hc := client(t)
	testkit.Eventually(t, "the replica answers", func() bool { return status(t, hc, us.public+"/readyz") == http.StatusOK })
	testkit.Eventually(t, "the peer answers", func() bool { return status(t, hc, eu.public+"/readyz") == http.StatusOK })
	for _, n := range []*node{us, eu} {
		if a := ask(t, hc, n.public, "m"); a.status != http.StatusOK || a.header.Get("X-Skyserve-Replica") != "us-0" {
			t.Errorf("%d %s by %q", a.status, a.body, a.header.Get("X-Skyserve-Replica"))
		}
	}
	for _, who := range []identity.Role{identity.Operator, identity.Controller} {
		s, err := f.administer(us, f.party(who, "x", time.Hour)).Snapshot(t.Context())
		if err != nil || s.Service != "chat" {
			t.Errorf("the admin API for %s: %v", who, err)
		}
	}
	for name, p := range map[string]identity.Party{
		"a replica":           f.party(identity.Replica, "us-9", time.Hour),
		"another service":     newFamily(t).party(identity.Operator, "eve", time.Hour),
		"an expired operator": f.party(identity.Operator, "late", -time.Hour),
	} {
		p.Root = f.Root() // so that the balancer rejects the connection
		if _, err := f.administer(us, p).Snapshot(t.Context()); err == nil || !strings.Contains(err.Error(), "tls") {
			t.Errorf("the admin API for %s: %v", name, err)
		}
	}
	// A compromised balancer cannot act as an operator.
	if _, err := f.administer(us, f.party(identity.Balancer, "lb-eu-0", time.Hour)).Snapshot(t.Context()); err == nil {
		t.Error("the admin API for a balancer: no error")
	}
	// No client is admitted without a certificate, or without TLS.
	bare := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}, Timeout: testkit.Timeout}
	for _, target := range []string{us.adminURL, "http" + strings.TrimPrefix(us.adminURL, "https")} {
		if resp, err := bare.Get(target + "/v1/snapshot"); err == nil {
			if resp.Body.Close(); resp.StatusCode == http.StatusOK {
				t.Errorf("%s responds to everybody", target)
			}
		}
	}
}

// The process at a replica's address must be a replica of the service.
func TestImpostorGetsNoPrompt(t *testing.T) {
	t.Parallel()
	f := newFamily(t)
	e := newEngine(t, "m", "")
	posing := f.replica(e, "us-0")
	other := newFamily(t).replica(e, "us-1")
	n := start(t, service.BalancerConfig{
		ID: "lb-us-0", Region: "aws/us-east-1", Identity: f.files(identity.Balancer, "lb-us-0", time.Hour), Replicas: []service.ReplicaConfig{other, posing},
	}, Options{})
	operator := f.administer(n, f.party(identity.Operator, "ann", time.Hour))
	testkit.Eventually(t, "the service's own replica serves, and the other one is rejected", func() bool {
		workers, err := operator.Workers(t.Context())
		return err == nil && len(workers) == 2 && workers[0].State == service.StateReady &&
			workers[1].State != service.StateReady && strings.Contains(workers[1].Reason, "not trusted by this service")
	})
	for _, added := range []service.ReplicaConfig{{ID: "x", URL: "http://127.0.0.1:1", Model: "m", MTLS: true}} {
		if _, err := operator.AddWorker(t.Context(), added); err == nil {
			t.Errorf("%+v was attached", added)
		}
	}
}

// A certificate that was renewed on disk is presented to new connections.
func TestRenewedIdentityIsReloaded(t *testing.T) {
	f := newFamily(t)
	files := f.files(identity.Balancer, "lb-us-0", time.Hour)
	m, err := newServiceIdentity(files)
	if err != nil {
		t.Fatal(err)
	}
	first := m.cert.expires()
	renewed := f.files(identity.Balancer, "lb-us-0", 2*time.Hour)
	at := time.Now().Add(time.Minute)
	for _, file := range []string{renewed.Cert, renewed.Key} {
		if err := os.Chtimes(file, at, at); err != nil { // file systems may not distinguish two writes at the same moment
			t.Fatal(err)
		}
	}
	if changed, err := m.cert.reloadIfChanged(); err != nil || !changed || !m.cert.expires().After(first) {
		t.Errorf("changed %v (%v): ends %s, ended %s", changed, err, m.cert.expires(), first)
	}
}

func TestIdentitiesAreChecked(t *testing.T) {
	f := newFamily(t)
	good := f.files(identity.Balancer, "lb-us-0", time.Hour)
	base := service.BalancerConfig{ID: "lb-us-0", Region: "aws/us-east-1", Listen: "127.0.0.1:0", Admin: "0.0.0.0:0", Identity: good}
	if err := CheckConfig(base, Options{}); err != nil {
		t.Errorf("an admin listener with an identity is open to other machines: %v", err)
	}
	local := base
	local.Peers = []service.PeerConfig{{ID: "here", URL: "https://127.0.0.1:8001"}}
	if err := CheckConfig(local, Options{}); err != nil {
		t.Errorf("a peer on the same machine requires no token: %v", err)
	}
	tests := []struct {
		name, want string
		change     func(*service.BalancerConfig)
	}{
		{"incomplete", "identity: requires cert, key and ca", func(c *service.BalancerConfig) { c.Identity = &service.Identity{Cert: "c"} }},
		{"peer over http", `peers[0].url: must be https://HOST:PORT, got "http://10.0.0.1:8000"`, func(c *service.BalancerConfig) {
			c.PeerToken, c.Peers = "p", []service.PeerConfig{{ID: "p", URL: "http://10.0.0.1:8000"}}
		}},
		{"peer on another machine without token", "peer_token: is required: without SKYSERVE_PEER_TOKEN a balancer accepts only peers on its own machine", func(c *service.BalancerConfig) {
			c.Peers = []service.PeerConfig{{ID: "here", URL: "https://127.0.0.1:8001"}, {ID: "p", URL: "https://10.0.0.1:8001"}}
		}},
		{"keys without token", "peer_token: is required: SKYSERVE_PEER_TOKEN distinguishes peers from clients, which must present keys", func(c *service.BalancerConfig) {
			c.Balancer.Auth = &service.Auth{KeysFrom: "env:KEYS"}
			c.Peers = []service.PeerConfig{{ID: "here", URL: "https://127.0.0.1:8001"}}
		}},
		{"replica over http", `replicas[0].mtls: requires a URL that starts with https://, got "http://10.0.0.1:8000"`, func(c *service.BalancerConfig) {
			c.Replicas = []service.ReplicaConfig{{ID: "a", URL: "http://10.0.0.1:8000", MTLS: true}}
		}},
		{"replica mTLS without identity", "replicas[0].mtls: requires an identity of the balancer", func(c *service.BalancerConfig) {
			c.Identity, c.Admin = nil, "127.0.0.1:0"
			c.Replicas = []service.ReplicaConfig{{ID: "a", URL: "https://10.0.0.1:8000", MTLS: true}}
		}},
		{"store mTLS without TLS", `store_url: store_mtls requires a URL that starts with tls://, got "nats://***@10.0.0.1:8400"`, func(c *service.BalancerConfig) {
			c.StoreURL, c.StoreMTLS = "nats://secret@10.0.0.1:8400", true
		}},
		{"store with an invalid URL", `store_url: must be tls://HOST:PORT, several separated by commas, got "tls://10.0.0.1 :8400"`, func(c *service.BalancerConfig) {
			c.StoreURL, c.StoreMTLS = "tls://10.0.0.1 :8400", true
		}},
		{"store mTLS without identity", "store_mtls: requires an identity of the balancer", func(c *service.BalancerConfig) {
			c.Identity, c.Admin = nil, "127.0.0.1:0"
			c.StoreURL, c.StoreMTLS = "tls://10.0.0.1:8400", true
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c := base
			tt.change(&c)
			if err := CheckConfig(c, Options{}); err == nil || err.Error() != tt.want {
				t.Errorf("%v, want %s", err, tt.want)
			}
		})
	}
	missing := *good
	missing.CA = filepath.Join(f.dir, "none")
	if _, err := newServiceIdentity(&missing); err == nil || !strings.HasPrefix(err.Error(), "identity.ca: ") {
		t.Errorf("without the authority's file: %v", err)
	}
}
