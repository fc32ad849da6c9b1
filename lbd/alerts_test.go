package lbd

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"skyserve/internal/identity"
	"skyserve/internal/service"
	"skyserve/internal/store"
	"skyserve/internal/telemetry"
	"skyserve/internal/testkit"
	"skyserve/lbd/peer"
)

// awaits watches a lease until the end of the test.
func awaits(t *testing.T, b *balancer) (renew func()) {
	changes := make(chan store.KeyChange)
	done := make(chan struct{})
	go func() {
		defer close(done)
		b.lease.watchLease("lease.controller.chat", changes)
	}()
	t.Cleanup(func() { close(changes); <-done })
	return func() {
		changes <- store.KeyChange{Key: "lease.controller.other"}
		changes <- store.KeyChange{Key: "lease.controller.chat"}
		synctest.Wait()
	}
}

// Balancers raise an alert if no controller renews its lease, for any reason, and clear it when one
// does.
func TestMissingControllerRaisesAlert(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &balancer{}
		renew := awaits(t, b)
		if got := b.alerts(time.Now().Add(time.Hour)); len(got) > 0 {
			t.Errorf("without any controller: %v", got)
		}
		renew()
		at := time.Now()
		time.Sleep(5 * time.Second) // the time in which another controller takes over
		if got := b.alerts(time.Now()); len(got) > 0 {
			t.Errorf("after 5 s: %v", got)
		}
		time.Sleep(25 * time.Second)
		got := b.alerts(time.Now())
		if len(got) != 1 || got[0].Kind != telemetry.AlertController || got[0].Since == nil || !got[0].Since.Equal(at) || got[0].NextStep == "" {
			t.Errorf("after 30 s: %+v", got)
		}
		renew()
		if got := b.alerts(time.Now()); len(got) > 0 {
			t.Errorf("once one is back: %v", got)
		}
	})
}

// An unavailable store raises an alert once it is unavailable for longer than a restart; the
// metrics show both.
func TestUnavailableStoreRaisesAlert(t *testing.T) {
	srv, err := store.Serve(t.Context(), store.Options{Dir: t.TempDir(), Listen: "127.0.0.1:0"})
	if err != nil {
		t.Fatal(err)
	}
	st, err := store.Connect(t.Context(), srv.URL(), "")
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	b := &balancer{store: st}
	later := time.Now().Add(time.Hour)
	if got := b.alerts(later); len(got) > 0 || b.storeProblem() != nil {
		t.Fatalf("a store that works: %v", got)
	}
	srv.Close()
	short, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, _ = st.Put(short, "key", nil) // the client detects the failure at the latest now
	if got := b.alerts(time.Now()); len(got) > 0 {
		t.Errorf("at once: %v", got)
	}
	got := b.alerts(later)
	if len(got) != 1 || got[0].Kind != telemetry.AlertStore || !strings.Contains(got[0].Message, "the store is unavailable: ") || !strings.Contains(got[0].Message, "replacement and adoption are suspended") {
		t.Errorf("later: %+v", got)
	}
}

// A replica that fails half of its requests raises an alert, although it is ready and its clients are served by
// another one. The alert is in the snapshot and in the metrics.
func TestFailingReplicaRaisesAlert(t *testing.T) {
	testkit.Slow(t)
	t.Parallel()
	good, bad := newEngine(t, "m", ""), newEngine(t, "m", "")
	bad.set(func(e *engine) { e.failing = true })
	cfg := config("lb-us-0", "local/us", service.ReplicaConfig{ID: "us-0", URL: good.URL, Model: "m"}, service.ReplicaConfig{ID: "us-1", URL: bad.URL, Model: "m"})
	cfg.Balancer.Policy = "round-robin" // the same prompt would go to one replica
	n := start(t, cfg, Options{Version: "v1"})
	n.serves(t)
	hc := client(t)
	var found telemetry.Alert
	testkit.Eventually(t, "the failing replica is named", func() bool {
		if got := ask(t, hc, n.public, "m"); got.status != 200 {
			t.Errorf("a client received %+v", got)
		}
		for _, a := range n.snapshot(t).Alerts {
			if a.Kind == telemetry.AlertErrors && a.Object == "us-1" {
				found = a
			}
		}
		return found.Kind != ""
	})
	s := n.snapshot(t)
	if r := s.Regions[0].Replicas[1]; r.Failed == 0 || r.Failed > r.Sent || s.Regions[0].Outcomes.Retries == 0 || s.Regions[0].Outcomes.Failed != 0 || s.Regions[0].Balancers[0].Version != "v1" {
		t.Errorf("us-1: %+v, outcomes %+v", r, s.Regions[0].Outcomes)
	}
	if !strings.Contains(found.NextStep, "us-1") || found.Since == nil {
		t.Errorf("got %+v", found)
	}
	for _, m := range n.scrape(t)["skyserve_alerts"].GetMetric() {
		if m.GetLabel()[0].GetValue() == telemetry.AlertErrors && m.GetGauge().GetValue() > 0 {
			return
		}
	}
	t.Error("skyserve_alerts does not count it")
}

// After half of its certificate's life a balancer raises an alert that it was not renewed, and
// continues to serve.
func TestUnrenewedCertificateRaisesAlert(t *testing.T) {
	f := newFamily(t)
	m, err := newServiceIdentity(f.files(identity.Balancer, "lb-us-0", identity.CertificateLife))
	if err != nil {
		t.Fatal(err)
	}
	b := &balancer{identity: m, cfg: service.BalancerConfig{Service: "chat", ID: "lb-us-0", Region: "aws/us-east-1"}}
	for day, want := range map[int]telemetry.Severity{0: "", 44: "", 46: telemetry.SeverityWarning, 91: telemetry.SeverityCritical} {
		got := b.alerts(time.Now().AddDate(0, 0, day))
		if len(got) == 0 && want == "" {
			continue
		}
		end := m.cert.expires().UTC().Format(time.DateOnly)
		if len(got) != 1 || got[0].Severity != want || got[0].Kind != telemetry.AlertCertificate || got[0].Region != "aws/us-east-1" ||
			!strings.Contains(got[0].Message, end) || !strings.Contains(got[0].NextStep, "skyserve up") {
			t.Errorf("day %d: %+v, want %q", day, got, want)
		}
	}
}

// The leader of the last report is not shown once it no longer renews its lease.
func TestSilentLeaderIsNotShown(t *testing.T) {
	b := &balancer{}
	if c, s := b.control(); c != nil || s != nil {
		t.Errorf("without a report: %+v, %+v", c, s)
	}
	b.controllerAlerts.value.Store(&telemetry.Alerts{
		Controller: &telemetry.ControllerState{Leader: "lb-us-0", Term: 7, Standbys: []string{"lb-eu-0"}}, Store: &telemetry.StoreState{Nodes: 1},
	})
	renewed := time.Now()
	b.lease.lastChange.Store(&renewed)
	if c, s := b.control(); c == nil || c.Leader != "lb-us-0" || len(c.Standbys) != 1 || s == nil || s.Nodes != 1 {
		t.Errorf("got %+v, %+v", c, s)
	}
	renewed = renewed.Add(-leaseGrace - time.Second)
	b.lease.lastChange.Store(&renewed)
	if c, _ := b.control(); c == nil || c.Leader != "" || c.Term != 7 || c.Standbys == nil || len(c.Standbys) != 0 {
		t.Errorf("silent: got %+v", c)
	}
}

// The alert of an unavailable store says the fact once, and has no words of Go's libraries.
func TestOutageCause(t *testing.T) {
	for want, err := range map[string]error{
		"no response in time":             fmt.Errorf("%w: %w", store.ErrUnavailable, context.DeadlineExceeded),
		"writing history: no route":       fmt.Errorf("writing history: %w: %w", store.ErrUnavailable, errors.New("no route")),
		store.ErrUnavailable.Error():      store.ErrUnavailable,
		"no majority of members responds": errors.New("no majority of members responds"),
	} {
		if got := outageCause(err); got != want {
			t.Errorf("%v: got %q, want %q", err, got, want)
		}
	}
}

// An engine that two balancers of a region list counts twice, so the log names it, once.
func TestEngineListedAtPeer(t *testing.T) {
	t.Parallel()
	e, own := newEngine(t, "llama", ""), newEngine(t, "llama", "")
	there := start(t, config("lb-us-1", "local/us", service.ReplicaConfig{ID: "x", URL: e.URL + "/"}), Options{})
	cfg := config("lb-us-0", "local/us", service.ReplicaConfig{URL: e.URL}, service.ReplicaConfig{URL: own.URL})
	cfg.Peers = []service.PeerConfig{{ID: "lb-us-1", Region: "local/us", URL: there.public}}
	var log lines
	start(t, cfg, Options{Logger: log.logger()})
	want := "peer=lb-us-1 engines=1 first=" + e.URL
	testkit.Eventually(t, "a warning", func() bool { return strings.Contains(log.String(), want) })
	if got := log.String(); strings.Count(got, "list each engine at one balancer") != 1 {
		t.Errorf("got %s", got)
	}
}

func TestSharedReplicas(t *testing.T) {
	replica := func(url, origin string) telemetry.ReplicaSnapshot {
		return telemetry.ReplicaSnapshot{ID: "r", URL: url, Origin: origin}
	}
	for name, c := range map[string]struct {
		own, theirs telemetry.ReplicaSnapshot
		region      service.Region
		peer        string
		shared      bool
	}{
		"listed twice":                 {replica("http://10.0.0.7:8000", originConfig), replica("http://10.0.0.7:8000/", "file /r"), "us", "http://10.0.0.2", true},
		"another engine":               {replica("http://10.0.0.7:8000", originConfig), replica("http://10.0.0.8:8000", originConfig), "us", "http://10.0.0.2", false},
		"assigned by a controller":     {replica("http://10.0.0.7:8000", originController), replica("http://10.0.0.7:8000", originConfig), "us", "http://10.0.0.2", false},
		"moves to the peer":            {replica("http://10.0.0.7:8000", originConfig), replica("http://10.0.0.7:8000", originController), "us", "http://10.0.0.2", false},
		"another region":               {replica("http://10.0.0.7:8000", originConfig), replica("http://10.0.0.7:8000", originConfig), "eu", "http://10.0.0.2", false},
		"each machine's own engine":    {replica("http://127.0.0.1:8000", originConfig), replica("http://127.0.0.1:8000", originConfig), "us", "http://10.0.0.2", false},
		"an engine of the one machine": {replica("http://127.0.0.1:8000", originConfig), replica("http://127.0.0.1:8000", originConfig), "us", "http://127.0.0.1:1", true},
	} {
		p := peer.Health{Peer: service.PeerConfig{ID: "p", Region: c.region, URL: c.peer}, Region: &telemetry.RegionSnapshot{Replicas: []telemetry.ReplicaSnapshot{c.theirs}}}
		got := sharedReplicas("us", []telemetry.ReplicaSnapshot{c.own}, []peer.Health{p, {}})
		if c.shared != (len(got) == 1) {
			t.Errorf("%s: got %v", name, got)
		}
	}
}
