package tui

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	tea "charm.land/bubbletea/v2"

	"skyserve/internal/service"
	"skyserve/internal/telemetry"
)

// desk is a dashboard under test with a clock of its own.
type desk struct {
	t     *testing.T
	model *Model
	fetch *script
	op    *deskOperator
	now   time.Time
}

// newDesk opens a dashboard of that size without a snapshot.
func newDesk(t *testing.T, w, h int, s *telemetry.Snapshot) *desk {
	t.Helper()
	d := &desk{t: t, fetch: &script{snapshot: s}, op: &deskOperator{spec: deployedFrom(s)}, now: noon}
	d.model = New(context.Background(), Config{
		Fetcher: d.fetch, Operator: d.op, Interval: time.Second, Theme: mustTheme(NewTheme(ThemePlain, false)), Now: func() time.Time { return d.now },
	})
	d.send(tea.WindowSizeMsg{Width: w, Height: h})
	return d
}

// replicasDesk opens a dashboard that shows the replicas.
func replicasDesk(t *testing.T, w, h int, s *telemetry.Snapshot) *desk {
	t.Helper()
	d := newDesk(t, w, h, s)
	d.press("2")
	return d
}

func (d *desk) send(msg tea.Msg) tea.Cmd {
	d.t.Helper()
	_, cmd := d.model.Update(msg)
	checkFrame(d.t, d.frame(), d.model.screen.width, d.model.screen.height)
	return cmd
}

// poll advances the clock and makes the dashboard fetch once.
func (d *desk) poll(after time.Duration) {
	d.t.Helper()
	d.now = d.now.Add(after)
	d.send(d.model.fetch()())
	if d.model.screen.data.fetchingDeployment {
		d.send(deploymentMsg{d.op.spec, d.op.err, d.now})
	}
}

// press sends keystrokes: names of keys, or characters.
func (d *desk) press(keys ...string) tea.Cmd {
	d.t.Helper()
	named := map[string]tea.Key{
		"enter": {Code: tea.KeyEnter}, "esc": {Code: tea.KeyEscape}, "tab": {Code: tea.KeyTab}, "up": {Code: tea.KeyUp}, "down": {Code: tea.KeyDown},
		"pgup": {Code: tea.KeyPgUp}, "pgdown": {Code: tea.KeyPgDown}, "home": {Code: tea.KeyHome}, "end": {Code: tea.KeyEnd}, "left": {Code: tea.KeyLeft},
		"backspace": {Code: tea.KeyBackspace}, "delete": {Code: tea.KeyDelete}, "shift+tab": {Code: tea.KeyTab, Mod: tea.ModShift}, "space": {Code: tea.KeySpace, Text: " "},
		"ctrl+c": {Code: 'c', Mod: tea.ModCtrl}, "ctrl+u": {Code: 'u', Mod: tea.ModCtrl}, "ctrl+w": {Code: 'w', Mod: tea.ModCtrl}, "ctrl+k": {Code: 'k', Mod: tea.ModCtrl},
	}
	var cmd tea.Cmd
	for _, k := range keys {
		if key, ok := named[k]; ok {
			cmd = d.send(tea.KeyPressMsg(key))
			continue
		}
		for _, r := range k {
			cmd = d.send(tea.KeyPressMsg(tea.Key{Code: r, Text: string(r)}))
		}
	}
	return cmd
}

// run runs a command and its parts, and sends their messages to the dashboard. None of them
// may wait for a timer.
func (d *desk) run(cmd tea.Cmd) {
	d.t.Helper()
	if cmd == nil {
		return
	}
	switch msg := cmd().(type) {
	case tea.BatchMsg:
		for _, c := range msg {
			d.run(c)
		}
	case nil:
	case actionDoneMsg: // the next action follows
		d.run(d.send(msg))
	default:
		d.send(msg)
	}
}

func (d *desk) frame() string { return d.model.View().Content }

func (d *desk) wants(parts ...string) {
	d.t.Helper()
	for _, p := range parts {
		if !strings.Contains(d.frame(), p) {
			d.t.Errorf("the frame lacks %q:\n%s", p, d.frame())
		}
	}
}

func (d *desk) lacks(parts ...string) {
	d.t.Helper()
	for _, p := range parts {
		if strings.Contains(d.frame(), p) {
			d.t.Errorf("the frame must not contain %q:\n%s", p, d.frame())
		}
	}
}

// order is the ids of the replicas as listed.
func (d *desk) order() string {
	var ids []string
	for _, r := range d.model.screen.table.rows {
		ids = append(ids, r.replica.ID)
	}
	return strings.Join(ids, " ")
}

func quits(cmd tea.Cmd) bool {
	if cmd == nil {
		return false
	}
	_, ok := cmd().(tea.QuitMsg)
	return ok
}

func TestConnectDisconnectReconnect(t *testing.T) {
	d := replicasDesk(t, 120, 40, normal())
	d.wants("connecting to http://127.0.0.1:8101")
	d.fetch.err = errRefused
	d.poll(3 * time.Second)
	d.wants("connecting to", "connection refused", "retrying for 3.0s")
	d.fetch.err = nil
	d.poll(time.Second)
	d.wants("chat", "us-0", "12:00:00")
	d.fetch.err = errRefused
	d.poll(12 * time.Second)
	d.wants("DISCONNECTED 12s", "connection lost, retrying; data is", "us-0")
	d.fetch.err = nil
	d.poll(time.Second)
	d.lacks("DISCONNECTED", "connection lost")
}

// An error of a recording is no lost connection.
func TestErrorOfRecordingIsNotDisconnected(t *testing.T) {
	d := replicasDesk(t, 120, 40, ownMachines())
	d.poll(0)
	d.fetch.err = FileError{errors.New("writing --record: no space left on device")}
	d.poll(12 * time.Second)
	d.wants("NO UPDATES 12s", "no new data, retrying; data is 12s old: writing --record: no space left on device", "us-0")
	d.lacks("DISCONNECTED", "connection")
	d.press("j", "x")
	if text := d.model.screen.toast.text; text != "drain: no current data" {
		t.Errorf("an action is rejected with %q", text)
	}
	d.fetch.err = nil
	d.poll(time.Second)
	d.lacks("NO UPDATES", "no new data")
}

// The history stays marked when the connection is lost, and the age is that of the newest data.
func TestHistoryIsMarkedWhileDisconnected(t *testing.T) {
	d := newDesk(t, 120, 40, normal())
	d.poll(0)
	d.poll(time.Minute)
	d.press("<")
	d.fetch.err = errRefused
	d.poll(12 * time.Second)
	d.wants("HISTORY 12:00:00", "connection lost, retrying; the newest data is 12s old")
}

func TestDisconnectedFrameIsDimmed(t *testing.T) {
	d := replicasDesk(t, 120, 40, normal())
	d.model.screen.theme = mustTheme(NewTheme(ThemeDark, false))
	d.poll(0)
	good := d.model.screen.theme.good.on
	if !strings.Contains(d.frame(), good) {
		t.Fatal("a ready replica has a colour")
	}
	d.fetch.err = errRefused
	d.poll(time.Second)
	if strings.Contains(d.frame(), good) {
		t.Error("metrics of a lost connection must not look current")
	}
}

func TestRetries(t *testing.T) {
	if a, b := retryIn(100*time.Millisecond), retryIn(5*time.Second); a != time.Second || b != 5*time.Second {
		t.Errorf("retrying in %s and %s, want no faster than once a second", a, b)
	}
	d := newDesk(t, 80, 24, normal())
	d.fetch.err = errRefused
	before := d.model.polls
	if cmd := d.send(d.model.fetch()()); cmd == nil {
		t.Fatal("a failed fetch must schedule the next")
	}
	if d.model.polls != before+1 {
		t.Errorf("got %d fetches, want one at a time", d.model.polls-before)
	}
}

func TestResponsesOfEarlierPollsAreIgnored(t *testing.T) {
	d := newDesk(t, 80, 24, normal())
	late := d.model.fetch()
	d.poll(0)
	other := normal()
	other.Service = "other"
	d.fetch.snapshot = other
	if cmd := d.send(late()); cmd != nil {
		t.Error("an outdated response must not start another round of polls")
	}
	d.lacks("other")
}

func TestStaleDataShowsItsAge(t *testing.T) {
	d := newDesk(t, 80, 24, normal())
	d.poll(0)
	d.now = d.now.Add(8 * time.Second)
	d.send(clockMsg(d.now))
	d.wants("STALE 8.0s")
}

func TestPauseStopsPolling(t *testing.T) {
	d := replicasDesk(t, 80, 24, normal())
	d.poll(0)
	d.press("p")
	calls := d.fetch.calls
	if cmd := d.send(pollMsg{d.model.polls}); cmd != nil {
		t.Error("a paused dashboard must not fetch")
	}
	d.now = d.now.Add(7 * time.Second)
	d.send(clockMsg(d.now))
	d.wants("PAUSED 7.0s")
	cmd := d.press("p")
	if cmd == nil {
		t.Fatal("resuming must fetch at once")
	}
	d.run(cmd)
	d.lacks("PAUSED")
	if d.fetch.calls != calls+1 {
		t.Errorf("got %d fetches, want one", d.fetch.calls-calls)
	}
}

func TestRefreshFetchesAtOnce(t *testing.T) {
	d := replicasDesk(t, 80, 24, normal())
	d.poll(0)
	d.fetch.snapshot = crowd(2, 2)
	d.run(d.press("r"))
	d.wants("r1-1")
}

func TestQuit(t *testing.T) {
	for _, k := range []string{"q", "ctrl+c"} {
		if !quits(newDesk(t, 80, 24, normal()).press(k)) {
			t.Errorf("%s must quit", k)
		}
	}
	d := newDesk(t, 80, 24, normal())
	d.press("/")
	if quits(d.press("q")) {
		t.Error("q must be a letter while a filter is typed")
	}
	if !quits(d.press("ctrl+c")) {
		t.Error("ctrl+c must quit from every mode")
	}
}

func TestFilterAppliesWhileTyping(t *testing.T) {
	d := replicasDesk(t, 120, 40, normal())
	d.poll(0)
	d.press("/", "us-1 READY")
	d.wants("us-1", "/us-1 READY", "1 replica  enter keep, esc clear")
	d.lacks("us-0", "eu-1")
	if c := d.model.View().Cursor; c == nil || c.X != 11 || c.Y != 39 {
		t.Errorf("the cursor is at %+v, want after the text", c)
	}
	d.press("enter")
	d.wants("filter: us-1 READY (1 of 9)")
	d.press("/", "ctrl+u", "nothing like it")
	d.wants("0 replicas")
	d.press("esc")
	d.wants("us-0", "eu-1")
}

func TestFilterEditing(t *testing.T) {
	tests := []struct {
		keys []string
		want string
	}{
		{[]string{"abc", "backspace"}, "ab"},
		{[]string{"abc", "left", "backspace", "x"}, "axc"},
		{[]string{"abc", "home", "delete"}, "bc"},
		{[]string{"one two ", "ctrl+w"}, "one "},
		{[]string{"abc", "left", "ctrl+k"}, "ab"},
		{[]string{"backspace", "delete", "ctrl+w", "é界"}, "é界"},
		{[]string{strings.Repeat("x", 2*maxFilter)}, strings.Repeat("x", maxFilter)},
	}
	for _, tt := range tests {
		d := replicasDesk(t, 80, 24, normal())
		d.poll(0)
		d.press(append([]string{"/"}, tt.keys...)...)
		if got := d.model.screen.table.filter; got != tt.want {
			t.Errorf("%q: got %q, want %q", tt.keys, got, tt.want)
		}
	}
}

func TestPasteIntoTheFilter(t *testing.T) {
	d := replicasDesk(t, 80, 24, normal())
	d.poll(0)
	d.send(tea.PasteMsg{Content: "ignored"})
	d.press("/")
	d.send(tea.PasteMsg{Content: "eu\x1b[31m-1"})
	if got := d.model.screen.table.filter; got != "eu-1" {
		t.Errorf("got %q", got)
	}
}

func TestFocusOnARegion(t *testing.T) {
	d := replicasDesk(t, 120, 40, normal())
	d.poll(0)
	d.press("tab")
	d.wants("lb-ap-northeast-1-1", "no heartbeat for 4.1s", "ap-0", "region: aws/ap-northeast-1")
	d.lacks("us-0", "eu-0")
	d.press("shift+tab")
	d.wants("us-0", "eu-0")
	d.press("1", "j", "j", "enter") // into the second region
	d.wants("[2 replicas]", "us-0")
	d.lacks("eu-0")
	d.press("esc") // back to the overview
	d.wants("[1 overview]")
	d.press("2")
	d.wants("eu-0")
	d.press("tab", "tab", "tab", "tab")
	d.wants("static/paris", "no replicas")
	d.press("tab")
	d.wants("us-0")
}

func TestFocusEndsWhenRegionIsRemoved(t *testing.T) {
	d := replicasDesk(t, 120, 40, normal())
	d.poll(0)
	d.press("tab")
	d.fetch.snapshot = crowd(2, 2)
	d.poll(time.Second)
	d.wants("r0-0", "r1-0")
}

func TestSorting(t *testing.T) {
	d := replicasDesk(t, 120, 40, normal())
	d.poll(0)
	tests := []struct{ key, want string }{
		{"", "ap-0 ap-1 ap-2 us-0 us-1 us-3 us-10 eu-0 eu-1"},
		{"K", "ap-0 ap-1 ap-2 us-1 us-0 us-3 us-10 eu-0 eu-1"},
		{"K", "ap-0 ap-1 ap-2 us-3 us-0 us-1 us-10 eu-1 eu-0"}, // unknown stays last
		{"S", "ap-2 ap-1 ap-0 us-10 us-3 us-0 us-1 eu-0 eu-1"},
		{"U", "ap-0 ap-1 ap-2 us-0 us-1 us-3 us-10 eu-0 eu-1"},
		{"N", "ap-0 ap-1 ap-2 us-0 us-1 us-3 us-10 eu-0 eu-1"},
		{"N", "ap-2 ap-1 ap-0 us-10 us-3 us-1 us-0 eu-1 eu-0"},
	}
	for i, tt := range tests {
		d.press(tt.key)
		if got := d.order(); got != tt.want {
			t.Errorf("step %d, %s: got %s, want %s", i, tt.key, got, tt.want)
		}
	}
	for range sortKeys {
		d.press("s")
	}
	if o := d.model.screen.table.order; o.key != byName {
		t.Errorf("s cycles to %s, want the first", sortWords[o.key])
	}
}

func TestEverySortKeyMarksItsColumn(t *testing.T) {
	d := replicasDesk(t, 200, 60, normal())
	d.poll(0)
	titles := [sortKeys]string{"REPLICA▴", "STATE▴", "MODEL▴", "GPU▴", "PENDING▾", "RUNNING▾", "OUTSTANDING▾", "KV▾", "HIT▾", "TOK/S▾", "$/H▾", "SEEN▾"}
	for i, title := range titles {
		d.press(sortLetters[i])
		if i == 0 {
			d.press("N") // the first press reverses the current order
		}
		d.wants(title)
	}
}

func TestSelectionStaysVisible(t *testing.T) {
	d := replicasDesk(t, 80, 24, crowd(3, 40))
	d.poll(0)
	d.lacks("▸")
	steps := []struct {
		keys []string
		want string
	}{
		{[]string{"j"}, "r0-0"},
		{[]string{"down", "j", "k"}, "r0-1"},
		{[]string{"G"}, "r2-39"},
		{[]string{"up"}, "r2-38"},
		{[]string{"home"}, "r0-0"},
		{[]string{"end"}, "r2-39"},
		{[]string{"g", "pgup"}, "r0-0"},
	}
	for _, s := range steps {
		d.press(s.keys...)
		r, ok := d.model.screen.table.current()
		if !ok || r.replica.ID != s.want {
			t.Errorf("%v: selected %+v, want %s", s.keys, r.replica, s.want)
		}
		d.wants("▸ " + s.want)
	}
	for range 12 {
		d.press("pgdown")
		r, _ := d.model.screen.table.current()
		d.wants("▸ " + r.replica.ID)
	}
	d.press("esc")
	d.lacks("▸")
}

func TestScrolledTableShowsRegionHeading(t *testing.T) {
	d := replicasDesk(t, 80, 24, crowd(3, 40))
	d.poll(0)
	d.press("G")
	d.wants("aws/region-2  40 replicas, 40 ready, Llama-3.1-8B-Instruct, continued")
}

func TestSelectionFollowsReplica(t *testing.T) {
	d := replicasDesk(t, 120, 40, crowd(1, 5))
	d.poll(0)
	d.press("j", "j")
	d.press("K")
	d.wants("▸ r0-1")
	s := crowd(1, 5)
	s.Regions[0].Replicas = s.Regions[0].Replicas[2:]
	d.fetch.snapshot = s
	d.poll(time.Second)
	if _, ok := d.model.screen.table.current(); !ok {
		t.Error("the replica at the same position is selected after the selected one was removed")
	}
	d.fetch.snapshot = &telemetry.Snapshot{At: noon, Service: "chat"}
	d.poll(time.Second)
	d.press("j", "k", "pgdown", "G", "tab", "enter", "s", "esc")
	d.wants("No regions yet")
}

func TestDetailShowsTruncatedText(t *testing.T) {
	d := replicasDesk(t, 80, 24, normal())
	d.poll(0)
	d.press("j", "j", "j")
	d.wants("NOT_READY: GET http://10.2.0.12:8000/v1/models: connection refused")
}

func TestStateChangesAreShown(t *testing.T) {
	d := newDesk(t, 120, 40, normal())
	d.poll(0)
	d.lacks("ago:")
	s := normal()
	s.Regions[1].Replicas[1].State, s.Regions[1].Replicas[1].Reason = service.StateNotReady, "timed out"
	d.fetch.snapshot = s
	d.poll(time.Second)
	d.wants("<1s ago: eu-1 READY → NOT_READY: timed out")
	s = normal()
	s.Regions[1].Replicas = append(s.Regions[1].Replicas, troubled("eu-2", service.StatePending, ""))
	d.fetch.snapshot = s
	d.poll(5 * time.Second)
	d.wants("ago: eu-2 added, PENDING")
	s = normal()
	s.Regions[1].Replicas = s.Regions[1].Replicas[:1]
	d.fetch.snapshot = s
	d.poll(time.Second)
	d.wants("ago: eu-1 removed")
}

// A recording plays at another speed than the clock, and ends: what it shows happened at the times of its snapshots.
func TestReplayShowsTimesOfTheRecording(t *testing.T) {
	d := newDesk(t, 120, 40, normal())
	d.model.screen.link.replay = true
	d.poll(0)
	s := normal()
	s.At = s.At.Add(30 * time.Second)
	s.Regions[1].Replicas[1].State, s.Regions[1].Replicas[1].Reason = service.StateNotReady, "timed out"
	d.fetch.snapshot = s
	d.poll(time.Second)
	later := *s
	later.At = s.At.Add(90 * time.Second)
	d.fetch.snapshot = &later
	d.poll(time.Second)
	d.poll(10 * time.Minute)
	d.wants("90s ago: eu-1 READY → NOT_READY: timed out")
	d.lacks(" every 1s")
}

// While a balancer does not respond, another one lists its replica: it is neither added nor removed.
func TestAdoptedReplicaIsNotRemoved(t *testing.T) {
	d := newDesk(t, 120, 40, normal())
	d.poll(0)
	adopted := func() *telemetry.Snapshot {
		s := normal()
		rep := s.Regions[1].Replicas[1]
		rep.Region = s.Regions[1].Name
		s.Regions[0].Replicas = append(s.Regions[0].Replicas, rep)
		return s
	}
	d.fetch.snapshot = adopted()
	d.fetch.snapshot.Regions[1].Replicas = d.fetch.snapshot.Regions[1].Replicas[:1]
	d.poll(time.Second)
	d.wants("ago: eu-1 moved from europe-west4 to us-east-1, READY")
	d.fetch.snapshot = adopted()
	d.poll(time.Second)
	d.wants("ago: eu-1 moved from us-east-1 to europe-west4, READY")
	d.fetch.snapshot = normal()
	d.poll(time.Second)
	d.wants("ago: eu-1 moved from us-east-1 to europe-west4, READY")
	d.lacks("removed", "added")
}

func TestQueueTrend(t *testing.T) {
	d := newDesk(t, 120, 40, normal())
	d.poll(0)
	d.lacks("↑", "↓")
	s := normal()
	s.Regions[0].Queued += 5
	s.Regions[1].Queued -= 5
	d.fetch.snapshot = s
	d.poll(time.Second)
	d.wants("9↑", "3↓")
}

func TestThemeCyclesAndFollowsTheBackground(t *testing.T) {
	for _, dark := range []bool{true, false} {
		d := newDesk(t, 80, 24, normal())
		d.model.screen.theme = mustTheme(NewTheme(ThemeAuto, true))
		d.model.setBackground(dark)
		want := map[bool]string{true: ThemeDark, false: ThemeLight}[dark]
		if th := d.model.screen.theme; th.Name != want || !th.glyphs.ascii {
			t.Errorf("dark=%t: got theme %s", dark, th.Name)
		}
		d.model.setBackground(!dark)
		if d.model.screen.theme.Name != want {
			t.Error("a theme other than auto must not change")
		}
		seen := map[string]bool{}
		for range ThemeNames() {
			seen[d.model.screen.theme.Name] = true
			d.press("t")
		}
		if len(seen) != len(ThemeNames()) {
			t.Errorf("t cycles through %v, want all of %v", seen, ThemeNames())
		}
	}
}

func TestHelpListsEveryKey(t *testing.T) {
	d := replicasDesk(t, 200, 60, normal())
	d.poll(0)
	d.press("?")
	for _, g := range d.model.screen.keys.Groups() {
		d.wants(g.Title)
		for _, k := range g.Keys {
			d.wants(k.Help().Key + " ")
			d.wants(k.Help().Desc)
		}
		d.wants(g.Notes...)
	}
	d.lacks("us-0")
	d.press("s") // sorts nothing behind the help
	if d.model.screen.table.order != (sortOrder{}) {
		t.Error("keys that sort the table must be ignored while the help is shown")
	}
	d.press("?")
	d.wants("us-0")
}

func TestHelpScrolls(t *testing.T) {
	d := newDesk(t, 60, 12, normal())
	d.poll(0)
	d.press("?")
	d.wants("Views")
	d.press("G")
	d.wants("marked")
	d.press("pgup", "g")
	d.wants("Views")
	d.press("esc")
	d.lacks("Views")
}

func TestNoTwoKeysCollide(t *testing.T) {
	seen := map[string]string{}
	for _, g := range NewKeyMap().Groups() {
		for _, b := range g.Keys {
			for _, k := range b.Keys() {
				if other, taken := seen[k]; taken {
					t.Errorf("%q means %q and %q", k, other, b.Help().Desc)
				}
				seen[k] = b.Help().Desc
			}
		}
	}
}

func TestTimesAreShownInTheZone(t *testing.T) {
	d := newDesk(t, 80, 24, normal())
	d.model.cfg.Zone = time.FixedZone("here", 2*3600)
	d.poll(0)
	d.wants("14:00:00")
}
