package controller

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"skyserve/internal/service"
	"skyserve/internal/telemetry"
)

// without returns the world's configuration without some replicas.
func (w *world) without(ids ...string) service.ControllerConfig {
	c := w.config
	c.Revision, c.Replicas = "next", nil
	for _, r := range w.config.Replicas {
		keep := true
		for _, id := range ids {
			keep = keep && r.ID != id
		}
		if keep {
			c.Replicas = append(c.Replicas, r)
		}
	}
	return c
}

// reload requests a reload and requires that it succeeds.
func (w *world) reload(t *testing.T, to service.ControllerConfig) {
	t.Helper()
	w.options.readConfig = func() (service.ControllerConfig, error) { return to, nil }
	rec := httptest.NewRecorder()
	r := httptest.NewRequest(http.MethodPost, "http://127.0.0.1:8311/reload", nil)
	w.handler().ServeHTTP(rec, r)
	var done telemetry.Reload
	if err := json.Unmarshal(rec.Body.Bytes(), &done); err != nil || rec.Code != http.StatusOK || done.Revision != to.Revision {
		t.Fatalf("got %d %s", rec.Code, rec.Body)
	}
}

// A reload reports the keys whose values differ from those of the configuration that was read before.
func TestReloadReportsChanges(t *testing.T) {
	w := newWorld()
	w.rounds(t, 1)
	other := w.without("us-1")
	other.Controllers = []string{"a", "b", "c"}
	balancers := other
	balancers.Balancers = balancers.Balancers[1:]
	backups := balancers
	backups.Backup = &service.StoreBackup{To: "/backups", Every: time.Hour, Keep: 1}
	for _, c := range []struct {
		name string
		to   service.ControllerConfig
		want []string
	}{
		{"nothing", w.config, []string{}},
		{"replicas and controllers", other, []string{"replicas", "controllers"}},
		{"the same before the next round", other, []string{}},
		{"balancers", balancers, []string{"balancers"}},
		{"backups", backups, []string{"backup"}},
	} {
		w.options.readConfig = func() (service.ControllerConfig, error) { return c.to, nil }
		if done, err := w.Controller.reload(); err != nil || !slices.Equal(done.Changed, c.want) || done.Changed == nil {
			t.Errorf("%s: changed %q, %v, want %q", c.name, done.Changed, err, c.want)
		}
	}
	member := func(members ...string) service.ControllerConfig {
		return service.ControllerConfig{StoreCluster: &service.StoreCluster{Members: members}}
	}
	if got := changedKeys(member("a", "b", "c"), member("a", "b", "d")); !slices.Equal(got, []string{"store_cluster"}) {
		t.Errorf("another member of the store: %q", got)
	}
}

func TestRemovedReplicaDrainsFirst(t *testing.T) {
	w := newWorld()
	w.rounds(t, 1)
	all := w.config
	all.Revision = "all again"
	w.lb["lb-us-0"].busy = map[string]int{"us-1": 3}
	w.reload(t, w.without("us-1"))
	w.rounds(t, 5)
	w.check(t, map[string][]string{"lb-us-0": {"us-0", "us-1"}})
	if !w.lb["lb-us-0"].drain["us-1"] || w.lb["lb-us-0"].drain["us-0"] {
		t.Errorf("draining: %v", w.lb["lb-us-0"].drain)
	}
	w.lb["lb-us-0"].busy["us-1"] = 0
	w.rounds(t, 1)
	w.check(t, map[string][]string{"lb-us-0": {"us-0"}})
	w.reload(t, all)
	w.rounds(t, 1)
	w.check(t, map[string][]string{"lb-us-0": {"us-0", "us-1"}})
}

// The machine of a balancer is replaced at another address: the controller follows while it runs. The other
// balancers keep their state.
func TestReplacedBalancerIsFollowed(t *testing.T) {
	w := newWorld()
	w.rounds(t, 1)
	w.lb["lb-us-0"].set(true)
	w.rounds(t, deadAfter)
	w.check(t, map[string][]string{"lb-eu-0": {"eu-0", "us-0", "us-1"}})
	next := w.config
	next.Revision, next.Controllers = "next", []string{"a", "b", "c"}
	next.Balancers = slices.Clone(next.Balancers)
	w.lb["at another address"] = &fakeBalancer{has: map[string]uint64{}}
	for i := range next.Balancers {
		if next.Balancers[i].ID == "lb-us-0" {
			next.Balancers[i].Admin = "at another address"
		}
	}
	var followed []service.ControllerConfig
	w.applyImmediately = func(c service.ControllerConfig) error {
		followed = append(followed, c)
		return nil
	}
	w.reload(t, next)
	if len(followed) != 1 || w.controllers != 3 {
		t.Errorf("followed %d configurations, knows %d controllers", len(followed), w.controllers)
	}
	w.rounds(t, 1)
	w.check(t, map[string][]string{"at another address": {"us-0", "us-1"}, "lb-eu-0": {"eu-0"}})
}

// A member of the store that cannot be followed is an error of the reload, which then changes nothing.
func TestReloadReportsStoreFailure(t *testing.T) {
	w := newWorld()
	next := w.without("us-1")
	w.options.readConfig = func() (service.ControllerConfig, error) { return next, nil }
	w.applyImmediately = func(service.ControllerConfig) error { return errors.New("a route must be host:port") }
	if _, err := w.Controller.reload(); err == nil || w.reloaded != nil {
		t.Errorf("got %v, applies %v", err, w.reloaded)
	}
}

// A replica that moves to another balancer is not drained: its new owner uses it immediately.
func TestMovedReplicaIsNotDrained(t *testing.T) {
	w := newWorld()
	w.rounds(t, 1)
	w.lb["lb-us-0"].set(true)
	w.rounds(t, deadAfter)
	w.lb["lb-us-0"].set(false)
	w.rounds(t, 1)
	w.check(t, map[string][]string{"lb-us-0": {"us-0", "us-1"}, "lb-eu-0": {"eu-0"}})
	if n := len(w.lb["lb-eu-0"].drain); n > 0 {
		t.Errorf("%d drained", n)
	}
}

func TestReloadRejectsInvalidRequests(t *testing.T) {
	w := newWorld()
	moved := w.config
	moved.AdminToken = "another"
	tests := []struct {
		name        string
		url, origin string
		read        func() (service.ControllerConfig, error)
		status      int
		want        string
	}{
		{"another name for this machine", "http://evil.example:8311/reload", "", nil, 403, "only programs on this machine may reload"},
		{"a page of another origin", "http://127.0.0.1:8311/reload", "http://evil.example", nil, 403, "only programs on this machine may reload"},
		{"no file", "http://127.0.0.1:8311/reload", "", nil, 404, "has no configuration file"},
		{"a file that cannot be read", "http://localhost:8311/reload", "", func() (service.ControllerConfig, error) { return service.ControllerConfig{}, errors.New("line 3") }, 400, "line 3"},
		{"another token", "http://127.0.0.1:8311/reload", "", func() (service.ControllerConfig, error) { return moved, nil }, 200, `"revision":""`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			w.options.readConfig = tt.read
			rec := httptest.NewRecorder()
			r := httptest.NewRequest(http.MethodPost, tt.url, nil)
			if tt.origin != "" {
				r.Header.Set("Origin", tt.origin)
			}
			w.handler().ServeHTTP(rec, r)
			if rec.Code != tt.status || !strings.Contains(rec.Body.String(), tt.want) {
				t.Errorf("got %d %s", rec.Code, rec.Body)
			}
			if w.reloaded != nil {
				t.Error("it was applied")
			}
		})
	}
}

func TestSignalReloads(t *testing.T) {
	w := newWorld()
	var log strings.Builder
	w.log = slog.New(slog.NewTextHandler(&log, nil))
	hangups := make(chan os.Signal)
	results := make(chan error, 2)
	w.options.reloadSignals = hangups
	w.options.readConfig = func() (service.ControllerConfig, error) { return w.without("us-1"), <-results }
	ctx, end := context.WithCancel(t.Context())
	var reloading sync.WaitGroup
	reloading.Go(func() { w.reloadOnSignal(ctx) })
	results <- errors.New("line 3")
	results <- nil
	for range 3 { // the third is received once the second reload has ended
		hangups <- syscall.SIGHUP
	}
	end()
	close(results)
	reloading.Wait()
	if text := log.String(); !strings.Contains(text, `msg="reloading the configuration failed" err="line 3"`) || !strings.Contains(text, `msg="configuration reloaded" changed=[replicas]`) {
		t.Errorf("logged: %s", text)
	}
	w.applyReload()
	if len(w.config.Replicas) != 3 {
		t.Errorf("%d replicas were applied, want 3", len(w.config.Replicas))
	}
}

// machinesFunc is a Machines that is never busy.
type machinesFunc func(ctx context.Context, may func() error)

func (m machinesFunc) Reconcile(ctx context.Context, checkLeadership func() error) (busy bool) {
	m(ctx, checkLeadership)
	return false
}

func (machinesFunc) Wait() {}

func TestMachinesAreReconciledUnderLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		turns := 0
		machines := machinesFunc(func(ctx context.Context, checkLeadership func() error) {
			if err := checkLeadership(); err != nil {
				t.Errorf("it may not act: %v", err)
			}
			if turns++; turns == 3 {
				<-ctx.Done() // a cloud that hangs
				if err := checkLeadership(); err == nil {
					t.Error("it may act without the lease")
				}
			}
		})
		w.loop = &controlLoop{machines: machines, wake: make(chan struct{}, 1)}
		go func() {
			time.Sleep(time.Minute)
			w.lease.lose()
		}()
		if err := w.runTerm(t.Context(), w.lease); !errors.Is(err, errLeaseLost) || turns != 3 {
			t.Errorf("got %v, reconciled %d times", err, turns)
		}
	})
}
