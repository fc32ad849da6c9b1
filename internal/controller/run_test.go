package controller

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"skyserve/internal/identity"
	"skyserve/internal/service"
	"skyserve/internal/store"
	"skyserve/internal/testkit"
)

func TestReadConfig(t *testing.T) {
	const good = "service: chat\nlisten: 127.0.0.1:8311\nstore_listen: 127.0.0.1:8301\nstore_dir: /d\n"
	tests := []struct{ name, text, want string }{
		{"good", good + "replicas: [{id: us-0, url: 'http://r', home: lb-us-0}]\nrtt: {us-eu: 80ms}\n", ""},
		{"JSON", `{"service":"chat","listen":"127.0.0.1:1","store_url":"nats://s:4222"}`, ""},
		{"an unknown key", good + "replica: []\n", `controller.yaml:5:1: unknown key "replica"`},
		{"no service", strings.Replace(good, "service: chat", "", 1), "service is required"},
		{"no listener", strings.Replace(good, "127.0.0.1:8311", "nonsense", 1), "listen must be host:port: "},
		{"a public listener", strings.Replace(good, "127.0.0.1:8311", "0.0.0.0:8311", 1), "loopback"},
		{"two stores", good + "store_url: nats://s\n", "exactly one of"},
		{"no store", "service: chat\nlisten: 127.0.0.1:8311\n", "exactly one of"},
		{"no directory", strings.Replace(good, "store_dir: /d", "", 1), "store_dir is required with store_listen"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "controller.yaml")
			if err := os.WriteFile(path, []byte(tt.text), 0o600); err != nil {
				t.Fatal(err)
			}
			c, err := ReadConfig(path)
			switch {
			case tt.want == "" && (err != nil || c.Service != "chat"):
				t.Errorf("got %+v, %v", c, err)
			case tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want) || !strings.Contains(err.Error(), path)):
				t.Errorf("got %v, want %q and the file's name", err, tt.want)
			}
		})
	}
	if _, err := ReadConfig(filepath.Join(t.TempDir(), "missing")); err == nil {
		t.Error("want an error for a missing file")
	}
}

// balancerServer serves the admin API of a balancer without replicas and sends every attached
// replica to attached.
func balancerServer(t *testing.T, attached chan<- service.ReplicaConfig) *httptest.Server {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(http.ResponseWriter, *http.Request) {})
	mux.HandleFunc("GET /workers", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, `{"workers":[]}`) })
	mux.HandleFunc("POST /workers", func(w http.ResponseWriter, r *http.Request) {
		var c service.ReplicaConfig
		if err := json.NewDecoder(r.Body).Decode(&c); err != nil {
			t.Error(err)
		}
		w.WriteHeader(http.StatusCreated)
		select {
		case attached <- c:
		default:
		}
	})
	srv := httptest.NewServer(mux)
	t.Cleanup(srv.Close)
	return srv
}

func TestRunWithEmbeddedStore(t *testing.T) {
	given := make(chan service.ReplicaConfig, 1)
	srv := balancerServer(t, given)
	config := service.ControllerConfig{
		Service: "chat", Listen: testkit.FreeAddr(), StoreListen: testkit.FreeAddr(), StoreDir: t.TempDir(), StoreToken: "secret",
		Balancers: []service.ControlledBalancer{{ID: "lb-us-0", Region: "local/us", Admin: srv.URL}},
		Replicas:  []service.ControlledReplica{{ReplicaConfig: service.ReplicaConfig{ID: "us-0", URL: "http://r", Region: "local/us"}, Primary: "lb-us-0"}},
	}
	epoch := uint64(0)
	for range 2 { // the second one continues with the state of the first
		ctx, cancel := context.WithCancel(context.Background())
		ended := make(chan error, 1)
		go func() { ended <- Run(ctx, config, slog.New(slog.DiscardHandler)) }()
		select {
		case got := <-given:
			if got.ID != "us-0" || got.Epoch == 0 || epoch != 0 && got.Epoch != epoch {
				t.Errorf("got %+v, want us-0 at epoch %d", got, epoch)
			}
			epoch = got.Epoch
		case err := <-ended:
			t.Fatalf("ended early: %v", err)
		case <-time.After(time.Minute):
			t.Fatal("timed out")
		}
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("ending: %v", err)
		}
		for len(given) > 0 {
			<-given
		}
	}
}

func TestRunReportsPortInUse(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	err = Run(context.Background(), service.ControllerConfig{Service: "chat", Listen: ln.Addr().String()}, slog.New(slog.DiscardHandler))
	if err == nil || !strings.Contains(err.Error(), ln.Addr().String()) {
		t.Errorf("got %v, want %s in it", err, ln.Addr())
	}
}

// bundle writes the certificate and key of a party of the service, and the authority's certificate.
func bundle(t *testing.T, a *identity.Authority, role identity.Role) *service.Identity {
	t.Helper()
	dir := t.TempDir()
	i := &service.Identity{Cert: filepath.Join(dir, "own.pem"), Key: filepath.Join(dir, "own.pem"), CA: filepath.Join(dir, "ca.crt")}
	key, err := identity.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	chain, err := a.Certify(key.Public(), identity.Name{Service: "chat", Role: role, ID: "x"}, time.Now(), time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	text, err := identity.Bundle(chain, key)
	if err == nil {
		err = errors.Join(identity.WriteFile(i.Cert, text), identity.WriteFile(i.CA, identity.EncodeChain(chain[1:])))
	}
	if err != nil {
		t.Fatal(err)
	}
	return i
}

// The embedded store of a controller with an identity only accepts balancers of its service.
func TestEmbeddedStoreOnlyAcceptsOwnBalancers(t *testing.T) {
	authority, err := identity.NewAuthority("chat", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	config := service.ControllerConfig{Service: "chat", StoreListen: testkit.FreeAddr(), StoreDir: t.TempDir(), Identity: bundle(t, authority, identity.Controller)}
	self, _, err := loadIdentity(config)
	if err != nil {
		t.Fatal(err)
	}
	st, _, closeStore, err := openStore(t.Context(), config, self, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer closeStore()
	for role, enters := range map[identity.Role]bool{identity.Balancer: true, identity.Replica: false} {
		files := bundle(t, authority, role)
		party, err := identity.Load(files.Cert, files.Key, files.CA)
		if err != nil {
			t.Fatal(err)
		}
		client, err := store.Connect(t.Context(), "tls://"+config.StoreListen, "", store.ForService("chat"), store.Secure(party.Client(identity.Controller)))
		if enters != (err == nil) {
			t.Errorf("%s: %v", role, err)
		}
		if err != nil {
			continue
		}
		if _, err := client.Put(t.Context(), "key", []byte("value")); err != nil {
			t.Error(err)
		}
		client.Close()
	}
	testkit.Eventually(t, "the controller connects", st.Connected)
	if value, _, err := st.Get(t.Context(), "key"); err != nil || string(value) != "value" {
		t.Errorf("the controller reads %q, %v", value, err)
	}
	config.Identity.CA = "none"
	if _, _, err := loadIdentity(config); err == nil || !strings.Contains(err.Error(), "identity: ") {
		t.Errorf("without the authority's file: %v", err)
	}
}
