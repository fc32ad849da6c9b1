package rollout_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/goccy/go-yaml"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"skyserve/internal/controller"
	"skyserve/internal/service"
	"skyserve/internal/telemetry"
	"skyserve/provision/dns"
	"skyserve/provision/local"
)

// TestMain makes this test binary play the processes of a service when it is
// started as one of them.
func TestMain(m *testing.M) {
	path := os.Getenv(local.EnvObject)
	if path == "" {
		goleak.VerifyTestMain(m)
		return
	}
	if err := play(path); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// play is one background process: a fake engine, a fake balancer or the real controller.
func play(object string) error {
	held, err := local.Hold(object) // until the process is gone
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	switch os.Args[1] {
	case "engine":
		return playEngine(ctx)
	case "lb":
		return playBalancer(ctx, held)
	case "controller":
		signal.Ignore(unix.SIGXFSZ) // a write that exceeds a limit fails, as on a full disk
		c, err := controller.ReadConfig(os.Args[3])
		if err != nil {
			return err
		}
		read := func() (service.ControllerConfig, error) { return controller.ReadConfig(os.Args[3]) }
		reloaded := func(revision string) { _ = held.SetSpec(revision) }
		return controller.Run(ctx, c, slog.New(slog.NewTextHandler(os.Stderr, nil)), controller.Reread(read, reloaded))
	}
	if os.Args[1] == "nameserver" {
		return playNameServer(ctx)
	}
	return fmt.Errorf("no such verb %q", os.Args[1])
}

// playNameServer is the real name server.
func playNameServer(ctx context.Context) error {
	c, err := local.ReadNameServer(flag("--config"))
	if err != nil {
		return err
	}
	server, err := dns.NewServer(c, nil, slog.New(slog.NewTextHandler(os.Stderr, nil)))
	if err != nil {
		return err
	}
	return server.Run(ctx)
}

// flag finds the value of a flag among the arguments.
func flag(name string) string {
	if i := slices.Index(os.Args, name); i >= 0 {
		return os.Args[i+1]
	}
	return ""
}

// playEngine answers /v1/models. A model called broken ends it with a word, one
// called stubborn makes it deaf to being asked to end.
func playEngine(ctx context.Context) error {
	switch flag("--model") {
	case "broken":
		return fmt.Errorf("loading weights: no such file")
	case "stubborn":
		signal.Ignore(syscall.SIGTERM)
		ctx = context.WithoutCancel(ctx)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/models", func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, `{"data":[]}`) })
	return serveUntil(ctx, map[string]http.Handler{flag("--listen"): mux})
}

// serveUntil serves several addresses until ctx ends.
func serveUntil(ctx context.Context, handlers map[string]http.Handler) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	for addr, h := range handlers {
		ln, err := net.Listen("tcp", addr)
		if err != nil {
			return err
		}
		srv := &http.Server{Handler: h}
		wg.Go(func() { _ = srv.Serve(ln) })
		defer srv.Close()
	}
	<-ctx.Done()
	return nil
}

// balancer is a balancer without traffic.
type balancer struct {
	object *local.Holding
	config service.BalancerConfig
	mu     sync.Mutex
	has    map[string]service.ReplicaConfig
}

// The values of tau to which a balancer says that its file is wrong, and with
// which it is of a version that cannot read it again.
const (
	tauRefused = 77
	tauTooOld  = 78
)

func playBalancer(ctx context.Context, object *local.Holding) error {
	config, err := readBalancer()
	if err != nil {
		return err
	}
	b := &balancer{object: object, config: config, has: map[string]service.ReplicaConfig{}}
	for _, r := range b.config.Replicas {
		b.has[r.ID] = r
	}
	return serveUntil(ctx, map[string]http.Handler{b.config.Listen: b.public(), b.config.Admin: b.admin()})
}

// readBalancer reads the file that the process was started with.
func readBalancer() (config service.BalancerConfig, err error) {
	data, err := os.ReadFile(flag("--config"))
	if err == nil {
		err = yaml.UnmarshalWithOptions(data, &config, yaml.Strict())
	}
	return config, err
}

// reload reads the file again.
func (b *balancer) reload(w http.ResponseWriter, _ *http.Request) {
	config, err := readBalancer()
	switch {
	case config.Balancer.Tau == tauTooOld:
		w.WriteHeader(http.StatusNotFound)
		return
	case config.Balancer.Tau == tauRefused:
		err = fmt.Errorf("balancer.tau: is %d", tauRefused)
	case err == nil:
		err = b.object.SetSpec(config.Revision)
	}
	if err != nil {
		w.WriteHeader(http.StatusBadRequest)
		fmt.Fprintf(w, `{"error":{"message":%q}}`, err)
		return
	}
	_ = json.NewEncoder(w).Encode(telemetry.Reload{Revision: config.Revision})
}

// public answers /readyz once a replica's model answers.
func (b *balancer) public() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(http.ResponseWriter, *http.Request) {})
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		for _, r := range b.replicas() {
			if r.State == service.StateReady {
				return
			}
		}
		w.WriteHeader(http.StatusServiceUnavailable)
	})
	return mux
}

func (b *balancer) admin() http.Handler {
	mux := http.NewServeMux()
	answer := func(w http.ResponseWriter, v any) { _ = json.NewEncoder(w).Encode(v) }
	mux.HandleFunc("GET /healthz", func(http.ResponseWriter, *http.Request) {})
	mux.HandleFunc("GET /v1/snapshot", func(w http.ResponseWriter, _ *http.Request) {
		answer(w, telemetry.Snapshot{Service: b.config.Service, Regions: []telemetry.RegionSnapshot{{Name: b.config.Region, Replicas: b.replicas()}}})
	})
	mux.HandleFunc("POST /reload", b.reload)
	mux.HandleFunc("GET /workers", func(w http.ResponseWriter, _ *http.Request) {
		b.mu.Lock()
		defer b.mu.Unlock()
		workers := []service.ReplicaConfig{}
		for _, r := range b.has {
			workers = append(workers, r)
		}
		answer(w, map[string]any{"workers": workers})
	})
	mux.HandleFunc("POST /workers", func(w http.ResponseWriter, r *http.Request) {
		var c service.ReplicaConfig
		if err := json.NewDecoder(r.Body).Decode(&c); err != nil {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		b.mu.Lock()
		defer b.mu.Unlock()
		if _, had := b.has[c.ID]; !had {
			w.WriteHeader(http.StatusCreated)
		}
		b.has[c.ID] = c
	})
	mux.HandleFunc("POST /workers/{id}/drain", func(w http.ResponseWriter, r *http.Request) {
		b.mu.Lock()
		defer b.mu.Unlock()
		if _, has := b.has[r.PathValue("id")]; !has {
			w.WriteHeader(http.StatusNotFound)
		}
	})
	mux.HandleFunc("DELETE /workers/{id}", func(w http.ResponseWriter, r *http.Request) {
		b.mu.Lock()
		defer b.mu.Unlock()
		delete(b.has, r.PathValue("id"))
	})
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if t := b.config.AdminToken; t != "" && r.Header.Get("Authorization") != "Bearer "+t {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		mux.ServeHTTP(w, r)
	})
}

// replicas looks at every replica at this moment.
func (b *balancer) replicas() []telemetry.ReplicaSnapshot {
	b.mu.Lock()
	defer b.mu.Unlock()
	var all []telemetry.ReplicaSnapshot
	for _, r := range b.has {
		s := telemetry.ReplicaSnapshot{ID: r.ID, URL: r.URL, Model: r.Model, State: service.StateReady}
		if res, err := http.Get(r.URL + "/v1/models"); err != nil {
			s.State, s.Reason = service.StateNotReady, err.Error()
		} else {
			res.Body.Close()
		}
		all = append(all, s)
	}
	slices.SortFunc(all, func(a, b telemetry.ReplicaSnapshot) int { return strings.Compare(a.ID, b.ID) })
	return all
}
