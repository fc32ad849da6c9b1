package lbd

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"skyserve/internal/identity"
	"skyserve/internal/service"
	"skyserve/internal/store"
	"skyserve/internal/telemetry"
	"skyserve/internal/testkit"
)

// guide is docs/metrics.md: metrics by name, each with its kind, labels and meaning.
func guide(t *testing.T) map[string][3]string {
	t.Helper()
	text, err := os.ReadFile("../docs/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	rows := map[string][3]string{}
	for line := range strings.Lines(string(text)) {
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), " | ")
		if name := strings.Trim(cells[0], " `"); strings.HasPrefix(name, "skyserve_") && len(cells) == 4 {
			rows[name] = [3]string{strings.TrimSpace(cells[1]), strings.ReplaceAll(strings.TrimSpace(cells[2]), "`", ""), strings.TrimSpace(cells[3])}
		}
	}
	if len(rows) == 0 {
		t.Fatal("docs/metrics.md has no table of metrics")
	}
	return rows
}

// assembled returns a balancer that does not run, with all of its metrics.
func assembled(t *testing.T) *balancer {
	t.Helper()
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
	b := &balancer{cfg: service.BalancerConfig{Service: "chat", ID: "lb-us-0", Region: "local/us", Listen: "127.0.0.1:0", Admin: "127.0.0.1:0"}, opts: Options{Version: "v1"}}
	b.log = slog.New(slog.DiscardHandler)
	b.opts.Logger = b.log
	b.cert = &certificate{} // some metrics exist only with TLS
	var err error
	if b.identity, err = newServiceIdentity(newFamily(t).files(identity.Balancer, "lb-us-0", time.Hour)); err != nil {
		t.Fatal(err)
	}
	b.events = newServiceEvents(&awayEvents{}, b, time.Now()) // others with a store
	if b.store, err = store.Connect(t.Context(), "nats://127.0.0.1:1", "", store.Lazy()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.store.Close)
	if err := b.assemble(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		b.peers.Close()
		b.fleet.close()
		b.release()
	})
	return b
}

var descParts = regexp.MustCompile(`fqName: "([^"]*)", help: "(.*)", constLabels: \{[^}]*\}, variableLabels: \{([^}]*)\}`)

// The guide lists exactly the metrics of the code.
func TestMetricsAreDocumented(t *testing.T) {
	ch := make(chan *prometheus.Desc)
	reg := assembled(t).registry
	go func() {
		reg.Describe(ch)
		close(ch)
	}()
	rows := guide(t)
	for d := range ch {
		m := descParts.FindStringSubmatch(d.String())
		if m == nil {
			t.Errorf("a metric that cannot be read: %s", d)
			continue
		}
		if !strings.HasPrefix(m[1], "skyserve_") {
			continue // a metric of the Go runtime or the process
		}
		labels := strings.Split(m[3], ",")
		want := [2]string{strings.Join(labels, ", "), m[2]}
		row, documented := rows[m[1]]
		if got := [2]string{row[1], row[2]}; got != want {
			t.Errorf("docs/metrics.md lists %s: labels %q, %q; want %q, %q", m[1], got[0], got[1], want[0], want[1])
		}
		if total := strings.HasSuffix(m[1], "_total"); documented && total != (row[0] == "counter") {
			t.Errorf("docs/metrics.md calls %s a %s", m[1], row[0])
		}
		for _, label := range labels {
			if slices.Contains([]string{"request", "tenant", "session", "prompt", "user"}, label) {
				t.Errorf("%s has the label %s, which is unbounded", m[1], label)
			}
		}
		delete(rows, m[1])
	}
	for name := range rows {
		t.Errorf("docs/metrics.md lists %s, which does not exist", name)
	}
}

// serves waits until a balancer is ready.
func (n *node) serves(t *testing.T) {
	t.Helper()
	hc := client(t)
	testkit.Eventually(t, "ready", func() bool { return status(t, hc, n.public+"/readyz") == http.StatusOK })
}

// scrape reads a running balancer's own metrics.
func (n *node) scrape(t *testing.T) map[string]*dto.MetricFamily {
	t.Helper()
	resp, err := client(t).Get(n.adminURL + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return families
}

// The metrics of a balancer after serving requests are those of the guide, with the same kinds.
func TestMetricsOfTraffic(t *testing.T) {
	e := newEngine(t, "m", "")
	n := start(t, service.BalancerConfig{ID: "lb-us", Region: "local/us", Replicas: []service.ReplicaConfig{{ID: "us-0", URL: e.URL}}}, Options{Version: "v9"})
	n.serves(t)
	if a := ask(t, client(t), n.public, "m"); a.status != http.StatusOK {
		t.Fatalf("status %d: %s", a.status, a.body)
	}
	families, rows := n.scrape(t), guide(t)
	for name, f := range families {
		if !strings.HasPrefix(name, "skyserve_") {
			continue
		}
		if kind := strings.ToLower(f.GetType().String()); rows[name][0] != kind {
			t.Errorf("%s is a %s, docs/metrics.md has %q", name, kind, rows[name][0])
		}
	}
	for _, name := range []string{"skyserve_build_info", "skyserve_requests_total", "skyserve_e2e_seconds", "skyserve_queue_seconds", "skyserve_step_seconds", "skyserve_replica_info", "skyserve_replica_report_age_seconds"} {
		if families[name] == nil {
			t.Errorf("there is no %s", name)
		}
	}
}

var dashboardMetric = regexp.MustCompile(`skyserve_[a-z0-9_]+`)

// The metrics in the dashboard exist.
func TestDashboardMetricsExist(t *testing.T) {
	text, err := os.ReadFile("../examples/observe/dashboard.json")
	if err != nil {
		t.Fatal(err)
	}
	if !json.Valid(text) {
		t.Error("the dashboard is not JSON")
	}
	rows := guide(t)
	drawn := map[string]bool{}
	for _, name := range dashboardMetric.FindAllString(string(text), -1) {
		base := name
		for _, suffix := range []string{"_bucket", "_sum", "_count"} {
			if b, cut := strings.CutSuffix(name, suffix); cut && rows[b][0] == "histogram" {
				base = b
			}
		}
		if _, there := rows[base]; !there {
			t.Errorf("the dashboard uses %s, which does not exist", name)
		}
		drawn[base] = true
	}
	if len(drawn) < len(rows)/2 {
		t.Errorf("the dashboard draws %d metrics of %d", len(drawn), len(rows))
	}
	fmt.Fprintf(t.Output(), "%d metrics of %d are drawn\n", len(drawn), len(rows))
}

// The dashboard begins with the alerts, by kind, of each severity that skyserve_alerts has. No two panels overlap.
func TestDashboardShowsAlerts(t *testing.T) {
	text, err := os.ReadFile("../examples/observe/dashboard.json")
	if err != nil {
		t.Fatal(err)
	}
	var dashboard struct {
		Panels []struct {
			ID      int
			Type    string
			GridPos struct{ X, Y, W, H int }
			Targets []struct{ Expr, LegendFormat string }
		}
	}
	if err := json.Unmarshal(text, &dashboard); err != nil {
		t.Fatal(err)
	}
	ids, cells, shown := map[int]bool{}, map[[2]int]int{}, map[string]bool{}
	for _, p := range dashboard.Panels {
		if ids[p.ID] {
			t.Errorf("two panels have the id %d", p.ID)
		}
		ids[p.ID] = true
		for x := range p.GridPos.W {
			for y := range p.GridPos.H {
				cell := [2]int{p.GridPos.X + x, p.GridPos.Y + y}
				if other := cells[cell]; other != 0 {
					t.Errorf("the panels %d and %d overlap", other, p.ID)
				}
				cells[cell] = p.ID
			}
		}
		for _, target := range p.Targets {
			m := regexp.MustCompile(`^max by \(kind\) \(skyserve_alerts\{instance=~"\$instance",severity="([a-z]+)"\}\) > 0$`).FindStringSubmatch(target.Expr)
			if m != nil && target.LegendFormat == "{{kind}}" && p.GridPos.Y == 1 {
				shown[m[1]] = true
			}
		}
	}
	for _, severity := range []telemetry.Severity{telemetry.SeverityCritical, telemetry.SeverityWarning} {
		if !shown[string(severity)] {
			t.Errorf("the first row has no panel of %s alerts", severity)
		}
	}
}

// The metrics in the rules of Prometheus exist, and every alert has a summary and a description.
func TestAlertRuleMetricsExist(t *testing.T) {
	text, err := os.ReadFile("../examples/observe/alerts.yml")
	if err != nil {
		t.Fatal(err)
	}
	rows := guide(t)
	for _, name := range dashboardMetric.FindAllString(string(text), -1) {
		base := strings.TrimSuffix(strings.TrimSuffix(name, "_bucket"), "_count")
		if _, there := rows[name]; !there && rows[base][0] != "histogram" {
			t.Errorf("the rules use %s, which does not exist", name)
		}
	}
	alerts := strings.Count(string(text), "- alert: ")
	if alerts < 5 || strings.Count(string(text), "summary: ") != alerts || strings.Count(string(text), "description: ") != alerts {
		t.Errorf("%d alerts, each needs a summary and a description", alerts)
	}
}

// Every kind of docs/alerts.md has a rule, and every rule is named there: one rule for each severity selects all kinds of skyserve_alerts, and the
// burn rates of docs/alerts.md that Prometheus can compute from a histogram have rules of their own.
func TestEveryAlertHasARule(t *testing.T) {
	guide, err := os.ReadFile("../docs/alerts.md")
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile("../examples/observe/alerts.yml")
	if err != nil {
		t.Fatal(err)
	}
	rules := string(text)
	kinds := regexp.MustCompile("(?m)^\\| `([a-z]+)` \\|").FindAllStringSubmatch(string(guide), -1)
	if len(kinds) < 20 {
		t.Fatalf("docs/alerts.md has %d kinds", len(kinds))
	}
	for _, severity := range []string{"critical", "warning"} {
		if !strings.Contains(rules, `expr: max by (kind) (skyserve_alerts{severity="`+severity+`"}) > 0`) {
			t.Errorf("no rule selects all kinds of %s alerts", severity)
		}
	}
	named := map[string]string{}
	for _, row := range regexp.MustCompile("(?m)^\\| `([a-z]+)` \\| (`Skyserve[^|]*) \\| `Test").FindAllStringSubmatch(string(guide), -1) {
		named[row[1]] = row[2]
	}
	for _, kind := range telemetry.AlertKinds() {
		if named[kind] == "" {
			t.Errorf("docs/alerts.md names no rules and tests of %s", kind)
		}
		for rule := range strings.SplitSeq(strings.Trim(named[kind], "`"), "`, `") {
			if !strings.Contains(rules, "- alert: "+rule+"\n") {
				t.Errorf("docs/alerts.md names the rule %s of %s, which does not exist", rule, kind)
			}
		}
	}
	for rule := range strings.SplitSeq(rules, "- alert: ") {
		if name, _, _ := strings.Cut(rule, "\n"); strings.HasPrefix(name, "Skyserve") && !strings.Contains(string(guide), "`"+name+"`") {
			t.Errorf("docs/alerts.md does not name the rule %s", name)
		}
	}
	for _, window := range []string{"[1h]", "[5m]", "[6h]", "[30m]"} {
		for _, failed := range []string{`status=~"5.."`, `outcome="failed"`} { // the latter: within a stream
			if !strings.Contains(rules, "rate(skyserve_requests_total{"+failed+"}"+window) {
				t.Errorf("no rule counts requests with %s over %s", failed, window)
			}
		}
		if !strings.Contains(rules, "skyserve_ttft_seconds_count{tier=\"IW-F\"}"+window) {
			t.Errorf("no rule computes the burn rate of TTFT targets over %s", window)
		}
	}
}

var (
	selector   = regexp.MustCompile(`(skyserve_[a-z0-9_]+)(?:\{([^}]*)\})?`)
	matcher    = regexp.MustCompile(`([a-z_]+)(?:=~|!~|!=|=)\\?"`)
	grouped    = regexp.MustCompile(`(?:by|without|on|ignoring) \(([^)]*)\)`)
	expression = regexp.MustCompile(`"expr": "((?:[^"\\]|\\.)*)"`)
	rulesExpr  = regexp.MustCompile(`(?m)^ {8}expr: (?:\|\n((?:^ {10}.*\n)+)|(.*)$)`)
)

// wrongLabels returns the labels in an expression of PromQL that its metrics do not have. Prometheus adds instance and job.
func wrongLabels(expr string, rows map[string][3]string) (wrong []string) {
	every := []string{"instance", "job"}
	for _, m := range selector.FindAllStringSubmatch(expr, -1) {
		known := []string{"instance", "job"}
		base := m[1]
		for _, suffix := range []string{"_bucket", "_sum", "_count"} {
			if b, cut := strings.CutSuffix(m[1], suffix); cut && rows[b][0] == "histogram" {
				if base = b; suffix == "_bucket" {
					known = append(known, "le")
				}
			}
		}
		known = append(known, strings.Split(rows[base][1], ", ")...)
		every = append(every, known...)
		for _, l := range matcher.FindAllStringSubmatch(m[2], -1) {
			if !slices.Contains(known, l[1]) {
				wrong = append(wrong, m[1]+"{"+l[1]+"}")
			}
		}
	}
	for _, g := range grouped.FindAllStringSubmatch(expr, -1) {
		for label := range strings.SplitSeq(g[1], ", ") {
			if !slices.Contains(every, label) {
				wrong = append(wrong, g[0])
			}
		}
	}
	return wrong
}

// The rules and the dashboard use only labels that their metrics have: an expression with another label is never true.
func TestRulesAndDashboardUseExistingLabels(t *testing.T) {
	rows := guide(t)
	for expr, want := range map[string]int{
		`max by (kind) (skyserve_alerts{severity="critical"}) > 0`: 0, `max by (name) (skyserve_alerts{state="x"})`: 2,
		`sum(rate(skyserve_ttft_seconds_bucket{tier="IW-F",le="1"}[1h])) / sum(rate(skyserve_ttft_seconds_count{le="1"}[1h]))`: 1,
	} {
		if got := wrongLabels(expr, rows); len(got) != want {
			t.Errorf("%s: wrong labels %q", expr, got)
		}
	}
	for file, exprs := range map[string]*regexp.Regexp{"alerts.yml": rulesExpr, "dashboard.json": expression} {
		text, err := os.ReadFile("../examples/observe/" + file)
		if err != nil {
			t.Fatal(err)
		}
		found := exprs.FindAllStringSubmatch(string(text), -1)
		if all := strings.Count(string(text), "expr: ") + strings.Count(string(text), `"expr": `); len(found) != all || all == 0 {
			t.Errorf("%s has %d expressions, %d are read", file, all, len(found))
		}
		for _, m := range found {
			expr := strings.Join(m[1:], "")
			if wrong := wrongLabels(expr, rows); len(wrong) > 0 {
				t.Errorf("%s: %s uses labels that do not exist: %q", file, expr, wrong)
			}
		}
	}
}

// The metric skyserve_alerts has every kind with each severity, so that rules do not depend on whether an alert has been
// raised before, and counts the alerts of the balancer and of the controller.
func TestEveryAlertIsCounted(t *testing.T) {
	b := assembled(t)
	var reported []telemetry.Alert
	for _, kind := range telemetry.AlertKinds() {
		reported = append(reported, telemetry.Alert{Severity: telemetry.SeverityCritical, Kind: kind, Object: "an object"})
	}
	b.controllerAlerts.value.Store(&telemetry.Alerts{Token: 1, Alerts: reported})
	families, err := b.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	counts := map[string]float64{}
	for _, f := range families {
		if f.GetName() == "skyserve_alerts" {
			for _, m := range f.GetMetric() {
				counts[m.GetLabel()[0].GetValue()+" "+m.GetLabel()[1].GetValue()] = m.GetGauge().GetValue()
			}
		}
	}
	for _, kind := range telemetry.AlertKinds() {
		if _, exported := counts[kind+" warning"]; !exported || counts[kind+" critical"] != 1 {
			t.Errorf("%s: %v critical, warnings exported %t", kind, counts[kind+" critical"], exported)
		}
	}
}
