package tui

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"charm.land/bubbles/v2/key"
	tea "charm.land/bubbletea/v2"

	"skyserve/internal/printable"
	"skyserve/internal/service"
	"skyserve/internal/telemetry"
)

// dialog prompts for confirmation before actions are performed.
type dialog struct {
	actions []Action
	lines   []string // the question, then the consequences
}

func (d *dialog) open() bool { return len(d.actions) > 0 }

// toast is a message: the result of an action, or why it was rejected.
type toast struct {
	text string
	bad  bool
	at   time.Time
	// failures are those of confirmed actions. They stay until esc, also with later messages.
	failures string
}

// shown returns the message and the failures, the newer text first.
func (t *toast) shown() string {
	return strings.Trim(t.text+"; "+t.failures, "; ")
}

// toastDuration is how long a message is shown, errorDuration how long an error is shown; esc removes both.
const (
	toastDuration = 15 * time.Second
	errorDuration = time.Minute
)

// actionDoneMsg is the result of one action, with the actions still to perform.
type actionDoneMsg struct {
	action    Action
	text      string
	err       error
	remaining []Action
}

// showToast shows a message.
func (m *Model) showToast(text string, bad bool) {
	m.screen.toast = toast{text, bad, m.cfg.Now(), m.screen.toast.failures}
}

// handleActionKey handles the keys of actions.
func (m *Model) handleActionKey(msg tea.KeyPressMsg) (cmd tea.Cmd, taken bool) {
	s, k := &m.screen, m.screen.keys
	if s.help || s.panel.open() {
		return nil, false
	}
	verbs := []struct {
		binding key.Binding
		verb    Verb
	}{{k.Drain, VerbDrain}, {k.Undrain, VerbUndrain}, {k.Donate, VerbDonate}, {k.Reclaim, VerbReclaim}, {k.Apply, VerbApply}}
	for _, v := range verbs {
		if key.Matches(msg, v.binding) {
			m.confirmAction(v.verb, s.targetReplicas())
			return nil, true
		}
	}
	switch {
	case key.Matches(msg, k.Describe):
		return m.describe(), true
	case key.Matches(msg, k.Shell):
		return m.openShell(), true
	case key.Matches(msg, k.YAML):
		return m.showYAML(), true
	case key.Matches(msg, k.Logs):
		if id, ok := s.logTarget(); ok {
			return m.openLogs(id), true
		}
		m.showToast("logs: "+s.logHint(), true)
		return nil, true
	}
	return nil, false
}

// actionCommand opens the confirmation of an action that was typed as a command.
func (m *Model) actionCommand(verb Verb, args []string) (tea.Cmd, string) {
	switch verb {
	case VerbDrain, VerbUndrain, VerbDonate, VerbReclaim:
		if len(args) == 0 {
			args = m.screen.targetReplicas()
		}
		for _, id := range args {
			// A drained replica may no longer be shown but can still be undrained.
			if _, ok := m.screen.regionOfReplica(id); !ok && verb != VerbUndrain {
				return nil, string(verb) + ": replica " + quoted(id) + " not found; tab completes names"
			}
		}
	case VerbApply:
	default:
		return nil, "unknown command " + quoted(string(verb)) + "; press tab to complete"
	}
	m.confirmAction(verb, args)
	return nil, ""
}

// targetReplicas returns the replicas that an action applies to: those marked or selected
// in the current list, if it is a list of replicas.
func (s *screen) targetReplicas() []string {
	if s.view == viewReplicas || s.view == viewDonations {
		return s.pane().targetIDs()
	}
	return nil
}

// confirmAction opens the confirmation of an action, or shows why it is rejected.
func (m *Model) confirmAction(verb Verb, replicas []string) {
	s := &m.screen
	switch {
	case m.cfg.Operator == nil:
		m.showToast(string(verb)+": this dashboard is read-only", true)
		return
	case s.pastFrame != nil:
		m.showToast(string(verb)+": viewing history; press esc for live", true)
		return
	case s.link.err != "" && s.link.file:
		m.showToast(string(verb)+": no current data", true)
		return
	case s.link.err != "" || s.snapshot == nil:
		m.showToast(string(verb)+": not connected", true)
		return
	}
	if verb == VerbApply {
		m.confirmPlan()
		return
	}
	if len(replicas) == 0 {
		what, view, there := "a replica", " in view 2", " there"
		switch {
		case s.view == viewReplicas || s.view == viewDonations:
			view, there = "", ""
		case verb == VerbReclaim:
			what, view = "a donated replica", " in view 6"
		}
		m.showToast(string(verb)+": select "+what+view+", or mark several"+there+" with space", true)
		return
	}
	var allowed []Action
	var ids []string
	var refusal string
	for _, id := range replicas {
		if slices.Contains(ids, id) { // a command may name a replica twice
			continue
		}
		if why := s.refusal(verb, id, ids); why != "" {
			refusal = why
			continue
		}
		allowed, ids = append(allowed, Action{Verb: verb, Replica: id}), append(ids, id)
	}
	if len(allowed) == 0 {
		m.showToast(string(verb)+": "+refusal, true)
		return
	}
	for i := range ids {
		ids[i] = s.theme.text(ids[i])
	}
	s.dialog = dialog{actions: allowed, lines: []string{
		strings.ToUpper(string(verb)[:1]) + string(verb)[1:] + " " + strings.Join(ids, ", ") + "?", s.describeEffect(verb, allowed),
	}}
}

// replica returns the replica of that id; nil if there is none.
func (s *screen) replica(id string) *telemetry.ReplicaSnapshot {
	for i := range s.snapshot.Regions {
		for k := range s.snapshot.Regions[i].Replicas {
			if r := &s.snapshot.Regions[i].Replicas[k]; r.ID == id {
				return r
			}
		}
	}
	return nil
}

// describeEffect describes the effect of an action, with the replicas that stay ready.
func (s *screen) describeEffect(verb Verb, actions []Action) string {
	switch verb {
	case VerbUndrain:
		return "New requests are sent to it again."
	case VerbReclaim:
		return "It serves again at once: its weights are still loaded."
	}
	draining := map[service.Region]int{}
	for _, a := range actions {
		if r := s.replica(a.Replica); r.State == service.StateReady {
			region, _ := s.regionOfReplica(a.Replica)
			draining[region]++
		}
	}
	text := "In-flight requests complete; no new ones are sent."
	if verb == VerbDonate {
		text = "In-flight requests complete, then the replica is donated: it keeps running for other work until it is reclaimed. After autoscale.donate_for it is removed, except in static regions."
	}
	for _, r := range regionsOf(s.snapshot) {
		if n := draining[r.Name]; n > 0 {
			text += fmt.Sprintf(" %s: %d of %d ready replicas remain.", s.theme.text(r.Name.ShortName()), readyCount(r.Replicas)-n, readyCount(r.Replicas))
		}
	}
	if models := s.lastReady(actions); len(models) > 0 {
		text += fmt.Sprintf(" No other replica of %s is ready.", strings.Join(models, ", "))
	}
	return text
}

// lastReady returns the names of the models whose ready replicas are all in actions, sorted.
func (s *screen) lastReady(actions []Action) []string {
	left := map[string]bool{} // by model: whether another replica is ready
	for _, region := range s.snapshot.Regions {
		for i := range region.Replicas {
			r := &region.Replicas[i]
			if r.State == service.StateReady {
				taken := slices.ContainsFunc(actions, func(a Action) bool { return a.Replica == r.ID })
				left[r.Model] = left[r.Model] || !taken
			}
		}
	}
	var models []string
	for _, a := range actions {
		if other, ready := left[s.replica(a.Replica).Model]; ready && !other {
			models = append(models, s.theme.text(shortModel(s.replica(a.Replica).Model)))
		}
	}
	slices.Sort(models)
	return slices.Compact(models)
}

// confirmPlan opens the confirmation for applying the last plan.
func (m *Model) confirmPlan() {
	s := &m.screen
	p := s.snapshot.Plan
	why := s.noPlan(p)
	switch {
	case why != "":
		m.showToast("apply: "+why, true)
	case len(p.Changes) == 0:
		m.showToast("apply: the plan has no changes", true)
	case !s.data.deployment.isHere():
		m.showToast("apply: "+s.otherMachine(Action{Verb: VerbApply}), true)
	default:
		s.dialog = dialog{actions: []Action{{Verb: VerbApply, Plan: p}}, lines: []string{
			"Apply the plan from " + p.At.In(s.snapshot.At.Location()).Format("15:04") + "?", s.summarizePlan(p),
		}}
	}
}

// summarizePlan returns the changes and the cost of a plan in one line.
func (s *screen) summarizePlan(p *telemetry.PlanSummary) string {
	more, fewer := 0, 0
	for _, c := range p.Changes {
		more, fewer = more+max(c.Delta, 0), fewer+max(-c.Delta, 0)
	}
	text := fmt.Sprintf("Adds %s and removes %d.", printable.Count(more, "replica"), fewer)
	if c := p.CostPerHour; c.Current != nil && c.Planned != nil {
		text += fmt.Sprintf(" $%.2f/h %s $%.2f/h.", *c.Current, s.theme.glyphs.arrow, *c.Planned)
	}
	return text + s.removalsWhileDown(p)
}

// removalsWhileDown returns the models from which a plan removes replicas while another replica of the model is down:
// the plan counts on a replica that serves nothing. Empty if there is none.
func (s *screen) removalsWhileDown(p *telemetry.PlanSummary) (text string) {
	var models []string
	for _, c := range p.Changes {
		if c.Delta < 0 && !slices.Contains(models, c.Model) {
			models = append(models, c.Model)
		}
	}
	for _, model := range models {
		var down []string
		for _, region := range s.snapshot.Regions {
			for _, r := range region.Replicas {
				if r.Model == model && (r.State == service.StateNotReady || r.State == service.StateFailed) {
					down = append(down, s.theme.text(r.ID)+" is "+string(r.State))
				}
			}
		}
		if len(down) > 0 {
			text += fmt.Sprintf(" It removes replicas of %s while %s.", s.theme.text(shortModel(model)), strings.Join(down, ", "))
		}
	}
	return text
}

// handleDialogKey handles the key after a confirmation prompt: y confirms, any other key
// cancels.
func (m *Model) handleDialogKey(msg tea.KeyPressMsg) tea.Cmd {
	s := &m.screen
	actions := s.dialog.actions
	s.dialog = dialog{}
	if msg.String() != "y" && msg.String() != "Y" {
		m.showToast(string(actions[0].Verb)+" cancelled", false)
		return nil
	}
	m.showToast(string(actions[0].Verb)+" "+s.theme.glyphs.ellipsis, false)
	s.clearMarks()
	return m.runActions(actions)
}

// runActions performs actions one after another, because each changes the state that the next
// is checked against.
func (m *Model) runActions(actions []Action) tea.Cmd {
	if len(actions) == 0 {
		return nil
	}
	ctx, operator, first := m.ctx, m.cfg.Operator, actions[0]
	return func() tea.Msg {
		text, err := operator.Perform(ctx, first)
		return actionDoneMsg{first, text, err, actions[1:]}
	}
}

// receiveActionResult shows the result of an action and starts the next.
func (m *Model) receiveActionResult(msg actionDoneMsg) tea.Cmd {
	m.showActionResult(msg)
	return m.runActions(msg.remaining)
}

// showActionResult shows the result of an action.
func (m *Model) showActionResult(msg actionDoneMsg) {
	what := strings.TrimSpace(string(msg.action.Verb) + " " + m.screen.theme.text(msg.action.Replica))
	if msg.err != nil {
		failure := what + ": " + m.screen.theme.text(shortError(msg.err))
		m.screen.toast = toast{failures: strings.TrimSuffix(failure+"; "+m.screen.toast.failures, "; ")}
		return
	}
	m.showToast(what+": "+m.screen.theme.text(msg.text), false)
}

// markedIDs returns the ids of the rows marked in the current list.
func (s *screen) markedIDs() []string {
	if s.view == viewReplicas {
		return s.table.marks.targetIDs("", false)
	}
	return s.lists[s.view].marks.targetIDs("", false)
}

// clearMarks removes all marks of the current list.
func (s *screen) clearMarks() {
	if s.view == viewReplicas {
		s.table.marks = marks{}
		return
	}
	s.lists[s.view].marks = marks{}
}

// logTarget returns the replica or balancer whose logs belong to the selected row.
func (s *screen) logTarget() (id string, ok bool) {
	switch s.view {
	case viewReplicas, viewDonations:
		return s.pane().selection()
	case viewRequests:
		if r, ok := s.selectedRequest(); ok && r.Target != "" {
			return r.Target, true
		}
	case viewOverview:
		if name, ok := s.pane().selection(); ok {
			if r := findRegion(s.snapshot, service.Region(name)); r != nil && len(r.Balancers) > 0 {
				return r.Balancers[0].ID, true
			}
		}
	}
	return "", false
}

// logHint says what to select for logTarget.
func (s *screen) logHint() string {
	if s.view == viewOverview {
		return "select a region with j or k"
	}
	return "select a replica, or a region in view 1"
}

// dialogLines draws the confirmation prompt above the footer.
func (s *screen) dialogLines() []string {
	if !s.dialog.open() {
		return nil
	}
	lines := []string{s.theme.alarm.apply(s.fit(" " + s.dialog.lines[0] + " "))}
	for _, l := range s.dialog.lines[1:] {
		lines = append(lines, wrap(l, s.width)...)
	}
	return append(lines, s.theme.title.apply(s.fit("Confirm? [y/N]")))
}
