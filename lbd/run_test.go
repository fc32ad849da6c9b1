package lbd

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"skyserve/internal/service"
	"skyserve/internal/telemetry"
	"skyserve/internal/testkit"
)

func config(id string, region service.Region, replicas ...service.ReplicaConfig) service.BalancerConfig {
	return service.BalancerConfig{ID: id, Region: region, Replicas: replicas, PeerToken: "peers only"}
}

func TestForwardsWhenLocalIsFull(t *testing.T) {
	testkit.Slow(t)
	t.Parallel()
	us, eu := newEngine(t, "llama", ""), newEngine(t, "llama", "")
	us.set(func(e *engine) { e.waiting = 1 }) // its batch is full
	there := start(t, config("lb-eu-0", "local/eu", service.ReplicaConfig{ID: "eu-0", URL: eu.URL, Model: "llama"}), Options{})
	cfg := config("lb-us-0", "local/us", service.ReplicaConfig{ID: "us-0", URL: us.URL, Model: "llama"})
	// Computing the prompt here takes less time than the round trip to the peer that has cached it.
	cfg.Peers = []service.PeerConfig{{ID: "lb-eu-0", Region: "local/eu", URL: there.public, EmulateRTT: 40 * time.Millisecond}}
	here := start(t, cfg, Options{})
	hc := client(t)

	// On a busy machine the report of the full batch may be too old, so that a request is sent there.
	testkit.Eventually(t, "a request is forwarded", func() bool {
		got := ask(t, hc, here.public, "llama")
		if got.status != 200 || !strings.Contains(got.body, "hello") {
			t.Fatalf("got %+v", got)
		}
		return eu.count() > 0
	})
	us.set(func(e *engine) { e.waiting = 0 })
	before := us.count()
	testkit.Eventually(t, "the local replica is used again", func() bool {
		return ask(t, hc, here.public, "llama").status == 200 && us.count() > before
	})

	testkit.Eventually(t, "the snapshot shows both regions", func() bool {
		s := here.snapshot(t)
		return len(s.Regions) == 2 && len(s.Regions[0].Replicas) == 1 && s.Regions[0].ForwardedIn > 0 && s.Regions[1].ForwardedOut > 0
	})
	s := here.snapshot(t)
	if b := s.Regions[0].Balancers[0]; b.ID != "lb-eu-0" || b.State != "READY" || b.RTTMillis == nil || *b.RTTMillis < 40 {
		t.Errorf("peer: %+v", b)
	}
	if b := s.Regions[1].Balancers[0]; b.ID != "lb-us-0" || b.State != "READY" || b.Endpoint != here.public {
		t.Errorf("self: %+v", b)
	}

	there.stop()
	if err := there.wait(); err != nil {
		t.Error(err)
	}
	testkit.Eventually(t, "the peer counts as unreachable", func() bool {
		return here.snapshot(t).Regions[0].Balancers[0].State == "UNREACHABLE"
	})
}

func TestThreeBalancersShareTheLoad(t *testing.T) {
	var peers []service.PeerConfig
	var engines []*engine
	for _, place := range []string{"asia", "eu"} {
		e := newEngine(t, "llama", "")
		n := start(t, config("lb-"+place+"-0", service.Region("local/"+place), service.ReplicaConfig{ID: place + "-0", URL: e.URL}), Options{})
		testkit.Eventually(t, place+" is ready", func() bool { return n.worker(t, place+"-0").State == service.StateReady })
		peers = append(peers, service.PeerConfig{ID: "lb-" + place + "-0", Region: service.Region("local/" + place), URL: n.public})
		engines = append(engines, e)
	}
	// A balancer without replicas serves requests with those of others.
	cfg := config("lb-us-0", "local/us")
	cfg.Peers = peers
	here := start(t, cfg, Options{})
	hc := client(t)
	testkit.Eventually(t, "both peers have reported", func() bool {
		s := here.snapshot(t)
		return len(s.Regions) == 3 && s.Regions[0].Balancers[0].State == "READY" && s.Regions[1].Balancers[0].State == "READY"
	})
	for range 20 {
		if got := ask(t, hc, here.public, "llama"); got.status != 200 {
			t.Fatalf("got %+v", got)
		}
	}
	if n := engines[0].count() + engines[1].count(); n != 20 {
		t.Errorf("20 requests made %d at the engines", n)
	}
}

// A replica whose engine has not told its model yet is attached, and not ready.
func TestReadyzCountsUnidentifiedReplicas(t *testing.T) {
	replica := func(id string) service.ReplicaConfig {
		return service.ReplicaConfig{ID: id, URL: "http://" + testkit.FreeAddr()}
	}
	n := start(t, config("lb-us-0", "local/us", replica("us-0"), replica("us-1")), Options{})
	resp, err := client(t).Get(n.public + "/readyz")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if text, _ := io.ReadAll(resp.Body); resp.StatusCode != http.StatusServiceUnavailable || string(text) != "none of 2 replicas is ready and no peer can serve: 'skyserve top' shows the reasons\n" {
		t.Errorf("got %d %q", resp.StatusCode, text)
	}
}

func TestReplicaAppearsLater(t *testing.T) {
	addr := testkit.FreeAddr()
	var log lines
	n := start(t, config("lb-us-0", "local/us", service.ReplicaConfig{ID: "us-0", URL: "http://" + addr, Model: "llama"}), Options{Logger: log.logger()})
	hc := client(t)
	testkit.Eventually(t, "the replica is refused", func() bool {
		w := n.worker(t, "us-0")
		return w.State == service.StateStarting && w.Reason == "connection refused"
	})
	if got := status(t, hc, n.public+"/readyz"); got != http.StatusServiceUnavailable {
		t.Errorf("readyz without a replica: %d", got)
	}
	if got := status(t, hc, n.public+"/healthz"); got != http.StatusOK {
		t.Errorf("healthz: %d", got)
	}
	e := newEngine(t, "llama", addr)
	testkit.Eventually(t, "the balancer is ready", func() bool { return status(t, hc, n.public+"/readyz") == http.StatusOK })
	if got := ask(t, hc, n.public, "llama"); got.status != 200 {
		t.Errorf("got %+v", got)
	}
	e.Close()
	testkit.Eventually(t, "the replica is not ready any more", func() bool { return n.worker(t, "us-0").State == service.StateNotReady })
	if strings.Contains(log.String(), "peers only") {
		t.Error("the log shows the peer token")
	}
}

func TestWorkersAreAddedAndRemoved(t *testing.T) {
	ctx := context.Background()
	e := newEngine(t, "llama", "")
	n := start(t, config("lb-us-0", "local/us"), Options{})
	hc := client(t)
	added, err := n.admin.AddWorker(ctx, service.ReplicaConfig{ID: "eu-7", URL: e.URL, Region: "local/eu", Epoch: 5})
	if err != nil || !added {
		t.Fatalf("added %v, %v", added, err)
	}
	testkit.Eventually(t, "it reports its model", func() bool {
		w := n.worker(t, "eu-7")
		return w.State == service.StateReady && w.Model == "llama" && w.Reason == "adopted from local/eu by lb-us-0"
	})
	if got := ask(t, hc, n.public, "llama"); got.status != 200 || got.header.Get("X-Skyserve-Replica") != "eu-7" {
		t.Errorf("got %+v", got)
	}
	if _, err := n.admin.AddWorker(ctx, service.ReplicaConfig{ID: "eu-7", URL: e.URL, Epoch: 4}); !errors.Is(err, telemetry.ErrConflict) {
		t.Errorf("an older epoch: %v", err)
	}
	if added, err := n.admin.AddWorker(ctx, service.ReplicaConfig{ID: "eu-7", URL: e.URL, Region: "local/eu", Epoch: 6}); err != nil || added {
		t.Errorf("a newer epoch: %v, %v", added, err)
	}
	if w := n.worker(t, "eu-7"); w.Epoch != 6 || w.Model != "llama" || w.State != service.StateReady {
		t.Errorf("after a newer epoch: %+v", w)
	}
	if err := n.admin.RemoveWorker(ctx, "eu-7", 5); !errors.Is(err, telemetry.ErrConflict) {
		t.Errorf("removing by an older epoch: %v", err)
	}
	if err := n.admin.RemoveWorker(ctx, "eu-7", 6); err != nil {
		t.Errorf("removing: %v", err)
	}
	if err := n.admin.RemoveWorker(ctx, "eu-7", 6); !errors.Is(err, telemetry.ErrNotFound) {
		t.Errorf("removing again: %v", err)
	}
	if got := ask(t, hc, n.public, "llama"); got.status == 200 {
		t.Errorf("served without a replica: %+v", got)
	}
	if _, err := n.admin.AddWorker(ctx, service.ReplicaConfig{ID: "eu-7", URL: e.URL, Model: "llama", Epoch: 5}); !errors.Is(err, telemetry.ErrConflict) {
		t.Errorf("a delayed assignment added it again: %v", err)
	}
}

func TestReplicaMoves(t *testing.T) {
	ctx := context.Background()
	before, after := newEngine(t, "llama", ""), newEngine(t, "qwen", "")
	n := start(t, config("lb-us-0", "local/us", service.ReplicaConfig{ID: "us-0", URL: before.URL}), Options{})
	hc := client(t)
	testkit.Eventually(t, "it is ready", func() bool { return n.worker(t, "us-0").State == service.StateReady })
	if _, err := n.admin.AddWorker(ctx, service.ReplicaConfig{ID: "us-0", URL: after.URL, Epoch: 1}); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "it is ready at its new address", func() bool {
		w := n.worker(t, "us-0")
		return w.State == service.StateReady && w.Model == "qwen" && w.URL == after.URL
	})
	if got := ask(t, hc, n.public, "qwen"); got.status != 200 || after.count() != 1 || before.count() != 0 {
		t.Errorf("got %+v; before %d, after %d", got, before.count(), after.count())
	}
	if got := ask(t, hc, n.public, "llama"); got.status == 200 {
		t.Errorf("the old model is still served: %+v", got)
	}
}

// A replica drained by an operator stays drained when a program drains it too, or when the controller
// reassigns it. A replica drained by a program is used again then.
func TestDrainerOfReplica(t *testing.T) {
	ctx := context.Background()
	e := newEngine(t, "llama", "")
	us := service.ReplicaConfig{ID: "us-0", URL: e.URL, Model: "llama"}
	n := start(t, config("lb-us-0", "local/us", us), Options{})
	is := func(state service.ReplicaState, by string) {
		t.Helper()
		testkit.Eventually(t, fmt.Sprintf("it is %s by %q", state, by), func() bool {
			w := n.worker(t, us.ID)
			return w.State == state && w.DrainedBy == by
		})
	}
	drain := func(by string) {
		t.Helper()
		if err := n.admin.DrainWorker(ctx, us.ID, by); err != nil {
			t.Fatal(err)
		}
	}
	attach := func(epoch uint64) {
		t.Helper()
		us.Epoch = epoch
		if _, err := n.admin.AddWorker(ctx, us); err != nil {
			t.Fatal(err)
		}
	}
	is(service.StateReady, "")
	drain("")
	drain(telemetry.DrainedByUp)
	is(service.StateDraining, "")
	attach(1)
	is(service.StateDraining, "")
	attach(1)
	is(service.StateReady, "")
	drain(telemetry.DrainedByUp)
	is(service.StateDraining, telemetry.DrainedByUp)
	drain("")
	is(service.StateDraining, "")
	attach(1)
	drain(telemetry.DrainedByController)
	is(service.StateDraining, telemetry.DrainedByController)
	attach(2)
	is(service.StateReady, "")
}

// copiedCertificate writes a certificate for 127.0.0.1 and returns the configuration of a client that
// trusts it.
func copiedCertificate(t *testing.T) (*service.TLS, *tls.Config) {
	t.Helper()
	lender := httptest.NewUnstartedServer(nil)
	lender.StartTLS()
	defer lender.Close()
	pair := lender.TLS.Certificates[0]
	key, err := x509.MarshalPKCS8PrivateKey(pair.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	files := &service.TLS{Cert: filepath.Join(dir, "cert.pem"), Key: filepath.Join(dir, "key.pem")}
	write(t, files.Cert, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: pair.Certificate[0]})))
	write(t, files.Key, string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key})))
	trusted := x509.NewCertPool()
	trusted.AddCert(lender.Certificate())
	return files, &tls.Config{RootCAs: trusted}
}

func TestTLS(t *testing.T) {
	cfg := config("lb-us-0", "local/us")
	files, trusting := copiedCertificate(t)
	cfg.Balancer.TLS = files
	n := start(t, cfg, Options{})
	hc := client(t)
	hc.Transport.(*http.Transport).TLSClientConfig = trusting
	if got := status(t, hc, n.public+"/healthz"); !strings.HasPrefix(n.public, "https://") || got != http.StatusOK {
		t.Errorf("%s: %d", n.public, got)
	}
}

func TestDrain(t *testing.T) {
	e := newEngine(t, "llama", "")
	e.hold = make(chan struct{})
	n := start(t, config("lb-us-0", "local/us", service.ReplicaConfig{ID: "us-0", URL: e.URL, Model: "llama"}), Options{})
	hc := client(t)
	got := make(chan answer, 1)
	go func() { got <- ask(t, hc, n.public, "llama") }()
	testkit.Eventually(t, "the request is at the engine", func() bool { return e.count() == 1 })
	n.stop()
	testkit.Eventually(t, "the balancer is not ready", func() bool { return status(t, hc, n.public+"/readyz") == http.StatusServiceUnavailable })
	if late := ask(t, hc, n.public, "llama"); late.status != http.StatusServiceUnavailable {
		t.Errorf("a request after the end began: %+v", late)
	}
	close(e.hold)
	if a := <-got; a.status != 200 || !strings.Contains(a.body, "hello") {
		t.Errorf("the request in flight: %+v", a)
	}
	if err := n.wait(); err != nil {
		t.Error(err)
	}
	hc.CloseIdleConnections()
	if _, err := hc.Get(n.public + "/healthz"); err == nil {
		t.Error("it still listens")
	}
}

func TestDrainEnds(t *testing.T) {
	e := newEngine(t, "llama", "")
	e.hold = make(chan struct{})
	defer close(e.hold)
	n := start(t, config("lb-us-0", "local/us", service.ReplicaConfig{ID: "us-0", URL: e.URL, Model: "llama"}), Options{DrainTimeout: 10 * time.Millisecond})
	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		res, err := (&http.Client{Transport: transport}).Post(n.public+"/v1/chat/completions", "application/json", strings.NewReader(`{"model":"llama","messages":[{"role":"user","content":"hi"}]}`))
		if err == nil {
			res.Body.Close()
		}
	}()
	testkit.Eventually(t, "the request is at the engine", func() bool { return e.count() == 1 })
	n.stop()
	if err := n.wait(); err != nil {
		t.Error(err)
	}
	<-ended
}

func TestKeysAndService(t *testing.T) {
	dir := t.TempDir()
	keys, spec := filepath.Join(dir, "keys"), filepath.Join(dir, "service.yaml")
	write(t, keys, "# ours\nkey-one\n\n  key-two  \n")
	write(t, spec, "name: chat\n")
	e := newEngine(t, "llama", "")
	cfg := config("lb-us-0", "local/us", service.ReplicaConfig{ID: "us-0", URL: e.URL, Model: "llama"})
	cfg.Balancer.Auth = &service.Auth{KeysFrom: "file:" + keys}
	cfg.Models = []service.BalancerModel{{Name: "llama", Aliases: []string{"chat-small"}}}
	cfg.SpecFile, cfg.Record = spec, filepath.Join(dir, "record.jsonl")
	n := start(t, cfg, Options{})
	hc := client(t)
	if got := ask(t, hc, n.public, "llama"); got.status != http.StatusUnauthorized {
		t.Errorf("without a key: %+v", got)
	}
	testkit.Eventually(t, "a key is accepted", func() bool {
		return ask(t, hc, n.public, "chat-small", "Authorization", "Bearer key-two").status == 200
	})
	if text, err := n.admin.Service(context.Background()); err != nil || string(text) != "name: chat\n" {
		t.Errorf("service.yaml: %q, %v", text, err)
	}
	n.stop()
	if err := n.wait(); err != nil {
		t.Error(err)
	}
	record, err := os.ReadFile(cfg.Record)
	if err != nil || !strings.Contains(string(record), `"kind":"arrived"`) || strings.Contains(string(record), "key-two") {
		t.Errorf("record of %d bytes, %v", len(record), err)
	}
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestPeersRequireToken(t *testing.T) {
	n := start(t, config("lb-us-0", "local/us"), Options{})
	hc := client(t)
	for _, path := range []string{"/skyserve/v1/heartbeat", "/skyserve/v1/region"} {
		if got := status(t, hc, n.public+path); got != http.StatusUnauthorized {
			t.Errorf("%s: %d", path, got)
		}
	}
}

func TestPortsInUse(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	taken := ln.Addr().String()
	for _, c := range []struct{ listen, admin, want string }{
		{taken, "127.0.0.1:0", "listening on " + taken + ": address already in use"},
		{"127.0.0.1:0", taken, "listening on " + taken + ": address already in use"},
	} {
		cfg := config("lb-us-0", "local/us")
		cfg.Listen, cfg.Admin = c.listen, c.admin
		err := Run(context.Background(), cfg, Options{})
		var le *ListenError
		if !errors.As(err, &le) || strings.ReplaceAll(err.Error(), "bind: ", "") != c.want {
			t.Errorf("got %v, want %s", err, c.want)
		}
	}
}

// The reason of an engine of a static region that does not respond says that nothing will start it.
func TestUnreachableEngineOfStaticRegion(t *testing.T) {
	n := start(t, config("lb-paris-0", "static/paris"), Options{})
	if _, err := n.admin.AddWorker(context.Background(), service.ReplicaConfig{ID: "paris-0", URL: "http://127.0.0.1:1", Region: "static/paris"}); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "it is not reached", func() bool {
		w := n.worker(t, "paris-0")
		return w.State == service.StateStarting && w.Reason == "connection refused; skyserve does not start this engine"
	})
}
