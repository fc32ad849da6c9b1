package tui

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	tea "charm.land/bubbletea/v2"

	"skyserve/internal/service"
	"skyserve/internal/telemetry"
	"skyserve/internal/testkit"
)

// deskIn returns a dashboard with data, in a view.
func deskIn(t *testing.T, w, h int, s *telemetry.Snapshot, keys ...string) *desk {
	t.Helper()
	d := newDesk(t, w, h, s)
	d.poll(0)
	for _, k := range keys {
		d.run(d.press(k))
	}
	return d
}

func TestEveryViewHasAKeyATabAndACommand(t *testing.T) {
	for v, name := range viewNames {
		d := deskIn(t, 120, 40, normal(), viewKeys[v])
		d.wants(fmt.Sprintf("[%s %s]", viewKeys[v], name))
		d = deskIn(t, 120, 40, normal())
		d.press(":", name)
		d.run(d.press("enter"))
		d.wants(fmt.Sprintf("[%s %s]", viewKeys[v], name))
		d = deskIn(t, 120, 40, normal())
		d.run(d.send(tea.MouseClickMsg{X: strings.Index(tabsText(viewNames, 0), name), Y: 1, Button: tea.MouseLeft}))
		d.wants(fmt.Sprintf("[%s %s]", viewKeys[v], name))
	}
}

// A redeploy removes the donated replica, which then does not serve again.
func TestRedeployIsNotCountedAsReclaimed(t *testing.T) {
	s := ownMachines()
	redeploy, reclaim := s.Events[0], s.Events[0]
	redeploy.ID, redeploy.Kind = "redeploy", telemetry.EventRedeploy
	reclaim.ID, reclaim.Kind = "reclaim", telemetry.EventReclaim
	s.Events = append(s.Events, redeploy)
	deskIn(t, 120, 40, s, "6").wants("recent events: 1 donated, 0 reclaimed")
	s.Events = append(s.Events, reclaim)
	deskIn(t, 120, 40, s, "6").wants("recent events: 1 donated, 1 reclaimed")
}

func TestRequestsShowTheDecisionAndItsReason(t *testing.T) {
	d := deskIn(t, 200, 40, normal(), "3")
	d.wants("queued", "in flight", "finished", "rejected 503", "→ lb-europe-west4-0", "75%", "1.24s", "182ms", "no capacity within the maximum queue time")
	d.press("j", "j")
	d.press("F") // by time to first token; the selection stays on its request
	d.wants("TTFT▾")
	d.wants("request req-3 at lb-us-east-1-0, tenant acme, policy cost, 1 attempt")
	d.run(d.press("enter"))
	d.wants("routing decision", "all about req-3", "Policy cost chose us-1")
	d.press("esc")
	d.lacks("all about")
}

// The list stays live while a request is selected, and the selection stays on its request.
func TestRequestsStayLive(t *testing.T) {
	d := deskIn(t, 160, 40, normal(), "3", "j")
	d.wants("▸ 11:59:59", "request req-4")
	newer, _ := d.op.Requests(t.Context(), 9)
	newest := newer[2]
	newest.Request, newest.At = "req-5", noon
	d.send(requestsMsg{requests: append([]RequestRow{newest}, newer...), at: noon})
	d.wants("12:00:00 ", "▸ 11:59:59", "request req-4")
	d.press("p")
	d.wants("PAUSED")
}

func TestMessagesVanish(t *testing.T) {
	d := deskIn(t, 120, 40, normal(), "2", "x")
	d.wants("drain: select a replica")
	d.now = d.now.Add(errorDuration + time.Second)
	d.send(clockMsg(d.now))
	d.lacks("drain: select a replica")
}

func TestHelpTellsItsPosition(t *testing.T) {
	d := deskIn(t, 80, 24, normal(), "?")
	d.wants("lines 1-22 of")
	d.press("j")
	d.wants("lines 2-23 of")
}

// Forecasts made earlier are drawn over the actual load.
func TestEarlierForecastsAreDrawnOverTheLoad(t *testing.T) {
	s := normal()
	points := func(s *telemetry.Snapshot) (n int) {
		for line := range strings.Lines(deskIn(t, 120, 40, s, "4").frame()) {
			if cells := []rune(line); len(cells) > 30 {
				n += strings.Count(string(cells[:min(70, len(cells))]), "•")
			}
		}
		return n
	}
	before := points(s)
	for range 12 {
		s.Forecast[0].EarlierTPS = append(s.Forecast[0].EarlierTPS, ptr(1500.0))
	}
	if after := points(s); after < before+20 {
		t.Errorf("%d points of earlier forecasts, %d without them", after, before)
	}
}

func TestFailedFetchIsShownAndRetried(t *testing.T) {
	d := newDesk(t, 120, 40, normal())
	d.poll(0)
	d.op.err = errors.New("lb-0: connection refused")
	d.run(d.press("3"))
	d.wants("Cannot list requests", "connection refused")
	d.run(d.press("4"))
	d.wants("(load: lb-0: connection refused)")
	d.run(d.press(":"))
	d.press("service")
	d.run(d.press("enter"))
	d.wants("service.yaml", "connection refused")
	d.press("esc")
	d.op.err = nil
	d.run(d.press("3"))
	d.wants("queued", "us-0")
}

func TestForecastShowsHistoryIntervalAndCapacity(t *testing.T) {
	d := deskIn(t, 120, 40, normal(), "4")
	d.wants("2.7k", "2.4k-3.7k", "5.1k", "2.6k", "196%", "2.1x the forecast", "us-east-1, Llama-3.1-8B-Instruct", "█", "░", "•", "╌", "12:00")
	d.press("j", "j")
	d.wants("europe-west4, Llama-3.1-8B-Instruct, uncached", "96%")
}

// A forecast is made with each plan, every hour: the next step is the one that has not passed since.
func TestNextStepFollowsTheClock(t *testing.T) {
	for _, tt := range []struct {
		after      time.Duration
		next, span string
	}{{0, "1.0k", "0-2.0k"}, {4 * time.Minute, "1.0k", "0-2.0k"}, {5 * time.Minute, "5.0k", "4.0k-6.0k"}, {10 * time.Minute, "-", "-"}, {-time.Minute, "1.0k", "0-2.0k"}} {
		s := normal()
		f := &s.Forecast[0]
		f.MeanTPS, f.Lo90TPS, f.Hi90TPS = []float64{1000, 5000}, []float64{0, 4000}, []float64{2000, 6000}
		s.At = f.At.Add(tt.after)
		row := deskIn(t, 120, 40, s, "4").model.screen.lists[viewForecast].sheet.rows[0]
		if next, span := row.cells[3].textFor(20), row.cells[4].textFor(20); next != tt.next || span != tt.span {
			t.Errorf("%s after the forecast: next %s, interval %s; want %s, %s", tt.after, next, span, tt.next, tt.span)
		}
	}
}

func TestCapacityFarAboveLoadIsNotPlotted(t *testing.T) {
	s := normal()
	s.Targets[0].ReplicaTPS = 1e6
	d := deskIn(t, 120, 40, s, "4")
	d.lacks("╌╌")
	d.wants("ready capacity: 2.0M (above the plot)")
	deskIn(t, 120, 40, normal(), "4").lacks("above the plot")
}

// The details of a forecast end with a statement, not with what looks like the heading of a table.
func TestForecastDetails(t *testing.T) {
	d := deskIn(t, 140, 45, normal(), "4")
	d.press("j", "enter")
	d.wants("peak p95        5.1k", "Llama-3.1-8B-Instruct in aws/us-east-1: the forecast covers the 60m from 12:00; load and capacity are in uncached prompt tok/s")
}

// Without a batch, view 7 says so above the queues.
func TestNoOpenBatchesIsStated(t *testing.T) {
	deskIn(t, 80, 24, normal(), "7").wants("no open batches", "INTERACTIVE")
	deskIn(t, 80, 24, withBatches(), "7").lacks("no open batches")
}

// A batch that waits for a quota says which one, and until when.
func TestBatchThatWaitsForQuota(t *testing.T) {
	d := deskIn(t, 120, 30, withBatches(), "7", "j", "j", "j")
	d.wants("waiting", "waits for the quota of key bob (100 requests per day) until 2026-03-05 00:00")
	d.press("enter")
	d.wants("waits for the quota of key bob (100 requests per day) until")
}

func TestActionsRequireConfirmation(t *testing.T) {
	tests := []struct {
		keys  []string
		shows []string
		want  []Action
	}{
		{[]string{"2", "x"}, []string{"drain: select a replica,"}, nil},
		{[]string{"1", "x"}, []string{"drain: select a replica in view 2, or mark several there with space"}, nil},
		{[]string{"4", "c"}, []string{"reclaim: select a donated replica in view 6, or mark several there with space"}, nil},
		{[]string{"2", "j", "j", "j", "x"}, []string{"Drain us-0?", "us: 1 of 2 ready replicas remain"}, []Action{{Verb: VerbDrain, Replica: "us-0"}}},
		{[]string{"2", "j", "j", "o"}, []string{"Donate eu-1?", "keeps running for other work until it is reclaimed", "eu: 1 of 2 ready"}, []Action{{Verb: VerbDonate, Replica: "eu-1"}}},
		{[]string{"2", "j", "j", "c"}, []string{"reclaim: eu-1 is not donated"}, nil},
		{[]string{"6", "j", "c"}, []string{"Reclaim us-10?", "It serves again at once"}, []Action{{Verb: VerbReclaim, Replica: "us-10"}}},
		{[]string{"2", "j", "j", "j", "j", "j", "u"}, []string{"Undrain us-3?"}, []Action{{Verb: VerbUndrain, Replica: "us-3"}}},
		{[]string{"2", "j", "j", "j", "space", "space", "x"}, []string{"Drain us-0, us-1?", "us: 0 of 2 ready replicas remain"}, []Action{{Verb: VerbDrain, Replica: "us-0"}, {Verb: VerbDrain, Replica: "us-1"}}},
		{[]string{"5", "a"}, []string{"Apply the plan from 12:00?", "Adds 1 replica and removes 1. $7.46/h → $7.10/h. It removes replicas of Llama-3.1-8B-Instruct while ap-2 is NOT_READY"}, []Action{{Verb: VerbApply}}},
		{[]string{":", "drain us-0 us-1 eu-0 eu-1", "enter"}, []string{"No other replica of Llama-3.1-8B-Instruct is ready."}, []Action{{Verb: VerbDrain, Replica: "us-0"}, {Verb: VerbDrain, Replica: "us-1"}, {Verb: VerbDrain, Replica: "eu-0"}, {Verb: VerbDrain, Replica: "eu-1"}}},
		{[]string{":", "drain eu-0", "enter"}, []string{"Drain eu-0?"}, []Action{{Verb: VerbDrain, Replica: "eu-0"}}},
		{[]string{":", "undrain gone-1", "enter"}, []string{"Undrain gone-1?"}, []Action{{Verb: VerbUndrain, Replica: "gone-1"}}},
	}
	for _, tt := range tests {
		for _, yes := range []bool{false, true} {
			s := ownMachines()
			if tt.keys[0] == "5" {
				s = normal()
			}
			d := deskIn(t, 120, 40, s, tt.keys...)
			d.wants(tt.shows...)
			if len(tt.want) == 0 {
				continue
			}
			if len(d.op.orders) > 0 {
				t.Fatalf("%v: done without confirmation", tt.keys)
			}
			key := map[bool]string{true: "y", false: "n"}[yes]
			d.run(d.press(key))
			if got := d.op.orders; yes && !slices.EqualFunc(got, tt.want, sameOrder) || !yes && len(got) > 0 {
				t.Errorf("%v then %s: got %v, want %v", tt.keys, key, got, tt.want)
			}
			d.wants(map[bool]string{true: "done", false: "cancelled"}[yes])
		}
	}
}

// sameOrder compares actions except for the plan, which must be set when one is applied.
func sameOrder(a, b Action) bool {
	return a.Verb == b.Verb && a.Replica == b.Replica && (a.Plan != nil) == (a.Verb == VerbApply)
}

// The applied plan is the one that was confirmed, even if another one arrived before the
// confirmation.
func TestConfirmedPlanIsApplied(t *testing.T) {
	d := deskIn(t, 120, 40, normal(), "5", "a")
	s := normal()
	s.Plan.Changes = s.Plan.Changes[:1]
	d.fetch.snapshot = s
	d.poll(time.Second)
	d.run(d.press("y"))
	if len(d.op.orders) != 1 || len(d.op.orders[0].Plan.Changes) != 2 {
		t.Errorf("got %+v, want the plan of two changes", d.op.orders)
	}
}

func TestRejectedActionsShowTheReason(t *testing.T) {
	d := deskIn(t, 120, 40, ownMachines(), "2", "j", "j", "x")
	d.op.err = errors.New("eu-1: it is the last one of its region")
	d.run(d.press("y"))
	d.wants("drain eu-1: eu-1: it is the last one of its region")
	d.now = d.now.Add(time.Hour)
	d.send(clockMsg(d.now))
	d.wants("it is the last one") // errors stay
	d.press("esc")
	d.lacks("it is the last one")

	d = deskIn(t, 120, 40, normal(), "2", "j", "<")
	d.poll(time.Second)
	d.press("<", "x")
	d.wants("drain: viewing history")
	d.press("esc", "esc")
	d.fetch.err = errRefused
	d.poll(time.Second)
	d.press("x")
	d.lacks("Drain")

	d = deskIn(t, 120, 40, normal(), "2", "j")
	d.model.cfg.Operator = nil
	for _, key := range []string{"x", "a", "l"} {
		d.press(key)
		d.wants("this dashboard is read-only")
		d.press("esc")
	}
}

// The failures of confirmed actions stay until esc, with any later message.
func TestFailuresOfActionsStay(t *testing.T) {
	d := deskIn(t, 120, 40, ownMachines(), "2", "j", "j", "space", "space", "x")
	d.op.err = errors.New("timed out")
	d.run(d.press("y"))
	d.wants("drain eu-1: timed out", "drain us-0: timed out")
	d.press("u")
	d.wants("undrain: ", "drain eu-1: timed out", "drain us-0: timed out")
	d.now = d.now.Add(time.Hour)
	d.send(clockMsg(d.now))
	d.lacks("undrain: ")
	d.wants("drain eu-1: timed out", "drain us-0: timed out")
	d.press("esc")
	d.lacks("timed out")
}

// A message that is shown while an action runs does not hide its result.
func TestResultOfActionIsShownAfterMessage(t *testing.T) {
	d := deskIn(t, 120, 40, ownMachines(), "2", "j", "j", "x")
	result := d.press("y")
	d.press("3", "1", "enter")
	d.wants("open: select a row")
	d.run(result)
	d.wants("drain eu-1: done")
	d.lacks(":undrain") // the row's REASON has the command, and the last line the key
}

func TestSteppingThroughHistory(t *testing.T) {
	d := newDesk(t, 120, 40, normal())
	for i := range 100 {
		s := crowd(1, 1)
		s.At = noon.Add(time.Duration(i) * time.Second)
		s.Regions[0].Queued = i
		d.fetch.snapshot = s
		d.poll(time.Second)
	}
	d.wants("queued 99", "12:01:39")
	d.press("<")
	d.wants("queued 98", "HISTORY 12:01:38")
	d.press("<", "<", ">")
	d.wants("queued 97")
	d.press("{")
	d.wants("queued 37")
	d.poll(time.Second) // new requests are kept and do not move the selection
	d.wants("queued 37", "HISTORY")
	d.press("}", "}")
	d.lacks("HISTORY")
	d.press("{", "{", "{")
	d.wants("queued 0 ")
	d.press("esc")
	d.wants("queued 99")
}

func TestTimelineIsBounded(t *testing.T) {
	var p timeline
	big := crowd(30, 1000)
	for i := range 500 {
		p.addSnapshot(big, noon.Add(time.Duration(i)*time.Second))
		if p.size > timelineBytes+snapshotSize(big) {
			t.Fatalf("%d bytes are kept, want at most %d", p.size, timelineBytes)
		}
	}
	if len(p.frames) < 3 || p.frames[len(p.frames)-1].at != noon.Add(499*time.Second) {
		t.Errorf("%d frames, the newest of %s", len(p.frames), p.frames[len(p.frames)-1].at)
	}
	p = timeline{}
	small := crowd(1, 1)
	for i := range 2 * 3600 {
		p.addSnapshot(small, noon.Add(time.Duration(i)*time.Second))
	}
	if n := len(p.frames); n != 3601 || p.size != n*snapshotSize(small) {
		t.Errorf("%d frames of a small service, want each second of an hour; cost %d", n, p.size)
	}
}

// Alerts are in the second line of every view, the most severe first, and in the overview
// with their next step; --once prints them too. Text from outside in an alert cannot
// control the terminal.
func TestAlertsAreShown(t *testing.T) {
	s := normal()
	s.Alerts = []telemetry.Alert{
		{Severity: telemetry.SeverityCritical, Kind: telemetry.AlertStore, Object: "store", Message: "no space left\x1b[2J", NextStep: "free disk space"},
		{Severity: telemetry.SeverityWarning, Kind: telemetry.AlertCertificate, Object: "lb-us-0", Message: "ends 2027-01-02"},
	}
	d := deskIn(t, 200, 60, s)
	d.wants("critical: store: no space left")
	d.wants("(+1 more)")
	d.wants("certificate lb-us-0")
	once := Render(s, nil, 0, 0, Theme{}.Plain())
	if !strings.Contains(once, "critical: store: no space left") || strings.Contains(once, "\x1b[2J") {
		t.Errorf("got %q", once)
	}
}

func TestCommands(t *testing.T) {
	tests := []struct{ text, shows string }{
		{"theme mono", ""},
		{"theme pink", `unknown theme "pink"`},
		{"interval 5s", "every 5s"},
		{"interval never", `got "never"`},
		{"region us-east-1", "region: aws/us-east-1"},
		{"region mars", `region "mars" not found; tab completes names`},
		{"drain nobody", `replica "nobody" not found; tab completes names`},
		{"dance", `unknown command "dance"`},
		{"logs us-0", "logs of us-0"},
		{"explain req-1", "all about req-1"},
		{"yaml", "name: chat"},
		{"help", "Actions (y confirms"},
		{"ev", "[8 events]"},
		{"filter us-1", "filter: us-1"},
		{"", "[1 overview]"},
	}
	for _, tt := range tests {
		d := deskIn(t, 140, 60, normal())
		d.press(":", tt.text)
		d.run(d.press("enter"))
		d.wants(tt.shows)
	}
	narrow := deskIn(t, 46, 24, normal()) // an error that does not fit is cut, not left out
	narrow.press(":", "theme pink", "enter")
	narrow.wants(`:theme pink  unknown theme "pink": must`)
	d := deskIn(t, 140, 40, normal())
	d.press(":", "q")
	if !quits(d.press("enter")) {
		t.Error(":q leaves")
	}
}

func TestCommandsComplete(t *testing.T) {
	tests := []struct{ typed, want string }{
		{"ov", ":overview"},
		{"re", ":re"},
		{"theme hi", ":theme high-contrast"},
		{"drain us-1", ":drain us-1"},
		{"region gcp", ":region gcp/europe-west4"},
		{"logs lb-e", ":logs lb-europe-west4-0"},
		{"nonsense x", ":nonsense x"},
	}
	for _, tt := range tests {
		d := deskIn(t, 120, 40, normal())
		d.press(":", tt.typed, "tab")
		d.wants(tt.want)
	}
}

func TestFilterGrammar(t *testing.T) {
	tests := []struct {
		filter string
		text   string
		want   bool
	}{
		{"", "anything", true},
		{"READY l4", "us-0 ready L4", true},
		{"ready h100", "us-0 ready L4", false},
		{"!draining", "us-0 ready", true},
		{"!draining", "us-0 DRAINING", false},
		{"~usz", "us-west-zone", true},
		{"~zsu", "us-west-zone", false},
		{"!~usz", "us-west-zone", false},
		{"!", "anything", true},
		{"~", "anything", true},
		{"~é界", "caféß界", true},
		{"=ready", "us-0 READY", true},
		{"=us", "us-0 READY", false},
		{"!=us", "us-0 READY", true},
		{"=", "anything", true},
	}
	for _, tt := range tests {
		if got := parseFilter(tt.filter).matches(strings.Fields(tt.text)...); got != tt.want {
			if len(strings.Fields(tt.text)) > 1 && parseFilter(tt.filter).matches(tt.text) == tt.want {
				continue
			}
			t.Errorf("%q on %q: got %t", tt.filter, tt.text, got)
		}
	}
}

func TestLogsFollowTheirEndUntilScrolled(t *testing.T) {
	d := deskIn(t, 100, 20, normal(), "2", "j", "j", "j", "j", "l")
	d.wants("logs of us-0", "us-0 says line 99", "of 100")
	d.press("pgup")
	d.lacks("us-0 says line 99")
	d.press("/", "line 1", "enter")
	d.wants("us-0 says line 1", "us-0 says line 19")
	d.lacks("us-0 says line 20")
	d.press("esc", "G")
	d.wants("us-0 says line 99")
	d.press("esc")
	d.lacks("logs of")
}

func TestYAMLOfSelection(t *testing.T) {
	d := deskIn(t, 120, 60, normal(), "2", "j", "j", "j", "j")
	d.press("y")
	d.wants("id: us-0", "gpu: L4", "state: READY", "outstanding: 47")
	d.press("esc", "esc", "5", "j")
	d.press("y")
	d.wants("delta: 1", "then: ")
	for view, wants := range map[string]string{"9": "output_tokens: 329280", "0": "key: ana@example.com", "$": "deferred: 0"} {
		deskIn(t, 120, 60, normal(), view, "j", "y").wants(wants)
	}
	d = deskIn(t, 120, 60, normal(), "y")
	d.wants("service.yaml", "name: llama")
}

// A selected row is shown alone; a row without figures in the snapshot is not replaced by service.yaml.
func TestYAMLOfPlanChangeAndUnknownTraffic(t *testing.T) {
	s := normal()
	d := deskIn(t, 120, 40, s, "5", "j", "y")
	d.wants("delta: "+strconv.Itoa(s.Plan.Changes[0].Delta), "reason:")
	d.lacks("changes:", "assumed:")
	for i := range s.Regions {
		s.Regions[i].Models = nil
	}
	d = deskIn(t, 120, 40, s, "9", "j", "y")
	d.wants("yaml: the snapshot has no figures of this row")
	d.lacks("service.yaml")
}

func TestYAMLOfBatchesAndEvents(t *testing.T) {
	d := deskIn(t, 120, 60, withBatches(), "7", "j", "y")
	d.wants("id: batch_019ab3f2c01k3m9qzp4xt7w", "total: 20000", "completed: 15500")
	deskIn(t, 120, 60, normal(), "7", "j", "y").wants("deferred: ", "slo_misses: ") // the queue of a model
	d = deskIn(t, 120, 60, ownMachines(), "8", "j", "y")
	d.wants("actor: operator:alice", "kind: drain", "object: us-3", "reason: skyserve replica drain")
	changed := ownMachines()
	changed.At = noon.Add(time.Second)
	changed.Regions[0].Replicas[0].State, changed.Regions[0].Replicas[0].Reason = service.StateFailed, "CUDA error"
	d = deskIn(t, 120, 60, ownMachines(), "8")
	d.fetch.snapshot = changed
	d.poll(time.Second)
	d.press("home", "y") // a change that the dashboard observed
	d.wants("actor: observed", "object: us-0", "reason: CUDA error")
}

func TestTheMouse(t *testing.T) {
	click := func(d *desk, x, y int) { d.run(d.send(tea.MouseClickMsg{X: x, Y: y, Button: tea.MouseLeft})) }
	d := deskIn(t, 120, 40, normal())
	click(d, 5, 5)
	d.wants("▸ aws/us-east-1")
	click(d, 5, 5) // again: into it
	d.wants("[2 replicas]", "region: aws/us-east-1", "us-0")
	d.press("esc", "2")
	click(d, 3, 3)
	d.wants("REPLICA▾")
	click(d, 30, 0)
	click(d, 110, 1)
	d.send(tea.MouseWheelMsg{Button: tea.MouseWheelDown})
	d.wants("▸ ")
	d = deskIn(t, 100, 12, crowd(1, 50), "2")
	d.send(tea.MouseWheelMsg{Button: tea.MouseWheelDown})
	d.send(tea.MouseWheelMsg{Button: tea.MouseWheelDown})
	d.wants("▸ r0-5")
	d.send(tea.MouseWheelMsg{Button: tea.MouseWheelUp})
	d.wants("▸ r0-2")
	if d.model.View().MouseMode == tea.MouseModeNone {
		t.Error("the mouse must be enabled")
	}
	d.press("m")
	if d.model.View().MouseMode != tea.MouseModeNone {
		t.Error("m must release the mouse, to select text")
	}
}

func TestChangedCellsAreMarkedBySign(t *testing.T) {
	d := deskIn(t, 120, 40, normal(), "2")
	s := normal()
	us := &s.Regions[0]
	us.Replicas[0].State = service.StateNotReady
	*us.Replicas[2].Pending, us.Replicas[2].Outstanding = 9, 7
	d.fetch.snapshot = s
	d.poll(time.Second)
	d.wants("▲ NOT_READY*", "9↑", "7↓")
	d.poll(time.Second)
	d.lacks("*", "↑", "↓")
}

func TestEventsShowScalingAndObservedChanges(t *testing.T) {
	d := deskIn(t, 140, 40, normal(), "8")
	d.wants("removed us-2", "KV memory 21 % used, below 30 %, 2 replicas planned; replicas before: 3", "no spot capacity of g6.xlarge")
	s := normal()
	s.At = noon.Add(time.Minute)
	s.Regions[0].Replicas[0].State, s.Regions[0].Replicas[0].Reason = service.StateFailed, "CUDA error"
	d.fetch.snapshot = s
	d.poll(time.Minute)
	d.wants("us-0 READY → FAILED", "CUDA error", "observed")
	d.press("<") // in the past it had not occurred yet
	d.lacks("CUDA error")
}

func TestFlowsBetweenRegions(t *testing.T) {
	d := deskIn(t, 120, 40, normal())
	s := normal()
	s.At = noon.Add(10 * time.Second)
	s.Regions[0].ForwardedTo[1].Requests += 120
	d.fetch.snapshot = s
	d.poll(10 * time.Second)
	d.wants("FORWARDED", "REQ/S", "us-east-1 → gcp/europe-west4       12    5940")
	s = normal()
	s.At, s.Regions[0].ForwardedTo[1].Requests = noon.Add(20*time.Second), 4 // the balancer restarted
	d.fetch.snapshot = s
	d.poll(10 * time.Second)
	d.wants("us-east-1 → gcp/europe-west4        0       4")
}

func TestTenThousandReplicas(t *testing.T) {
	d := deskIn(t, 120, 40, crowd(20, 500))
	d.wants("10000/10000 replicas ready", "20 regions")
	d.run(d.press("2"))
	d.press("G")
	d.wants("▸ r19-499")
	d.press("/", "r7-12", "enter", "K")
	d.wants("filter: r7-12 (11 of 10000)")
	d.poll(time.Second)
	d.press("<", "esc", "esc", "tab", "g", "enter")
	d.wants("replica r0-")
}

func TestTTFTMisses(t *testing.T) {
	d := deskIn(t, 200, 40, normal())
	s := normal()
	s.At = noon.Add(10 * time.Second)
	s.Regions[0].Models[0].FirstTokens += 200
	s.Regions[0].Models[0].SLOMisses += 20
	s.Regions[2].Models[0].FirstTokens = 4 // its balancer restarted: these seconds are unknown
	d.fetch.snapshot = s
	d.poll(10 * time.Second)
	d.wants("SLO MISS", " 10%")
	d.lacks("NaN")
}

// A balancer that has just started returns incomplete snapshots: any field may be missing.
func TestPartialSnapshotIsDrawn(t *testing.T) {
	half := []*telemetry.Snapshot{
		{},
		{Regions: []telemetry.RegionSnapshot{{}}},
		{Regions: []telemetry.RegionSnapshot{{Name: "a/b", Balancers: []telemetry.BalancerSnapshot{{}}, Replicas: []telemetry.ReplicaSnapshot{{}}}}},
		{Forecast: []telemetry.LoadForecast{{}}, Donations: []telemetry.Donation{{}}, Plan: &telemetry.PlanSummary{}, Targets: []telemetry.PlannedCapacity{{}}},
		{Forecast: []telemetry.LoadForecast{{MeanTPS: []float64{1}, Lo90TPS: []float64{}, StepSeconds: 60}}, Plan: &telemetry.PlanSummary{Changes: []telemetry.PlanChange{{}}, Error: "no history"}, Events: []telemetry.Event{{}}},
	}
	for i, s := range half {
		for _, size := range [][2]int{{20, 5}, {60, 15}, {120, 40}} {
			d := deskIn(t, size[0], size[1], s)
			for v := range views {
				d.run(d.press(string(rune('1' + v))))
				d.press("j", "enter", "esc", "y", "esc", "s", "tab")
				if d.frame() == "" {
					t.Errorf("snapshot %d, view %s: nothing is drawn", i, viewNames[v])
				}
			}
		}
	}
}

// evil inserts control sequences into every text of a value, except times.
func evil[T any](t *testing.T, v T) (out T) {
	t.Helper()
	var walk func(any) any
	walk = func(v any) any {
		switch v := v.(type) {
		case map[string]any:
			for k := range v {
				v[k] = walk(v[k])
			}
		case []any:
			for i := range v {
				v[i] = walk(v[i])
			}
		case string:
			if _, err := time.Parse(time.RFC3339, v); err != nil {
				return v + "\x1b[2J\x1b]0;owned\x07\u202e界\n\r\t\u200d👩\u200d👩\x00\u0085" + v
			}
		}
		return v
	}
	text, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	var tree any
	if err := json.Unmarshal(text, &tree); err != nil {
		t.Fatal(err)
	}
	if text, err = json.Marshal(walk(tree)); err == nil {
		err = json.Unmarshal(text, &out)
	}
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// No view writes a control character from outside to the terminal: send checks every frame.
func TestEveryTextIsDrawnSafely(t *testing.T) {
	testkit.NotUnderRace(t, "draws frames in one goroutine")
	requests, err := new(deskOperator).Requests(t.Context(), 0)
	if err != nil {
		t.Fatal(err)
	}
	for _, size := range [][2]int{{60, 15}, {120, 40}, {200, 60}} {
		d := deskIn(t, size[0], size[1], evil(t, normal()))
		d.send(requestsMsg{requests: evil(t, requests), at: noon})
		for _, frame := range []func(){
			func() { d.send(actionDoneMsg{action: Action{VerbDrain, "a\x1b[2J", nil}, text: "b\x1b[2J\nc"}) },
			func() {
				d.send(actionDoneMsg{action: Action{VerbDrain, "a\x1b[2J", nil}, err: errors.New("b\x1b[2J\nc")})
			},
			func() { d.send(textMsg{kind: panelLogs, text: "\x1b[2J\nc\td"}) },
		} {
			frame()
			for v := range views {
				d.press(string(rune('1' + v)))
				for _, keys := range []string{"j", "x", "n", "a", "n", "enter", "esc", "y", "esc", "l", "esc", "tab", "?", "?", ":logs ", "tab", "esc"} {
					d.press(keys)
				}
			}
		}
	}
}

func TestEveryViewFitsEverySize(t *testing.T) {
	testkit.Slow(t)
	testkit.NotUnderRace(t, "draws frames in one goroutine")
	for name, s := range map[string]*telemetry.Snapshot{"normal": normal(), "hostile": hostile(), "crowd": crowd(12, 30), "empty": {}} {
		t.Run(name, func(t *testing.T) {
			d := deskIn(t, 120, 40, s)
			for v := range views {
				d.run(d.press(string(rune('1' + v))))
				for _, keys := range [][]string{nil, {"j"}, {"enter"}, {"esc"}, {"space", "x"}, {"n"}, {":dr"}, {"esc"}, {"?"}, {"?"}} {
					d.press(keys...)
					for _, w := range []int{20, 40, 60, 80, 110, 150, 400} {
						for _, h := range []int{5, 8, 12, 16, 24, 60, 120} {
							d.send(tea.WindowSizeMsg{Width: w, Height: h})
						}
					}
				}
			}
		})
	}
}

// enter leads from a row to its replicas, and esc leads back through each level to the row.
func TestEscReturnsThroughAllLevels(t *testing.T) {
	tests := []struct {
		view  string
		moves int
		shows []string // on the way in, after enter
		lacks string
	}{
		{"1", 2, []string{"[2 replicas]", "us-0", "us-1"}, "eu-0"},
		{"9", 1, []string{"[2 replicas]", "us-0", "eu-0"}, ""},
		{"$", 2, []string{"[2 replicas]", "us-0"}, "eu-0"},
	}
	for _, tt := range tests {
		d := deskIn(t, 120, 40, normal(), tt.view)
		for range tt.moves {
			d.press("j")
		}
		before := d.frame()
		d.run(d.press("enter"))
		d.wants(tt.shows...)
		if tt.lacks != "" {
			d.lacks(tt.lacks)
		}
		d.press("/")
		d.press(" us-1")
		d.run(d.press("enter"))
		d.press("j")
		d.run(d.press("enter"))
		d.wants("KV utilisation") // the details of a replica
		for level, wants := range []string{"filter:", "us-1", ""} {
			d.press("esc")
			if wants != "" {
				d.wants("[2 replicas]", wants)
			} else if d.frame() != before {
				t.Errorf("view %s, level %d: esc leads to\n%s\nwant\n%s", tt.view, level, d.frame(), before)
			}
		}
	}
}

func TestModelsAndTenants(t *testing.T) {
	d := deskIn(t, 200, 40, normal(), "9", "j")
	d.wants("5/9", "86", "1%", "324ms", "1.56s", "3.64s", "PROMPT TOK/S", "15k", "66%", "5.5k", "15.43", "5145 requests served, 9 rejected (429), 33 failed (5xx)")
	d = deskIn(t, 120, 40, normal(), "0", "j")
	d.wants("ana@example.com", "acme", "checkout", "3%", "1.22", "key or user ana@example.com, last 60 s: 408 requests served")
	d.press("tab", "tab") // us-east-1 only
	d.lacks("ana@example.com")
	free := normal() // its model has no price
	for i := range free.Regions {
		for k := range free.Regions[i].Keys {
			u := &free.Regions[i].Keys[k].Traffic.Usage
			u.PricedRequests, u.Cost = 0, 0
		}
	}
	d = deskIn(t, 120, 40, free, "0", "j")
	d.wants("ana@example.com", "408 requests served")
	d.lacks("1.22")
	older := normal()
	for i := range older.Regions {
		older.Regions[i].Keys = nil
		for k := range older.Regions[i].Models {
			older.Regions[i].Models[k].Traffic = nil
		}
	}
	deskIn(t, 120, 40, older, "0").wants("Traffic of keys unknown")
	deskIn(t, 120, 40, older, "9", "j").wants("5/9", "traffic unknown")
}

// The share of the capacity in use compares load and capacity of the same regions: the load of a region without a
// known capacity does not count, nor a capacity without a known load.
func TestCostAndSaturation(t *testing.T) {
	d := deskIn(t, 120, 40, normal(), "$")
	d.wants("replicas $8.26/h", "$0.11 per million tokens", "81% of the ready capacity used", "3.22", "0.09", "2.7k", "639", "105%")

	partly := normal()
	partly.Prices, partly.Targets = partly.Prices[:2], partly.Targets[:1]
	deskIn(t, 120, 40, partly, "$").wants("replicas $4.76/h and 3 without a known price", "105% of the ready capacity used")
	deskIn(t, 120, 40, ownMachines(), "$").wants("revenue of donations $0.30/h")

	ended := normal()
	failed := &ended.Regions[0].Replicas[1]
	failed.State, failed.USDPerHour = service.StateFailed, ptr(100.0)
	deskIn(t, 120, 40, ended, "$").wants("replicas $107")
	failed.Terminated = true // it is not billed
	deskIn(t, 120, 40, ended, "$").wants("replicas $7.46/h")

	local := normal()
	for i := range local.Regions {
		r := &local.Regions[i]
		r.Name = service.Region("local/" + r.Name.ShortName())
		for j := range r.Replicas {
			r.Replicas[j].USDPerHour = nil
		}
	}
	deskIn(t, 120, 40, local, "$").wants("replicas: not billed (local regions)")
}

func TestPlanRowsDifferByCapacityType(t *testing.T) {
	s := normal()
	add := s.Plan.Changes[0]
	add.Capacity, s.Plan.Changes[0].Capacity = service.CapacitySpot, service.CapacityOnDemand
	s.Plan.Changes[0].Delta = -1
	s.Plan.Changes = append(s.Plan.Changes, add)
	d := deskIn(t, 80, 24, s, "5", "j", "j", "j")
	d.poll(time.Second)
	if r, ok := d.model.screen.lists[viewPlan].current(); !ok || !strings.HasSuffix(r.id, "spot") || d.model.screen.lists[viewPlan].selected != 2 {
		t.Errorf("after a poll, row %d is selected (%q), want the last one", d.model.screen.lists[viewPlan].selected, r.id)
	}
	d.wants("CAPACITY", "spot", "on_demand", "CURRENT", "PLANNED", "REASON")
	d = deskIn(t, 80, 24, normal(), "5")
	d.lacks("CAPACITY") // one capacity type does not tell rows apart
}

// A model whose name contains the name of another one is not opened with it.
func TestEnterOnAModelShowsOnlyItsReplicas(t *testing.T) {
	s := normal()
	us := &s.Regions[0]
	us.Replicas[1].Model = llama + "-large"
	us.Models = append(us.Models, telemetry.ModelSnapshot{Model: llama + "-large"})
	for _, view := range []string{"9", "$"} {
		d := deskIn(t, 120, 40, s, view)
		rows := &d.model.screen.lists[d.model.screen.view]
		for range rows.sheet.rows {
			if d.press("j"); rows.id == llama || rows.id == string(us.Name)+" "+llama {
				break
			}
		}
		d.run(d.press("enter"))
		d.wants(us.Replicas[0].ID)
		d.lacks(us.Replicas[1].ID)
	}
}

// A region whose traffic is unknown has a known price: without its tokens, the price per token would be too high.
func TestUnknownTrafficHasNoPricePerToken(t *testing.T) {
	s := normal()
	deskIn(t, 160, 40, s, "$").wants("per million tokens, last minute")
	s.Regions = slices.Clone(s.Regions)
	s.Regions[1].Models = slices.Clone(s.Regions[1].Models)
	s.Regions[1].Models[0].Traffic = nil
	deskIn(t, 160, 40, s, "$").lacks("per million tokens, last minute")
}

// Under HISTORY there is nothing of later times: neither the load nor the requests.
func TestHistoryShowsNothingOfLaterTimes(t *testing.T) {
	d := newDesk(t, 160, 40, normal())
	s := normal()
	s.At = noon.Add(-time.Hour)
	d.fetch.snapshot = s
	d.poll(0)
	d.fetch.snapshot = normal()
	d.poll(time.Hour)
	d.run(d.press("4"))
	f := &d.model.screen.snapshot.Forecast[0]
	now, _ := d.model.screen.latestLoad(f)
	d.press("<")
	f = &d.model.screen.snapshot.Forecast[0]
	then, known := d.model.screen.latestLoad(f)
	if l := loadHistory()[0]; !known || then == now || then != l.TPS[len(l.TPS)-61] || len(d.model.screen.loadOf(f).TPS) != len(l.TPS)-60 {
		t.Errorf("the load of an hour ago is %g, now %g", then, now)
	}
	d.run(d.press("3"))
	d.wants("HISTORY", "The history contains no requests")
	d.lacks("req-", "rejected 503")
	d.press("2", "j", "enter")
	d.wants("the history contains no requests")
	d.press("esc", "esc", "3")
	d.wants("rejected 503")
}

func TestEmptyLogHasNoLines(t *testing.T) {
	p := panel{kind: panelLogs, title: "logs of us-0"}
	p.setText("", nil)
	if text := strings.Join(p.Render(ptr(mustTheme(NewTheme(ThemePlain, false))), 80, 10), "\n"); !strings.Contains(text, "no lines") {
		t.Errorf("got %q", text)
	}
}

func TestCommandsRejectSuperfluousArguments(t *testing.T) {
	for _, command := range []string{"apply us", "yaml x", "service x", "help x", "quit x", "q x"} {
		d := deskIn(t, 120, 40, normal(), ":", command)
		if quits(d.press("enter")) {
			t.Errorf("%q quits", command)
		}
		d.wants(strings.Fields(command)[0] + ": accepts no arguments")
		if d.model.screen.dialog.open() {
			t.Errorf("%q asks for confirmation", command)
		}
	}
}

// The end of a donation sorts by time, and has its day unless it is today.
func TestDonationsSortByTheirEnd(t *testing.T) {
	s := ownMachines()
	d := s.Donations[0]
	tomorrow, late, open := d, d, d
	tomorrow.Replica, tomorrow.Until = "us-0", ptr(noon.Add(12*time.Hour+30*time.Minute))
	late.Replica, late.Until = "us-1", ptr(noon.Add(11*time.Hour+50*time.Minute))
	open.Replica, open.Until = "us-3", nil
	s.Donations = []telemetry.Donation{open, tomorrow, late}
	desk := deskIn(t, 160, 40, s, "6")
	desk.wants("Thu 00:30", " 23:50", "no end")
	for _, want := range []string{"us-1 us-0 us-3", "us-0 us-1 us-3"} {
		desk.press("I")
		l := &desk.model.screen.lists[viewDonations]
		var ids []string
		for _, i := range l.shown {
			ids = append(ids, l.sheet.rows[i].id)
		}
		if got := strings.Join(ids, " "); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
}
