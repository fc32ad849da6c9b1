package tui

import (
	"encoding/json"
	"fmt"
	"iter"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"skyserve/internal/service"
	"skyserve/internal/telemetry"
	"skyserve/internal/testkit"
	"skyserve/lbd/health"
)

// recordedFaults are faults of real processes: `make record-faults` injects them and records `skyserve top --record`. Each
// names texts of the first screen: the object, what happens and the next step.
var recordedFaults = map[string][]string{
	"errors":          {"errors us-1", "failed", "skyserve logs faults us-1"},
	"slow":            {"slow us-1", "times slower", "check the GPU"},
	"dead-balancer":   {"balancer lb-eu-0", "no heartbeat", "skyserve status"},
	"partition":       {"balancer lb-asia-0", "no heartbeat", "skyserve status"},
	"full-queue":      {"rejected requests lb-us-0", "rejected with 429", "skyserve usage"},
	"certificate":     {"certificate lb-us-0 public", "expired on", "balancer.tls"},
	"full-disk":       {"store", "the disk of", "MiB free", "free disk space"},
	"interruption":    {"interruption us-east-1-0", "the cloud interrupts", "skyserve events"},
	"quota":           {"launch aws/us-east-1", "cannot launch us-east-1-0", "the quota is exhausted", "raise the quota"},
	"forecast":        {"forecast meta-llama", "x the forecast", "skyserve plan --apply"},
	"infeasible-plan": {"plan: no plan satisfies the bounds", "raise replicas.max"},
	"version-skew":    {"version lb-", "runs", "skyserve up --upgrade"},
}

// namedWithin is the time within which a recorded fault is named.
const namedWithin = 5 * time.Second

// recordingsDir has the recordings, and the times at which the faults began.
const recordingsDir = "../docs/recordings/faults"

// Recorded faults are named on the first screen of 80x24 in time, with the next step, and not before.
func TestRecordedFaultsAreNamedOnFirstScreen(t *testing.T) {
	testkit.NotUnderRace(t, "draws frames in one goroutine")
	text, err := os.ReadFile(filepath.Join(recordingsDir, "begins.json"))
	if err != nil {
		t.Fatal(err)
	}
	var begins map[string]time.Time
	if err := json.Unmarshal(text, &begins); err != nil {
		t.Fatal(err)
	}
	for name, wants := range recordedFaults {
		t.Run(name, func(t *testing.T) {
			begin, recorded := begins[name]
			if !recorded {
				t.Fatal("it is not recorded")
			}
			d := newDesk(t, 80, 24, &telemetry.Snapshot{})
			var last time.Time
			for s := range recordedSnapshots(t, filepath.Join(recordingsDir, name+".jsonl.gz")) {
				if !last.IsZero() {
					d.fetch.snapshot = s
					d.poll(s.At.Sub(last))
				}
				last = s.At
				frame := d.frame()
				words := strings.Join(strings.Fields(frame), " ") // a message may continue on the next line
				named := !slices.ContainsFunc(wants, func(want string) bool { return !strings.Contains(words, want) })
				switch since := s.At.Sub(begin); {
				case named && since < 0:
					t.Fatalf("%s before it begins:\n%s", -since, frame)
				case named:
					t.Logf("named after %s", since)
					return
				case since > namedWithin:
					t.Fatalf("after %s the screen does not contain all of %q:\n%s", since, wants, frame)
				}
			}
			t.Fatal("the recording ends before it is named")
		})
	}
}

// recordedSnapshots returns the snapshots of a recording.
func recordedSnapshots(t *testing.T, file string) iter.Seq[*telemetry.Snapshot] {
	t.Helper()
	now := noon
	r, err := OpenReplay(file, 1, func() time.Time { return now })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.Close() })
	return func(yield func(*telemetry.Snapshot) bool) {
		for ended := false; !ended; now = now.Add(100 * time.Millisecond) {
			ended = r.Ended()
			s, _, err := r.Fetch(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if !yield(s) {
				return
			}
		}
	}
}

// nightSnapshot returns a service after some seconds of traffic: two regions, two balancers in the first, three
// replicas.
func nightSnapshot(second int) telemetry.Snapshot {
	at, pace := time.Date(2026, 11, 26, 3, 0, second, 0, time.UTC), 1.0
	n := int64(10 * (second + 1))
	us := telemetry.RegionSnapshot{
		Name: "aws/us-east-1", Models: []telemetry.ModelSnapshot{{Model: "m", FirstTokens: 3 * n}}, Outcomes: telemetry.Outcomes{Served: 3 * n},
		Balancers: []telemetry.BalancerSnapshot{{ID: "lb-us-east-1-0", State: "READY", Version: "v1"}, {ID: "lb-us-east-1-1", State: "READY", Version: "v1"}},
	}
	for i := range 3 {
		age, kv := int64(50), 0.5
		us.Replicas = append(us.Replicas, telemetry.ReplicaSnapshot{ID: fmt.Sprintf("us-east-1-%d", i), Model: "m", GPU: "L4", State: service.StateReady, Sent: n, Pace: &pace, AgeMillis: &age, KV: &kv})
	}
	eu := telemetry.RegionSnapshot{Name: "aws/eu-west-1", Balancers: []telemetry.BalancerSnapshot{{ID: "lb-eu-west-1-0", State: "READY", Version: "v1"}}}
	return telemetry.Snapshot{At: at, Service: "chat", Regions: []telemetry.RegionSnapshot{eu, us}}
}

// night is a fault at three in the morning.
type night struct {
	name string
	// inject changes the snapshot and the peers of the balancer lb-us-east-1-0, after seconds.
	inject func(s *telemetry.Snapshot, peers []health.Peer, after int)
	// names are texts of the first screen: the object, what happens and the next step.
	names []string
}

var nights = []night{
	{"a replica with 50 % errors", func(s *telemetry.Snapshot, _ []health.Peer, after int) {
		s.Regions[1].Replicas[1].Failed = int64(5 * (after + 1))
	}, []string{"1 critical", "errors us-east-1-1", "failed", "skyserve logs chat us-east-1-1"}},
	{"a slow replica", func(s *telemetry.Snapshot, _ []health.Peer, _ int) {
		pace := 3.0
		s.Regions[1].Replicas[2].Pace = &pace
	}, []string{"1 alert", "slow us-east-1-2", "3.0 times slower", "check the GPU"}},
	{"a dead balancer", func(s *telemetry.Snapshot, peers []health.Peer, after int) {
		peers[1].Lost, peers[1].LostFor, peers[1].Reason = true, time.Duration(after)*time.Second, "connection refused"
		s.Regions[1].Balancers[1].State, s.Regions[1].Balancers[1].Reason = service.StateUnreachable, "connection refused"
	}, []string{"1 critical", "balancer lb-us-east-1-1", "no heartbeat", "skyserve status"}},
	{"a partitioned region", func(s *telemetry.Snapshot, peers []health.Peer, after int) {
		peers[0].Lost, peers[0].LostFor, peers[0].Reason = true, time.Duration(after)*time.Second, "i/o timeout"
		s.Regions[0].Balancers[0].State = service.StateUnreachable
	}, []string{"1 critical", "balancer lb-eu-west-1-0", "no heartbeat", "skyserve status"}},
	{"a full queue", func(s *telemetry.Snapshot, _ []health.Peer, after int) {
		oldest := int64(1000 * (after + 9))
		s.Regions[1].Queued, s.Regions[1].Models[0].Queued, s.Regions[1].QueueOldestMillis = 200, 200, &oldest
	}, []string{"1 alert", "queue lb-us-east-1-0", "200 requests queued for up to", "skyserve replica add us-east-1"}},
	{"a quota exhausted", func(s *telemetry.Snapshot, _ []health.Peer, _ int) {
		s.Alerts = []telemetry.Alert{{Severity: telemetry.SeverityWarning, Kind: telemetry.AlertLaunch, Object: "m aws/us-east-1", Message: "VcpuLimitExceeded, next try 03:05", NextStep: "read the log lines of the last failure in 'skyserve status'"}}
	}, []string{"1 alert", "launch m aws/us-east-1", "VcpuLimitExceeded", "skyserve status"}},
	{"a forecast missed by half", func(s *telemetry.Snapshot, _ []health.Peer, _ int) {
		s.Forecast = []telemetry.LoadForecast{{Model: "m", Region: "aws/us-east-1", Deviation: "1.5x the forecast"}}
	}, []string{"1 alert", "forecast m", "1.5x the forecast", "skyserve plan --apply"}},
	{"a spot interruption", func(s *telemetry.Snapshot, _ []health.Peer, _ int) {
		s.Regions[1].Replicas[0].State, s.Regions[1].Replicas[0].Reason = service.StateInterrupted, "at 03:02"
	}, []string{"1 alert", "interruption us-east-1-0", "03:02", "skyserve events"}},
	{"an expired certificate", func(s *telemetry.Snapshot, _ []health.Peer, _ int) {
		ends := s.At.AddDate(0, 0, -1)
		s.Regions[1].Balancers[0].Certificate = &telemetry.Certificate{ExpiresAt: &ends}
	}, []string{"1 critical", "certificate lb-us-east-1-0 public", "expired on 2026-11-25", "balancer.tls"}},
	{"a full disk", func(s *telemetry.Snapshot, _ []health.Peer, _ int) {
		s.Alerts = []telemetry.Alert{{Severity: telemetry.SeverityCritical, Kind: telemetry.AlertStore, Object: "store", Message: "writing to /var/lib/skyserve/store failed: no space left on device", NextStep: "free disk space there"}}
	}, []string{"1 critical", "store", "/var/lib/skyserve/store failed", "free disk space there"}},
	{"a plan that cannot be met", func(s *telemetry.Snapshot, _ []health.Peer, _ int) {
		s.Plan = &telemetry.PlanSummary{At: s.At, Status: "infeasible", Infeasible: []string{"m: quota of L4"}}
	}, []string{"1 alert", "plan", "no plan satisfies the bounds: m: quota of L4", "raise replicas.max"}},
	{"a version skew", func(s *telemetry.Snapshot, peers []health.Peer, _ int) {
		peers[1].Version = "v2"
	}, []string{"1 alert", "version lb-us-east-1-1", "runs v2", "skyserve up --upgrade"}},
}

// Twelve faults at three in the morning are each named on the first screen of 80x24 within 5 s, with the next step.
// The alerts of the store and of launches come from the controller, whose tests inject their faults.
func TestFaultsAreNamedOnFirstScreen(t *testing.T) {
	const before, within = 70, 5
	for _, f := range nights {
		t.Run(f.name, func(t *testing.T) {
			var watch health.Watch
			d := newDesk(t, 80, 24, &telemetry.Snapshot{})
			frame := func(second, after int) string {
				s := nightSnapshot(second)
				peers := []health.Peer{{ID: "lb-eu-west-1-0", Region: "aws/eu-west-1", Seen: true, Version: "v1"}, {ID: "lb-us-east-1-1", Region: "aws/us-east-1", Seen: true, Version: "v1"}}
				if after >= 0 {
					f.inject(&s, peers, after)
				}
				own := s.Regions[1]
				own.Balancers = own.Balancers[:1]
				watch.Observe(health.Observation{
					At: s.At, Service: "chat", Balancer: "lb-us-east-1-0", Version: "v1", Own: own, Peers: peers,
					Review: &telemetry.Review{Plan: s.Plan, Forecast: s.Forecast}, Unmet: s.Unmet(),
				})
				s.Alerts = telemetry.MergeAlerts(s.Alerts, watch.Alerts())
				d.fetch.snapshot = &s
				d.poll(time.Second)
				return d.frame()
			}
			for second := range before {
				if text := frame(second, -1); !strings.Contains(text, "none") || strings.Contains(text, "alert") {
					t.Fatalf("without a fault:\n%s", text)
				}
			}
			var text string
			for after := range within + 1 {
				text = frame(before+after, after)
				missing := false
				for _, want := range f.names {
					missing = missing || !strings.Contains(text, want)
				}
				if !missing {
					return
				}
			}
			t.Errorf("within %d s the screen does not contain all of %q:\n%s", within, f.names, text)
		})
	}
}
