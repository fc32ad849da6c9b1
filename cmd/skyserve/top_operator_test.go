package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"skyserve/internal/service"
	"skyserve/internal/telemetry"
	"skyserve/internal/testkit"
	"skyserve/lbd/core"
	"skyserve/lbd/record"
	"skyserve/provision"
	"skyserve/tui"
)

// adminOf serves responses by path, as a balancer's admin API.
func adminOf(t *testing.T, responses map[string]any) *telemetry.Client {
	t.Helper()
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		response, has := responses[r.URL.Path]
		if !has {
			http.Error(w, `{"error":{"message":"not here"}}`, http.StatusNotFound)
			return
		}
		if text, plain := response.(string); plain {
			fmt.Fprint(w, text)
			return
		}
		json.NewEncoder(w).Encode(response)
	}))
	t.Cleanup(srv.Close)
	return telemetry.NewClient(srv.URL, nil)
}

// operatorBy returns an operator of balancers given by address only.
func operatorBy(t *testing.T, admins ...*telemetry.Client) *topOperator {
	t.Helper()
	t.Setenv("SKYSERVE_HOME", t.TempDir())
	shown := &telemetry.Snapshot{Service: "chat", Plan: &telemetry.PlanSummary{Status: "optimal"}}
	return newTopOperator("", true, admins, func() *telemetry.Snapshot { return shown })
}

var dead = telemetry.NewClient("http://127.0.0.1:1", nil)

func TestTopRequestsOfAllBalancers(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	row := func(id, balancer, from string, second int, target string, forwarded bool) telemetry.RequestSummary {
		reason := "prefix_match"
		if forwarded {
			reason = "offload"
		}
		return telemetry.RequestSummary{
			Request: id, At: at.Add(time.Duration(second) * time.Second), Balancer: balancer, From: from, State: "sent",
			Target: target, Forwarded: forwarded, Policy: "skylb", Reason: reason,
		}
	}
	list := func(rows ...telemetry.RequestSummary) map[string]any {
		return map[string]any{"/v1/requests": map[string]any{"requests": rows}}
	}
	us := adminOf(t, list(row("r3", "lb-us-0", "", 3, "us-0", false), row("r1", "lb-us-0", "", 1, "lb-eu-0", true)))
	eu := adminOf(t, list(row("r2", "lb-eu-0", "", 2, "eu-0", false), row("r1", "lb-eu-0", "lb-us-0", 1, "eu-0", false)))
	for limit, want := range map[int][]string{
		0: nil,
		2: {"r3 lb-us-0", "r2 lb-eu-0"},
		9: {"r3 lb-us-0", "r2 lb-eu-0", "r1 lb-eu-0", "r1 lb-us-0"}, // a forwarded request is listed by both balancers
	} {
		rows, err := operatorBy(t, us, dead, eu).Requests(t.Context(), limit)
		var got []string
		for _, r := range rows {
			got = append(got, r.Request+" "+r.Balancer)
		}
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("limit %d: got %q, %v; want %q", limit, got, err, want)
		}
		if len(rows) == 4 && (rows[3].Why != "no local replica available; forwarded to a peer with capacity" || rows[2].From != "lb-us-0") {
			t.Errorf("got %+v", rows[2:])
		}
	}
	if _, err := operatorBy(t, dead).Requests(t.Context(), 5); err == nil || !strings.Contains(err.Error(), "fetching requests: GET http://127.0.0.1:1/v1/requests") {
		t.Errorf("no balancer responds: %v", err)
	}
}

func TestTopStoryMatchesExplain(t *testing.T) {
	d := record.RequestRecord{
		Request: "r1", Balancer: "lb-us-0", Region: "local/us", Model: "llama", Tier: "IW-F", State: "finished", Status: 200,
		Attempts: []record.Attempt{{Kind: core.ActionDispatch, Target: "us-0", Decision: &core.Decision{Policy: "skylb", Reason: "prefix_match"}}},
	}
	admin := adminOf(t, map[string]any{"/v1/decisions/r1": d, "/v1/decisions": telemetry.DecisionMemory{Balancer: "lb-us-0", Region: "local/us"}})
	o := operatorBy(t, admin)
	page, err := o.Explain(t.Context(), "r1", 60)
	if err != nil || !strings.Contains(page, "sent to replica us-0") || strings.Contains(page, "\x1b") {
		t.Errorf("got %q, %v", page, err)
	}
	page, err = o.Explain(t.Context(), "r2", 60)
	if want := "request \"r2\" not found on any reachable balancer\n  lb-us-0 in local/us: none recorded yet\n\npass the admin addresses of all balancers that may have received it (--admin URL,URL)\n"; err != nil || !strings.HasPrefix(page, want) {
		t.Errorf("got %q, %v", page, err)
	}
}

func TestTopLoadUsesForecastUnit(t *testing.T) {
	now := time.Unix(1_000_000*60+30, 0)
	point := func(minute int64, region service.Region, tier service.Tier, prompt, cached int64) telemetry.Point {
		return telemetry.Point{Minute: minute, Balancer: "lb-" + region.ShortName(), Region: region, Model: "llama", Tier: tier, PromptTokens: prompt, CachedTokens: cached}
	}
	admin := adminOf(t, map[string]any{"/v1/history": map[string]any{"complete": true, "points": []telemetry.Point{
		point(999_997, "local/us", service.TierFast, 600, 60), point(999_997, "local/us", service.TierNormal, 120, 0),
		point(999_998, "local/eu", service.TierFast, 60, 60),
		point(999_999, "local/us", service.TierFast, 60, 90), point(999_999, "local/us", service.TierDeferred, 6000, 0),
		point(1_000_000, "local/us", service.TierFast, 9999, 0), // current minute
	}}})
	o := operatorBy(t, dead, admin)
	o.now = func() time.Time { return now }
	series, err := o.Load(t.Context())
	if err != nil || len(series) != 2 {
		t.Fatalf("got %+v, %v", series, err)
	}
	for i, want := range []tui.LoadSeries{
		{Model: "llama", Region: "local/eu", TPS: []float64{math.NaN(), 0, math.NaN()}},
		{Model: "llama", Region: "local/us", TPS: []float64{11, math.NaN(), 0}},
	} {
		s := series[i]
		if s.Model != want.Model || s.Region != want.Region || fmt.Sprint(s.TPS) != fmt.Sprint(want.TPS) || s.Step != time.Minute || s.Start.Unix() != 999_997*60 {
			t.Errorf("got %+v, want %v", s, want.TPS)
		}
	}
	if _, err := operatorBy(t, dead).Load(t.Context()); err == nil || !strings.Contains(err.Error(), "reading the history: GET") {
		t.Errorf("no balancer responds: %v", err)
	}
	none := operatorBy(t, adminOf(t, map[string]any{"/v1/history": map[string]any{"points": []telemetry.Point{}}}))
	if series, err := none.Load(t.Context()); err != nil || len(series) != 0 {
		t.Errorf("before any request: %v, %v", series, err)
	}
}

func TestTopSpecOfBalancer(t *testing.T) {
	o := operatorBy(t, dead, adminOf(t, map[string]any{"/v1/service": "name: chat\n"}))
	if text, err := o.Spec(t.Context()); err != nil || text != "name: chat\n" {
		t.Errorf("got %q, %v", text, err)
	}
	if _, err := operatorBy(t, adminOf(t, nil)).Spec(t.Context()); err == nil || !strings.Contains(err.Error(), "reading service.yaml: GET") {
		t.Errorf("got %v", err)
	}
}

// On other machines, an action fails with the command to run on the deploying machine of
// the service.
func TestActionsNameCommandForOtherMachine(t *testing.T) {
	o := operatorBy(t, dead)
	const there, onIt = ": the service was not deployed from this machine; run 'skyserve ", "' on the machine from which it was deployed"
	for order, want := range map[tui.Action]string{
		{Verb: tui.VerbDrain, Replica: "us-1"}:                "draining us-1" + there + "replica drain us-1 --service chat" + onIt,
		{Verb: tui.VerbUndrain, Replica: "us-1"}:              "undraining us-1" + there + "replica drain us-1 --undo --service chat" + onIt,
		{Verb: tui.VerbDonate, Replica: "us-1"}:               "donating us-1" + there + "replica donate us-1 --service chat" + onIt,
		{Verb: tui.VerbReclaim, Replica: "us-1"}:              "reclaiming us-1" + there + "replica reclaim us-1 --service chat" + onIt,
		{Verb: tui.VerbApply, Plan: &telemetry.PlanSummary{}}: "applying the plan" + there + "plan chat --apply" + onIt,
		{Verb: "sell", Replica: "us-1"}:                       `unknown action "sell"`,
	} {
		if message, err := o.Perform(t.Context(), order); err == nil || err.Error() != want || message != "" {
			t.Errorf("%v: got %q, %v; want %s", order, message, err, want)
		}
	}
	if _, err := o.Logs(t.Context(), "us-1", 5); err == nil || err.Error() != "reading the log of us-1"+there+"logs chat us-1"+onIt {
		t.Errorf("got %v", err)
	}
	if spec, err := o.Deployed(t.Context()); spec != nil || err != nil {
		t.Errorf("deployed here: %v, %v", spec, err)
	}
	o.snapshot = func() *telemetry.Snapshot { return nil }
	if _, err := o.Perform(t.Context(), tui.Action{Verb: tui.VerbApply}); err == nil || err.Error() != "applying the plan: there is no plan yet" {
		t.Errorf("got %v", err)
	}
	if _, err := o.Perform(t.Context(), tui.Action{Verb: tui.VerbDrain, Replica: "us-1"}); err == nil || !strings.HasSuffix(err.Error(), there+"replica drain us-1"+onIt) {
		t.Errorf("without a name: %v", err)
	}
}

// Repeated requests for a log query the machine each time, but list the cloud only when the cache
// has expired.
func TestLogCacheExpires(t *testing.T) {
	var book logCache
	found, now := 0, time.Unix(1_700_000_000, 0)
	for _, step := range []struct {
		id    string
		after time.Duration
		found int
	}{{"us-0", 0, 1}, {"us-0", time.Second, 1}, {"us-1", 0, 2}, {"us-1", logCacheTTL - 1, 2}, {"us-1", 1, 3}} {
		now = now.Add(step.after)
		_, err := book.tail(t.Context(), step.id, 5, now, func() (*machineLogs, error) {
			found++
			return &machineLogs{wanted: []provision.Object{{ID: step.id}}}, nil
		})
		if err == nil || err.Error() != "reading the log of "+step.id+": it has no address" || found != step.found {
			t.Errorf("%s after %s: %v, looked up %d times, want %d", step.id, step.after, err, found, step.found)
		}
	}
	_, err := book.tail(t.Context(), "us-9", 5, now, func() (*machineLogs, error) { return nil, os.ErrPermission })
	if !errors.Is(err, os.ErrPermission) {
		t.Errorf("got %v", err)
	}
}

const ordersYAML = `name: orders
models: [{name: org/m, engine: {kind: sim, speed: 20}, gpus: [{type: L4, tps: 800}]}]
regions:
  - {name: local/us, replicas: {min: 1, max: 3}}
local: {port: %d}
`

// command runs the command line in this process with the test's state directory.
func command(t *testing.T, args ...string) {
	t.Helper()
	if code := run(args); code != exitOK {
		t.Fatalf("skyserve %s: exit code %d", strings.Join(args, " "), code)
	}
}

// On the machine from which a service was deployed, an action does what its command does,
// whether the dashboard was given a name or an address.
func TestActionsOnRunningService(t *testing.T) {
	testkit.Slow(t)
	t.Setenv("SKYSERVE_HOME", t.TempDir())
	t.Chdir(t.TempDir())
	spec := fmt.Sprintf(ordersYAML, testkit.LocalPort())
	if err := os.WriteFile("service.yaml", []byte(spec), 0o600); err != nil {
		t.Fatal(err)
	}
	command(t, "up", "service.yaml")
	t.Cleanup(func() { command(t, "down", "orders") })
	name, admins, err := findAdmins(t.Context(), "orders", nil)
	if err != nil {
		t.Fatal(err)
	}
	shown, err := admins[0].Snapshot(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	byName := newTopOperator(name, false, admins, func() *telemetry.Snapshot { return shown })
	byAddress := newTopOperator("", true, admins, byName.snapshot)

	more := telemetry.PlanChange{Model: "org/m", Region: "local/us", GPU: "L4", Current: 1, Delta: 1, Planned: 2}
	apply := tui.Action{Verb: tui.VerbApply, Plan: &telemetry.PlanSummary{At: time.Now(), Status: "optimal", Changes: []telemetry.PlanChange{more}}}
	for _, step := range []struct {
		o             *topOperator
		order         tui.Action
		message, fail string
	}{
		{byName, apply, "orders: plan applied", ""},
		{byName, apply, "", "applying the plan: replicas of org/m in local/us on L4: the plan was made from 1, but there are 2 now: wait for the next plan, which takes the change into account"},
		{byName, tui.Action{Verb: tui.VerbDrain, Replica: "us-1"}, "us-1 receives no new requests", ""},
		{byName, tui.Action{Verb: tui.VerbDrain, Replica: "us-1"}, "us-1: no change", ""},
		{byAddress, tui.Action{Verb: tui.VerbUndrain, Replica: "us-1"}, "us-1 receives requests again", ""},
		{byAddress, tui.Action{Verb: tui.VerbDonate, Replica: "us-1"}, "us-1 donated", ""},
		{byName, tui.Action{Verb: tui.VerbReclaim, Replica: "us-1"}, "us-1 reclaimed", ""},
		{byName, tui.Action{Verb: tui.VerbDrain, Replica: "us-9"}, "", `draining us-9: the service has no replica "us-9": 'skyserve replica list' shows the service's replicas`},
	} {
		message, err := step.o.Perform(t.Context(), step.order)
		if got := fmt.Sprint(err); message != step.message || step.fail == "" && err != nil || step.fail != "" && got != step.fail {
			t.Fatalf("%v: got %q, %v; want %q, %q", step.order, message, err, step.message, step.fail)
		}
	}
	if lines, err := byName.Logs(t.Context(), "lb-us-0", 3); err != nil || len(lines) == 0 || len(lines) > 3 {
		t.Errorf("the log: %q, %v", lines, err)
	}
	if _, err := byName.Logs(t.Context(), "us-9", 3); err == nil || !strings.Contains(err.Error(), "orders has no balancer or replica \"us-9\": its balancers and replicas: lb-us-0, ") {
		t.Errorf("a missing log: %v", err)
	}
	if deployed, err := byAddress.Deployed(t.Context()); err != nil || deployed == nil || deployed.BoundsFor("org/m", "local/us") != (service.Bounds{Min: 1, Max: 3}) {
		t.Errorf("the deployed service: %+v, %v", deployed, err)
	}
	if text, err := byName.Spec(t.Context()); err != nil || text != spec {
		t.Errorf("the service.yaml: %q, %v", text, err)
	}
}

// The dashboard shows no quotas and has no prompt: over quota, its error names the command that has both.
func TestTopNamesCommandOverQuota(t *testing.T) {
	testkit.Slow(t)
	e := emulate(t)
	for _, pair := range e.command().Env {
		name, value, _ := strings.Cut(pair, "=")
		t.Setenv(name, value)
	}
	e.skyserve(exitOK, append(e.upOf(keptService), "--yes")...)
	e.awaitStates(map[string]service.ReplicaState{"us-east-1-0": service.StateReady})
	e.aws.Configure(func() {
		e.aws.QuotaLimits = map[string]float64{"L-DB2E81BA": 0, "L-3819A6DF": 0, "L-1216C47A": 64, "L-34B43A08": 0}
	})
	name, admins, err := findAdmins(t.Context(), "chat", nil)
	if err != nil {
		t.Fatal(err)
	}
	o := newTopOperator(name, false, admins, func() *telemetry.Snapshot { return nil })
	o.clouds = cloudFlags{endpointAWS: e.url, endpointGCP: e.google}
	more := telemetry.PlanChange{Model: "m", Region: "aws/us-east-1", GPU: "L4", Capacity: service.CapacitySpot, Current: 1, Delta: 1, Planned: 2}
	_, err = o.Perform(t.Context(), tui.Action{Verb: tui.VerbApply, Plan: &telemetry.PlanSummary{At: time.Now(), Status: "optimal", Changes: []telemetry.PlanChange{more}}})
	const want = "applying the plan: the plan needs more VMs than the account's quotas allow: run 'skyserve plan chat --apply' in a shell: it shows the quotas and reservations, and asks whether to apply the plan anyway"
	if got := errorText(err); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
