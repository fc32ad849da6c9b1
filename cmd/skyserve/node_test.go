package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"skyserve/internal/agent"
	"skyserve/internal/identity"
	"skyserve/internal/service"
	"skyserve/internal/sim/engine/server"
	"skyserve/internal/telemetry"
	"skyserve/internal/testkit"
)

// testCloud is a service whose machines are agents on this machine.
type testCloud struct {
	t       *testing.T
	program string // the command skyserve
	home    identity.Home
	*agent.Client
}

func newCloud(t *testing.T) *testCloud {
	t.Helper()
	c := &testCloud{t: t, program: filepath.Join(t.TempDir(), "skyserve"), home: identity.Home{Dir: t.TempDir()}}
	self, err := os.Executable()
	if err == nil {
		err = os.Symlink(self, c.program) // named skyserve, the test binary is the command: see TestMain
	}
	if err != nil {
		t.Fatal(err)
	}
	authority, err := c.home.Create("chat", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	party, err := c.home.OperatorParty("ann", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	c.Client = &agent.Client{Party: party, Authority: authority}
	return c
}

// boot starts `skyserve node` as a machine's cloud-init does.
func (c *testCloud) boot(role identity.Role, id string) agent.Target {
	c.t.Helper()
	dir := c.t.TempDir()
	console, file := filepath.Join(dir, "console"), filepath.Join(dir, "node.json")
	m := agent.Target{Name: identity.Name{Service: "chat", Role: role, ID: id}, Address: testkit.FreeAddr()}
	text, err := json.Marshal(agent.Config{
		Service: "chat", Role: role, ID: id, Owner: c.Authority.Owner(), Listen: m.Address, Dir: filepath.Join(dir, "state"), Publish: "console:" + console, Runner: "exec",
	})
	if err == nil {
		err = os.WriteFile(file, text, 0o600)
	}
	if err != nil {
		c.t.Fatal(err)
	}
	m.Fingerprint = func(context.Context) (string, error) {
		text, err := os.ReadFile(console)
		if fingerprint, found := agent.FindConsoleLine(string(text), m.Name); found && err == nil {
			return fingerprint, nil
		}
		return "", agent.ErrNoFingerprint
	}
	var log bytes.Buffer
	cmd := exec.Command(c.program, "node", "--config", file)
	cmd.Stderr = &log
	if err := cmd.Start(); err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(sync.OnceFunc(func() {
		if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
			c.t.Error(err)
		}
		if err := cmd.Wait(); err != nil || c.t.Failed() {
			c.t.Logf("the agent of %s (%v):\n%s", id, err, log.String())
		}
	}))
	return m
}

// within waits until condition returns no error.
func within(t *testing.T, what string, ok func() error) {
	t.Helper()
	withinTime(t, 30*time.Second, what, ok)
}

// withinTime is within with another timeout.
func withinTime(t *testing.T, limit time.Duration, what string, ok func() error) {
	t.Helper()
	timeout := time.After(limit)
	for {
		start := time.Now()
		err := ok()
		if err == nil {
			return
		}
		select {
		case <-time.After(pauseAfter(time.Since(start))):
		case <-timeout:
			t.Fatalf("timeout: %s: %v", what, err)
		}
	}
}

// pauseAfter returns the pause after an attempt that took some time. An attempt may start a process, which reads the status
// of many: without a pause of several times that, waiting tests use the CPU that others need.
func pauseAfter(attempt time.Duration) time.Duration {
	return min(max(8*attempt, 20*time.Millisecond), 800*time.Millisecond)
}

// deploy enrols a machine that may still be booting, and waits until it is ready.
func (c *testCloud) deploy(m agent.Target, d agent.Deployment) {
	c.t.Helper()
	within(c.t, m.Name.ID+" is ready", func() error {
		s, err := c.Ensure(c.t.Context(), m, d)
		if err == nil && (s.Phase != agent.PhaseReady || s.Revision != d.Revision) {
			err = fmt.Errorf("%s: %s", s.Phase, s.Reason)
		}
		return err
	})
}

// balancer returns the deployment of a balancer with one replica, which it reaches by mTLS.
// It reads the cache events of the engine at events, an address on the replica's machine.
func (c *testCloud) balancer(revision, listen, admin, replica, events, policy string) agent.Deployment {
	c.t.Helper()
	text, err := json.Marshal(service.BalancerConfig{
		Service: "chat", ID: "lb-us-0", Region: "aws/us-east-1", Listen: listen, Admin: admin, Revision: revision,
		Identity: &service.Identity{Cert: agent.FileCert, Key: agent.FileKey, CA: agent.FileCA}, Balancer: service.BalancerSpec{Policy: policy},
		Replicas: []service.ReplicaConfig{{ID: "us-0", URL: "https://" + replica, Model: "m", MTLS: true, CacheEvents: events}},
	})
	if err != nil {
		c.t.Fatal(err)
	}
	return agent.Deployment{Revision: revision, Units: []agent.Unit{{
		Name: "balancer", Args: []string{c.program, "lb", "--config", "balancer/config.json"}, ImmutableHash: "1",
		Files: map[string]string{"balancer/config.json": string(text)}, ReadinessURL: "http://" + listen + "/readyz",
	}}}
}

// A balancer and a replica on separate machines boot, are enrolled and serve a request. They have only
// the configuration that they received.
func TestAgentsRunBalancerAndReplica(t *testing.T) {
	testkit.Slow(t)
	c := newCloud(t)
	us, lb := c.boot(identity.Replica, "us-0"), c.boot(identity.Balancer, "lb-us-0")
	engine, relay, public, admin := testkit.FreeAddr(), testkit.FreeAddr(), testkit.FreeAddr(), testkit.FreeAddr()
	events := addrWithReplays(t)
	c.deploy(us, agent.Deployment{Revision: "1", Proxy: &agent.Proxy{Listen: relay, Upstream: "http://" + engine, ConnectTargets: []string{events}}, Units: []agent.Unit{{
		Name: "engine", Args: []string{c.program, "engine", "--listen", engine, "--model", "m", "--speed", "50", "--cache-events", events}, ReadinessURL: "http://" + engine + "/v1/models",
	}}})
	c.deploy(lb, c.balancer("1", public, admin, relay, events, "skylb"))

	body := `{"model": "m", "max_tokens": 8, "stream": true, "messages": [{"role": "user", "content": "hello"}]}`
	resp, err := http.Post("http://"+public+"/v1/chat/completions", "application/json", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(resp.Body)
	resp.Body.Close()
	if err != nil || resp.StatusCode != http.StatusOK || resp.Header.Get("X-Skyserve-Replica") != "us-0" || !strings.HasSuffix(strings.TrimSpace(string(text)), "data: [DONE]") {
		t.Errorf("%s by %q (%v):\n%s", resp.Status, resp.Header.Get("X-Skyserve-Replica"), err, text)
	}
	c.checkAccess(admin, relay)

	// The running process reloads another policy. It reads the engine's cache events through the agent's proxy.
	c.deploy(lb, c.balancer("2", public, admin, relay, events, "least-load"))
	within(t, "the policy is reloaded", func() error {
		resp, err := secure(t, c.Party).Get("https://" + admin + "/metrics")
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		text, err := io.ReadAll(resp.Body)
		if err == nil && !strings.Contains(string(text), `skyserve_reloads_total{result="applied"} 1`) {
			err = errors.New("the balancer has not reloaded")
		}
		if err == nil && !strings.Contains(string(text), `skyserve_cache_events_connected{replica="us-0"} 1`) {
			err = errors.New("the balancer does not receive cache events")
		}
		return err
	})
}

// addrWithReplays returns a free address whose port plus 100, where a simulated engine listens for replays, is
// free too.
func addrWithReplays(t *testing.T) string {
	for {
		at := netip.MustParseAddrPort(testkit.FreeAddr())
		ln, err := net.Listen("tcp", netip.AddrPortFrom(at.Addr(), at.Port()+server.ReplayPortOffset).String())
		if err != nil {
			t.Log(err)
			continue
		}
		ln.Close()
		return at.String()
	}
}

func secure(t *testing.T, p identity.Party) *http.Client {
	hc := telemetry.SecureClient(p.Client(identity.Balancer, identity.Replica))
	t.Cleanup(hc.CloseIdleConnections)
	return hc
}

// checkAccess sends requests with certificates of all roles.
func (c *testCloud) checkAccess(admin, relay string) {
	c.t.Helper()
	strangers := newCloud(c.t)
	tests := []struct {
		name, url string
		party     identity.Party
		in        bool
	}{
		{"operator requests snapshot", "https://" + admin + "/v1/snapshot", c.Party, true},
		{"controller requests snapshot", "https://" + admin + "/v1/snapshot", c.member(identity.Controller, time.Now()), true},
		{"balancer requests heartbeat", "https://" + admin + "/skyserve/v1/heartbeat", c.member(identity.Balancer, time.Now()), true},
		{"balancer requests snapshot", "https://" + admin + "/v1/snapshot", c.member(identity.Balancer, time.Now()), false},
		{"replica requests snapshot", "https://" + admin + "/v1/snapshot", c.member(identity.Replica, time.Now()), false},
		{"expired operator requests snapshot", "https://" + admin + "/v1/snapshot", c.member(identity.Operator, time.Now().Add(-2*time.Hour)), false},
		{"unknown certificate requests snapshot", "https://" + admin + "/v1/snapshot", strangers.Party, false},
		{"balancer requests engine", "https://" + relay + "/v1/models", c.member(identity.Balancer, time.Now()), true},
		{"operator requests engine", "https://" + relay + "/v1/models", c.Party, false},
		{"replica requests engine", "https://" + relay + "/v1/models", c.member(identity.Replica, time.Now()), false},
		{"unknown certificate requests engine", "https://" + relay + "/v1/models", strangers.member(identity.Balancer, time.Now()), false},
	}
	for _, tt := range tests {
		tt.party.Root = c.Party.Root // so that the server rejects, not the client
		resp, err := secure(c.t, tt.party).Get(tt.url)
		in := err == nil && resp.StatusCode == http.StatusOK
		if err == nil {
			resp.Body.Close()
		}
		if in != tt.in {
			c.t.Errorf("%s: %v (%v)", tt.name, resp, err)
		}
	}
}

// member returns a party whose certificate is valid for an hour from a time.
func (c *testCloud) member(role identity.Role, made time.Time) identity.Party {
	c.t.Helper()
	key, err := identity.NewKey()
	if err != nil {
		c.t.Fatal(err)
	}
	chain, err := c.Authority.Certify(key.Public(), identity.Name{Service: "chat", Role: role, ID: "x"}, made, time.Hour)
	if err != nil {
		c.t.Fatal(err)
	}
	return identity.NewParty(chain, key)
}

// Commands present the operator's certificate to admin APIs with https URLs.
func TestCommandLineUsesOperatorCertificate(t *testing.T) {
	home := t.TempDir()
	t.Setenv("SKYSERVE_HOME", home)
	c := newCloud(t)
	c.home = identity.Home{Dir: filepath.Join(home, "services", "chat", dirIdentity)}
	authority, err := c.home.Create("chat", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	c.Authority = authority
	hc, err := adminHTTP("chat", "https://127.0.0.1:1")
	if err != nil {
		t.Fatal(err)
	}
	server := c.member(identity.Balancer, time.Now())
	var who identity.Name
	s := &http.Server{Addr: testkit.FreeAddr(), TLSConfig: server.Server(identity.Operator), Handler: http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		who, _ = identity.PeerName(r.TLS)
	})}
	go func() { _ = s.ListenAndServeTLS("", "") }()
	defer s.Close()
	within(t, "the balancer responds", func() error {
		resp, err := hc.Get("https://" + s.Addr)
		if err == nil {
			resp.Body.Close()
		}
		return err
	})
	if who.Role != identity.Operator || who.ID != operatorName() {
		t.Errorf("the command line is %v, want %s", who, operatorName())
	}
	if _, err := adminHTTP("other", "https://127.0.0.1:1"); err != nil {
		t.Errorf("a service unknown to this machine: %v", err)
	}
}
