package health

import (
	"os"
	"strings"
	"testing"
	"time"

	"skyserve/internal/service"
	"skyserve/internal/telemetry"
	"skyserve/internal/testkit"
)

// start is the time of the first observation.
var start = time.Date(2026, 11, 26, 3, 0, 0, 0, time.UTC)

// healthy returns the observation of a service without faults after some seconds of traffic: 10 requests a
// second at each of three replicas.
func healthy(second int) Observation {
	pace := 1.0
	n := int64(10 * (second + 1))
	o := Observation{At: start.Add(time.Duration(second) * time.Second), Service: "chat", Balancer: "lb-us-0", Version: "v1", Own: telemetry.RegionSnapshot{
		Name: "aws/us-east-1", Balancers: []telemetry.BalancerSnapshot{{ID: "lb-us-0", State: "READY"}},
		Models: []telemetry.ModelSnapshot{{Model: "m", FirstTokens: 3 * n}}, Outcomes: telemetry.Outcomes{Served: 3 * n},
	}}
	for _, id := range []string{"us-0", "us-1", "us-2"} {
		kv := 0.5
		o.Own.Replicas = append(o.Own.Replicas, telemetry.ReplicaSnapshot{ID: id, Model: "m", GPU: "L4", State: service.StateReady, Sent: n, Pace: &pace, KV: &kv})
	}
	for _, id := range []string{"lb-eu-0", "lb-us-1"} {
		region := service.Region("aws/eu-west-1")
		if id == "lb-us-1" {
			region = "aws/us-east-1"
		}
		o.Peers = append(o.Peers, Peer{ID: id, Region: region, Seen: true, Version: "v1"})
	}
	return o
}

// fault is one injected fault.
type fault struct {
	name string
	// inject changes an observation that is this many seconds after the start of the fault.
	inject func(o *Observation, after int)
	// kind, object and severity are of the alert, says is a part of its message.
	kind, object string
	severity     telemetry.Severity
	says         string
	// within is how many seconds the alert may take.
	within int
}

func number[T any](v T) *T { return &v }

var faults = []fault{
	{"half of the requests fail", func(o *Observation, after int) {
		o.Own.Replicas[1].Failed = int64(5 * (after + 1))
	}, telemetry.AlertErrors, "us-1", telemetry.SeverityCritical, "15 of 50 requests (30 %) in the last 5 s", 3},
	{"15 % of the requests fail", func(o *Observation, after int) {
		o.Own.Replicas[1].Failed = int64(1.5 * float64(after+1))
	}, telemetry.AlertErrors, "us-1", telemetry.SeverityWarning, "in the last minute", 60},
	{"slow", func(o *Observation, _ int) { o.Own.Replicas[2].Pace = number(2.5) }, telemetry.AlertSlow, "us-2", telemetry.SeverityWarning, "2.5 times slower", 0},
	{"ejected", func(o *Observation, _ int) {
		o.Own.Replicas[0].State, o.Own.Replicas[0].Reason = service.StateNotReady, "ejected after 5 consecutive failures, 4.8s remaining"
	}, telemetry.AlertEjection, "us-0", telemetry.SeverityWarning, "5 consecutive failures", 0},
	{"its key is rejected", func(o *Observation, _ int) {
		o.Own.Replicas[0].State, o.Own.Replicas[0].Reason = service.StateNotReady, "401: the engine rejects the key from env:KEY"
	}, telemetry.AlertReplica, "us-0", telemetry.SeverityWarning, "rejects the key", 3},
	{"unready", func(o *Observation, _ int) {
		o.Own.Replicas[0].State, o.Own.Replicas[0].Reason = service.StateNotReady, "connection refused"
	}, telemetry.AlertReplica, "us-0", telemetry.SeverityWarning, "connection refused", 3},
	{"spot interruption", func(o *Observation, _ int) {
		o.Own.Replicas[0].State, o.Own.Replicas[0].Reason = service.StateInterrupted, "interruption at 03:02"
	}, telemetry.AlertInterruption, "us-0", telemetry.SeverityWarning, "03:02", 0},
	{"full KV memory", func(o *Observation, _ int) { o.Own.Replicas[0].KV = number(0.97) }, telemetry.AlertKV, "us-0", telemetry.SeverityWarning, "97 % full", 30},
	{"dead balancer", func(o *Observation, after int) {
		o.Peers[1].Lost, o.Peers[1].LostFor, o.Peers[1].Reason = true, time.Duration(after)*time.Second, "connection refused"
	}, telemetry.AlertBalancer, "lb-us-1", telemetry.SeverityCritical, "connection refused", 3},
	{"partitioned region", func(o *Observation, after int) {
		o.Peers[0].Lost, o.Peers[0].LostFor, o.Peers[0].Reason = true, time.Duration(after)*time.Second, "i/o timeout"
	}, telemetry.AlertBalancer, "lb-eu-0", telemetry.SeverityCritical, "no balancer of aws/eu-west-1 responds", 3},
	{"balancer that never responded", func(o *Observation, after int) {
		o.Peers[0].Lost, o.Peers[0].Seen, o.Peers[0].LostFor = true, false, time.Duration(after)*time.Second
	}, telemetry.AlertBalancer, "lb-eu-0", telemetry.SeverityCritical, "no heartbeat", 180},
	{"version skew", func(o *Observation, _ int) { o.Peers[1].Version = "v2" }, telemetry.AlertVersion, "lb-us-1", telemetry.SeverityWarning, "runs v2, but lb-us-0 runs v1", 0},
	{"expired certificate", func(o *Observation, _ int) {
		o.Own.Balancers[0].Certificate = &telemetry.Certificate{ExpiresAt: number(start)}
	}, telemetry.AlertCertificate, "lb-us-0 public", telemetry.SeverityCritical, "expired on 2026-11-26", 0},
	{"certificate near its end", func(o *Observation, _ int) {
		o.Own.Balancers[0].Certificate = &telemetry.Certificate{ExpiresAt: number(start.AddDate(0, 0, 13)), Problem: "rate limited"}
	}, telemetry.AlertCertificate, "lb-us-0 public", telemetry.SeverityWarning, "rate limited", 0},
	{"requests fail", func(o *Observation, after int) {
		o.Own.Outcomes.Failed = int64(2 * (after + 1))
	}, telemetry.AlertFailed, "lb-us-0", telemetry.SeverityWarning, "5xx", 5},
	{"half of the clients' requests fail", func(o *Observation, after int) {
		o.Own.Outcomes.Failed = int64(30 * (after + 1))
	}, telemetry.AlertFailed, "lb-us-0", telemetry.SeverityCritical, "5xx", 5},
	{"requests are limited", func(o *Observation, after int) {
		o.Own.Outcomes.Limited = int64(20 * (after + 1))
	}, telemetry.AlertLimited, "lb-us-0", telemetry.SeverityWarning, "429", 5},
	{"requests are retried", func(o *Observation, after int) {
		o.Own.Outcomes.Retries = int64(20 * (after + 1))
	}, telemetry.AlertRetries, "lb-us-0", telemetry.SeverityWarning, " retries for ", 5},
	{"late first tokens", func(o *Observation, after int) { o.Own.Models[0].SLOMisses = int64(10 * (after + 1)) }, telemetry.AlertSLO, "m", telemetry.SeverityWarning, "burn rate", 5},
	{"all first tokens late", func(o *Observation, after int) { o.Own.Models[0].SLOMisses = int64(30 * (after + 1)) }, telemetry.AlertSLO, "m", telemetry.SeverityCritical, "burn rate", 10},
	{"full queue", func(o *Observation, after int) {
		o.Own.Queued, o.Own.Models[0].Queued, o.Own.QueueOldestMillis = 80, 80, number(int64(1000*(after+8)))
	}, telemetry.AlertQueue, "lb-us-0", telemetry.SeverityWarning, "80 requests queued for up to 1", 5},
	{"plan that cannot be met", func(o *Observation, _ int) {
		o.Review = &telemetry.Review{Plan: &telemetry.PlanSummary{Status: "infeasible", Infeasible: []string{"m: quota of L4"}}}
	}, telemetry.AlertPlan, "plan", telemetry.SeverityWarning, "quota of L4", 0},
	{"planning fails", func(o *Observation, _ int) {
		o.Review = &telemetry.Review{Plan: &telemetry.PlanSummary{Error: "no history"}}
	}, telemetry.AlertPlan, "plan", telemetry.SeverityWarning, "no history", 0},
	{"plan not carried out", func(o *Observation, _ int) {
		o.Review = &telemetry.Review{Plan: &telemetry.PlanSummary{Status: "optimal"}}
		o.Unmet = []telemetry.Unmet{{Model: "m", Region: "aws/us-east-1", TargetReplicas: telemetry.TargetReplicas{GPU: "L4", Count: 4}, Running: 3}}
	}, telemetry.AlertPlan, "targets", telemetry.SeverityWarning, "us-east-1 runs 3 of 4 on L4", 600},
	{"forecast missed by half", func(o *Observation, _ int) {
		o.Review = &telemetry.Review{Forecast: []telemetry.LoadForecast{{Model: "m", Region: "aws/us-east-1", Deviation: "1.5x the forecast"}}}
	}, telemetry.AlertForecast, "m", telemetry.SeverityWarning, "1.5x the forecast", 0},
}

// Replicas without a known GPU, and those of static regions, may have different ones: a replica is called slow
// only if it is slower than the others and has become slower than it was.
func TestMixedHardwareIsNotSlow(t *testing.T) {
	for region, gpu := range map[service.Region]string{"aws/us-east-1": "", "static/paris": "L4"} {
		t.Run(string(region), func(t *testing.T) { testMixedHardware(t, region, gpu) })
	}
}

func testMixedHardware(t *testing.T, region service.Region, gpu string) {
	t.Helper()
	var w Watch
	observe := func(second int, faster, slower float64) []telemetry.Alert {
		o := healthy(second)
		o.Own.Name = region
		for i := range o.Own.Replicas {
			o.Own.Replicas[i].GPU, o.Own.Replicas[i].Pace = gpu, number(faster)
		}
		o.Own.Replicas[2].Pace = number(slower)
		w.Observe(o)
		return w.Alerts()
	}
	for s := range 120 { // the older machine is four to six times slower, as its load changes
		if found := observe(s, 1, 4+float64(s%3)); len(found) > 0 {
			t.Fatalf("after %d s: %+v", s, found)
		}
	}
	if found := observe(120, 12, 12); len(found) > 0 {
		t.Errorf("all become slower: %+v", found)
	}
	for s := 121; s < 900; s++ {
		found := observe(s, 1, 20)
		if len(found) != 1 || found[0].Kind != telemetry.AlertSlow || found[0].Object != "us-2" || !strings.Contains(found[0].Message, "20.0 times slower than the other replicas of m, and 4.0 times slower than before") {
			t.Fatalf("after %d s it is slow: %+v", s, found)
		}
	}
	if found := observe(900, 1, 6); len(found) > 0 {
		t.Errorf("it recovered: %+v", found)
	}
}

// An alert remains critical while the last minute is, also when its last seconds are better.
func TestCriticalMinuteIsNotHiddenByBetterSeconds(t *testing.T) {
	var w Watch
	var o Observation
	for s := range 150 {
		o = healthy(s)
		bad, better := max(0, min(s, 139)-89), max(0, s-139) // 50 seconds, then 10
		o.Own.Replicas[1].Failed = int64(5*bad + better)     // of 10 a second
		o.Own.Outcomes.Failed = int64(15*bad + 2*better)     // besides 30 a second
		o.Own.Models[0].SLOMisses = int64(18*bad + 7*better) // of 30 a second
		w.Observe(o)
	}
	want := map[string]string{telemetry.AlertErrors: "43 %", telemetry.AlertFailed: "30 %", telemetry.AlertSLO: "54 %"}
	for _, a := range w.Alerts() {
		if part, ok := want[a.Kind]; ok {
			delete(want, a.Kind)
			if a.Severity != telemetry.SeverityCritical || !strings.Contains(a.Message, part) || !strings.Contains(a.Message, "last minute") {
				t.Errorf("%s %s: %s", a.Severity, a.Kind, a.Message)
			}
		}
	}
	if len(want) > 0 {
		t.Errorf("no alerts of %v in %+v", want, w.Alerts())
	}
}

// `skyserve replica drain` works only for a service without regions in clouds, `skyserve replica add` only outside static regions.
func TestStepsWorkInTheirRegion(t *testing.T) {
	for _, c := range []struct {
		own, other         service.Region
		stop, add, without string
	}{
		{"local/us", "local/eu", "skyserve replica drain us-1", "skyserve replica add us'", "POST"},
		{"static/paris", "static/rome", "skyserve replica drain us-1", "add a machine to service.yaml", "replica add"},
		{"static/paris", "gcp/us-central1", "POST /workers/us-1/drain", "add a machine to service.yaml", "skyserve replica"},
		{"aws/us-east-1", "aws/eu-west-1", "POST /workers/us-1/drain", "skyserve replica add us-east-1'", "replica drain"},
	} {
		o := healthy(90)
		o.Own.Name = c.own
		for i := range o.Peers {
			o.Peers[i].Region = c.other
		}
		steps := o.stopSending("us-1") + ", " + o.addReplica("m")
		if !strings.Contains(steps, c.stop) || !strings.Contains(steps, c.add) || strings.Contains(steps, c.without) {
			t.Errorf("%s beside %s: %s", c.own, c.other, steps)
		}
	}
}

// A replica that fails its checks because of the configuration has a step that changes the configuration.
func TestStepsNameTheConfiguration(t *testing.T) {
	const log = "read the log of its engine, which you started; it receives requests again as soon as it responds"
	for _, c := range []struct {
		misconfigured service.Misconfiguration
		standalone    bool
		want          string
	}{
		{service.MisconfiguredModel, false, "set models[].name in service.yaml to a name that the engine serves, then run 'skyserve up'"},
		{service.MisconfiguredModel, true, "set the replica's model to a name that the engine serves"},
		{service.MisconfiguredKey, false, "set models[].engine.api_key in service.yaml, or api_key of the replica's endpoint, to env:NAME or file:PATH, then run 'skyserve up'"},
		{service.MisconfiguredKey, true, "set the key of the engine with --replica-key, or api_key in the file of --config"},
		{"", false, log},
	} {
		o := healthy(90)
		o.Own.Name, o.Standalone = "static/paris", c.standalone
		o.Own.Replicas[1].State, o.Own.Replicas[1].Reason = service.StateNotReady, "any text, such as one of an engine: the engine rejects the key"
		o.Misconfigured = map[string]service.Misconfiguration{o.Own.Replicas[1].ID: c.misconfigured, "us-9": service.MisconfiguredKey}
		if found := excludedReplicas(nil, &o); len(found) != 1 || found[0].NextStep != c.want {
			t.Errorf("%q: got %+v, want %q", c.misconfigured, found, c.want)
		}
	}
}

// `skyserve replica add` requires the model if the service has several.
func TestStepsNameTheModelOfSeveral(t *testing.T) {
	full := 0.97
	for _, c := range []struct {
		models []telemetry.ModelSnapshot
		want   string
	}{
		{[]telemetry.ModelSnapshot{{Model: "a", Queued: 1}}, "replica add us'"},
		{[]telemetry.ModelSnapshot{{Model: "a", Queued: 1}, {Model: "b", Queued: 2}, {Model: "c", Queued: 3, Cold: true}}, "replica add us --model b'"},
		{[]telemetry.ModelSnapshot{{Model: "a", Queued: 1}, {Model: "b", Deferred: 2}}, "replica add us --model a'"},
		{[]telemetry.ModelSnapshot{{Model: "a"}, {Model: "b", Deferred: 2}}, "replica add us --model b'"},
	} {
		oldest := time.Minute.Milliseconds()
		var w Watch
		for s := range 90 {
			o := healthy(s)
			o.Own.Name, o.Own.Models, o.Own.QueueOldestMillis = "local/us", c.models, &oldest
			o.Own.Replicas[0].Model, o.Own.Replicas[0].KV = "a", &full
			w.Observe(o)
		}
		steps := map[string]string{}
		for _, a := range w.Alerts() {
			steps[a.Kind] = a.NextStep
		}
		if step := steps[telemetry.AlertQueue]; !strings.Contains(step, c.want) {
			t.Errorf("queue alert with %+v: got %q, want %q", c.models, step, c.want)
		}
		if step, several := steps[telemetry.AlertKV], len(c.models) > 1; step == "" || strings.Contains(step, "--model a'") != several {
			t.Errorf("kv alert with %+v: got %q", c.models, step)
		}
	}
}

// Another replica does not help while those that exist are not ready, for example because they serve another model.
func TestQueueStepNamesReplicasThatAreNotReady(t *testing.T) {
	for _, c := range []struct {
		model      string // of the replicas
		state      service.ReplicaState
		standalone bool
		want       string
	}{
		{"m", service.StateStarting, false, "no replica of m is ready here: 'skyserve replica list' shows why"},
		{"m", service.StateStarting, true, "no replica of m is ready here: 'skyserve top --admin URL' shows why"},
		{"", service.StateNotReady, false, "no replica of m is ready here: 'skyserve replica list' shows why"},
		{"m", service.StateReady, false, "add a replica with 'skyserve replica add us-east-1'; 'skyserve plan' shows how many are missing"},
		{"other", service.StateReady, false, "add a replica with 'skyserve replica add us-east-1'; 'skyserve plan' shows how many are missing"},
	} {
		o := healthy(0)
		o.Standalone, o.Own.Models, o.Own.QueueOldestMillis = c.standalone, []telemetry.ModelSnapshot{{Model: "m", Queued: 1}}, number(int64(12_000))
		for i := range o.Own.Replicas {
			o.Own.Replicas[i].Model, o.Own.Replicas[i].State = c.model, c.state
		}
		if got := queuedRequests(nil, &o); len(got) != 1 || got[0].NextStep != c.want {
			t.Errorf("replicas of %q, %s: got %+v, want %q", c.model, c.state, got, c.want)
		}
	}
}

// The next steps of a balancer that was started by hand name no command that needs a deployed service.
func TestStandaloneStepsWork(t *testing.T) {
	for _, f := range faults {
		var w Watch
		alerts := 0
		for s := range 90 + f.within + 1 {
			o := healthy(s)
			if s >= 90 {
				f.inject(&o, s-90)
			}
			o.Standalone = true
			if o.Review != nil || o.Unmet != nil { // only a controller makes plans
				alerts++
				continue
			}
			w.Observe(o)
			for _, a := range w.Alerts() {
				alerts++
				for _, command := range []string{"logs", "replica", "status", "up", "plan", "events"} {
					if strings.Contains(a.NextStep, "skyserve "+command) || a.NextStep == "" {
						t.Errorf("%s: got %q", f.name, a.NextStep)
					}
				}
			}
		}
		if alerts == 0 {
			t.Errorf("%s: no alert", f.name)
		}
	}
}

// A service without faults has no alerts. Every fault is named in time, with its object and the next step, and
// its alert ends with it.
func TestEveryFaultIsNamedInTime(t *testing.T) {
	const quiet = 90
	for _, f := range faults {
		t.Run(f.name, func(t *testing.T) {
			var w Watch
			for s := range quiet {
				if w.Observe(healthy(s)); len(w.Alerts()) > 0 {
					t.Fatalf("%d s, without a fault: %+v", s, w.Alerts())
				}
			}
			var found *telemetry.Alert
			after := 0
			for ; after <= f.within && found == nil; after++ {
				o := healthy(quiet + after)
				f.inject(&o, after)
				w.Observe(o)
				for _, a := range w.Alerts() {
					if a.Kind == f.kind && a.Object == f.object && a.Severity == f.severity {
						found = &a
					}
				}
			}
			if found == nil {
				t.Fatalf("not named within %d s: %+v", f.within, w.Alerts())
			}
			if !strings.Contains(found.Message, f.says) || found.NextStep == "" || found.Since == nil {
				t.Errorf("got %+v, want %q", *found, f.says)
			}
			last := healthy(quiet + after)
			f.inject(&last, after)
			for s := 1; s <= 70; s++ { // the fault ends, its counters stay
				o := healthy(quiet + after + s)
				o.Own.Outcomes.Failed, o.Own.Outcomes.Limited, o.Own.Outcomes.Retries = last.Own.Outcomes.Failed, last.Own.Outcomes.Limited, last.Own.Outcomes.Retries
				for i := range o.Own.Replicas {
					o.Own.Replicas[i].Failed = last.Own.Replicas[i].Failed
				}
				o.Own.Models[0].SLOMisses = last.Own.Models[0].SLOMisses
				w.Observe(o)
			}
			if got := w.Alerts(); len(got) > 0 {
				t.Errorf("a minute after its end: %+v", got)
			}
		})
	}
}

// Misses that are too few for a minute use up the allowed share within hours. The alert ends with them, long before
// they leave the window.
func TestSlowBurn(t *testing.T) {
	testkit.NotUnderRace(t, "observes in one goroutine")
	for _, tt := range []struct {
		name  string
		share float64 // of first tokens that are late, from the start
		says  string  // "" = no alert
		by    time.Duration
		ends  time.Duration
	}{
		{"below the target", 0.03, "", 0, 0},
		{"9 %", 0.09, "9 % of first tokens in aws/us-east-1 missed the TTFT target in the last hour: burn rate 1.8", 6 * time.Minute, 31 * time.Minute},
		{"6 %", 0.06, "6 % of first tokens in aws/us-east-1 missed the TTFT target in the last 6 hours: burn rate 1.2", 31 * time.Minute, 31 * time.Minute},
	} {
		var w Watch
		late := 0.0
		says := func(second int, share float64) string {
			o := healthy(second)
			late += share * 30
			o.Own.Models[0].SLOMisses = int64(late)
			w.Observe(o)
			for _, a := range w.Alerts() {
				return a.Message
			}
			return ""
		}
		second := 0
		for ; second < 4*3600; second++ {
			got := says(second, tt.share)
			if at := time.Duration(second) * time.Second; got != "" && tt.says == "" || tt.says != "" && at >= tt.by && !strings.Contains(got, tt.says) {
				t.Fatalf("%s, %v: got %q", tt.name, at, got)
			}
		}
		for end := second + int(tt.ends.Seconds()); second < end; second++ {
			says(second, 0)
		}
		if got := says(second, 0); got != "" {
			t.Errorf("%s: %v after its end: %q", tt.name, tt.ends, got)
		}
		if len(w.minutes) > 361 || len(w.samples) > 62 {
			t.Errorf("%d samples of minutes, %d of seconds are kept", len(w.minutes), len(w.samples))
		}
	}
}

// A replica that is attached again counts from zero; the growth of its counters is never negative.
func TestCountersMayStartAgain(t *testing.T) {
	var w Watch
	for s := range 20 {
		o := healthy(s)
		o.Own.Replicas[0].Failed = 1
		if s >= 10 {
			o.Own.Replicas[0].Attachment, o.Own.Replicas[0].Sent, o.Own.Replicas[0].Failed = 1, int64(s-9), 0
			o.Own.Models[0].FirstTokens, o.Own.Outcomes = 0, telemetry.Outcomes{}
		}
		if w.Observe(o); len(w.Alerts()) > 0 {
			t.Fatalf("%d s: %+v", s, w.Alerts())
		}
	}
}

// A replica that is attached again is judged by its attempts since then, also when it has more than before.
func TestReattachedReplicaIsJudgedAnew(t *testing.T) {
	var w Watch
	for s := range 61 {
		o := healthy(s)
		r := &o.Own.Replicas[0]
		r.Attachment, r.Sent = 1, 59
		if s > 30 { // two requests a second, of which a tenth fails
			r.Attachment, r.Sent, r.Failed = 2, int64(2*(s-30)), int64((s-30)/5)
		}
		w.Observe(o)
	}
	found := w.Alerts()
	if len(found) != 1 || found[0].Severity != telemetry.SeverityWarning || !strings.Contains(found[0].Message, "failed 6 of 60 requests (10 %) in the last minute") {
		t.Errorf("got %+v", found)
	}
}

// docs/alerts.md documents every kind.
func TestKindsAreDocumented(t *testing.T) {
	guide, err := os.ReadFile("../../docs/alerts.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, kind := range telemetry.AlertKinds() {
		if !strings.Contains(string(guide), "\n| `"+kind+"` |") {
			t.Errorf("docs/alerts.md does not document the kind %q", kind)
		}
	}
	tested := map[string]bool{}
	for _, f := range faults {
		tested[f.kind] = true
	}
	for _, kind := range []string{
		telemetry.AlertErrors, telemetry.AlertSlow, telemetry.AlertEjection, telemetry.AlertInterruption, telemetry.AlertKV, telemetry.AlertBalancer,
		telemetry.AlertVersion, telemetry.AlertFailed, telemetry.AlertLimited, telemetry.AlertRetries, telemetry.AlertSLO, telemetry.AlertQueue, telemetry.AlertPlan, telemetry.AlertForecast,
	} {
		if !tested[kind] {
			t.Errorf("no fault of the kind %q is injected", kind)
		}
	}
}

// The wait in the alert leaves out deferred requests that wait for spare memory, and cold models. So the message counts
// deferred requests apart, and omits those for cold models.
func TestQueueAlertCountsWhatItsAgeCovers(t *testing.T) {
	for _, c := range []struct {
		models []telemetry.ModelSnapshot
		want   string
	}{
		{[]telemetry.ModelSnapshot{{Queued: 1}}, "1 request queued for up to 12s"},
		{[]telemetry.ModelSnapshot{{Queued: 3}, {Queued: 50, Cold: true}, {Queued: 2, Deferred: 7}}, "5 requests and 7 deferred requests queued for up to 12s; waits of deferred requests for spare memory do not count"},
		{[]telemetry.ModelSnapshot{{Deferred: 1}}, "1 deferred request queued for up to 12s; waits of deferred requests for spare memory do not count"},
	} {
		o := healthy(0)
		o.Own.Models, o.Own.QueueOldestMillis = c.models, number(int64(12_000))
		for _, m := range c.models {
			o.Own.Queued += m.Queued + m.Deferred
		}
		if got := queuedRequests(nil, &o); len(got) != 1 || got[0].Message != c.want {
			t.Errorf("got %+v, want %q", got, c.want)
		}
	}
}
