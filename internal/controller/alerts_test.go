package controller

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"skyserve/internal/store"
	"skyserve/internal/telemetry"
)

// get sends a request to the controller's own listener.
func (w *world) get(t *testing.T, path string, accept ...string) (status int, text string) {
	t.Helper()
	rec, req := httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, path, nil)
	req.Header["Accept"] = accept
	w.handler().ServeHTTP(rec, req)
	body, err := io.ReadAll(rec.Result().Body)
	if err != nil {
		t.Fatal(err)
	}
	return rec.Code, string(body)
}

// The controller's health check fails only while reads from or writes to the store fail; other alerts
// do not fail it.
func TestHealthReportsStoreFailures(t *testing.T) {
	long := time.Now().Add(-time.Hour)
	full := &store.Outage{Since: long, Err: syscall.ENOSPC}
	for name, c := range map[string]struct {
		health storeHealth
		status int
		want   string
	}{
		"healthy":             {storeHealth{}, 200, "ok"},
		"a full disk":         {storeHealth{dir: "/d", writeOutage: func() *store.Outage { return full }}, 503, "the store in /d on the controller's machine cannot write, or its disk is nearly full: no space left on device; while writes fail, planning, scaling, replacement and adoption are suspended"},
		"the cause":           {storeHealth{writeOutage: func() *store.Outage { return full }}, 503, "no space left on device"},
		"no response":         {storeHealth{clientOutage: func() *store.Outage { return full }}, 503, "the store does not respond to the controller: no space left on device; planning, scaling, replacement and adoption are suspended"},
		"no response for now": {storeHealth{clientOutage: func() *store.Outage { return &store.Outage{Since: time.Now(), Err: syscall.EPIPE} }}, 200, "ok"},
		"little free space":   {storeHealth{dir: "/d", free: func() (uint64, bool) { return 12 << 20, true }}, 200, "disk of /d on the controller's machine has 12 MiB free"},
		"enough free space":   {storeHealth{free: func() (uint64, bool) { return 1 << 40, true }}, 200, "ok"},
		"unknown free space":  {storeHealth{free: func() (uint64, bool) { return 0, false }}, 200, "ok"},
		"certificates' alert": {storeHealth{}, 200, "ok\nwarning: certificate lb-us-0: it ends"},
	} {
		w := newWorld()
		w.health = c.health
		if strings.HasPrefix(name, "certificates") {
			WithAlerts(func() []telemetry.Alert {
				return []telemetry.Alert{{Severity: telemetry.SeverityWarning, Kind: telemetry.AlertCertificate, Object: "lb-us-0", Message: "it ends"}}
			})(&w.options)
		}
		status, text := w.get(t, "/healthz")
		if status != c.status || !strings.Contains(text, c.want) || c.want == "ok" && text != "ok\n" {
			t.Errorf("%s: got %d %q, want %d and %q", name, status, text, c.status, c.want)
		}
		var health telemetry.HealthAlerts
		status, text = w.get(t, "/healthz", "application/json, */*")
		if json.Unmarshal([]byte(text), &health) != nil || status != c.status || (len(health.Alerts) == 0) != (c.want == "ok") {
			t.Errorf("%s: as JSON, got %d %s", name, status, text)
		}
		var v View
		if _, text := w.get(t, "/v1/state"); json.Unmarshal([]byte(text), &v) != nil || (len(v.Alerts) == 0) != (c.want == "ok") {
			t.Errorf("%s: the state is %s", name, text)
		}
	}
}

// slowLease is a lease on a slow disk: its expiry counts from before the write, as in
// internal/store.
type slowLease struct {
	fakeLease
	took  time.Duration
	until time.Time
}

func (l *slowLease) Valid() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return time.Now().Before(l.until)
}

func (l *slowLease) Expires() time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.until
}

func (l *slowLease) Renew(context.Context) error {
	start := time.Now()
	time.Sleep(l.took)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.renewals++
	l.until = start.Add(leaseTTL)
	return nil
}

// A slow disk does not cost leadership while a write is shorter than the lease, but raises an
// alert.
func TestSlowDiskKeepsLeadership(t *testing.T) {
	for _, took := range []time.Duration{time.Millisecond, 2500 * time.Millisecond} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld()
			l := &slowLease{took: took}
			terms := 0
			w.acquire = func(ctx context.Context) (lease, error) {
				terms++
				time.Sleep(leaseTTL) // until the lost lease has expired
				l.mu.Lock()
				l.until = time.Now().Add(leaseTTL)
				l.mu.Unlock()
				return l, ctx.Err()
			}
			ctx, end := context.WithCancel(t.Context())
			var wg sync.WaitGroup
			wg.Go(func() { w.runController(ctx) })
			time.Sleep(time.Minute)
			synctest.Wait()
			if terms != 1 {
				t.Errorf("writes of %s: the lease was acquired %d times in a minute", took, terms)
			}
			status, text := w.get(t, "/healthz")
			if slow := strings.Contains(text, "a write to the store took 2.5s; when a write takes longer than 2s, the controller's lease expires"); status != 200 || slow != (took > time.Second) {
				t.Errorf("writes of %s: got %d %q", took, status, text)
			}
			var reported telemetry.Alerts
			w.Controller.kv.(*fakeState).mu.Lock()
			data := w.Controller.kv.(*fakeState).alerts
			w.Controller.kv.(*fakeState).mu.Unlock()
			if err := json.Unmarshal(data, &reported); err != nil || (len(reported.Alerts) > 0) != (took > time.Second) || reported.Token != 7 {
				t.Errorf("writes of %s: balancers receive %s", took, data)
			}
			end()
			wg.Wait()
		})
	}
}
