package tui

import (
	"fmt"
	"strings"
	"time"

	"charm.land/bubbles/v2/key"
	tea "charm.land/bubbletea/v2"

	"skyserve/internal/service"
	"skyserve/internal/telemetry"
)

// dialog asks before orders are carried out.
type dialog struct {
	orders []Order
	lines  []string // the question, then what it means
}

func (d *dialog) open() bool { return len(d.orders) > 0 }

// toast says in a line what came of an order, or why there was none.
type toast struct {
	text string
	bad  bool
	at   time.Time
}

// toastFor is how long good news is shown; bad news stays until esc.
const toastFor = 15 * time.Second

// doneMsg is what came of one order, with those that are still to be carried out.
type doneMsg struct {
	order Order
	text  string
	err   error
	rest  []Order
}

// say shows a line.
func (m *Model) say(text string, bad bool) {
	m.screen.toast = toast{text, bad, m.cfg.Now()}
}

// orderKey takes a key that gives an order.
func (m *Model) orderKey(msg tea.KeyPressMsg) (cmd tea.Cmd, taken bool) {
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
			m.propose(v.verb, s.chosenReplicas())
			return nil, true
		}
	}
	switch {
	case key.Matches(msg, k.YAML):
		return m.yaml(), true
	case key.Matches(msg, k.Logs):
		if id, ok := s.loggable(); ok {
			return m.openLogs(id), true
		}
		m.say("logs: select a replica first", true)
		return nil, true
	}
	return nil, false
}

// orderCommand proposes what a typed command orders.
func (m *Model) orderCommand(verb Verb, args []string) (tea.Cmd, string) {
	switch verb {
	case VerbDrain, VerbUndrain, VerbDonate, VerbReclaim:
		if len(args) == 0 {
			args = m.screen.chosenReplicas()
		}
		for _, id := range args {
			// One that has drained is no longer shown, and can be taken back all the same.
			if _, ok := m.screen.regionOfReplica(id); !ok && verb != VerbUndrain {
				return nil, string(verb) + ": there is no replica " + quoted(id)
			}
		}
	case VerbApply:
		args = nil
	default:
		return nil, "there is no command " + quoted(string(verb)) + "; help lists the keys"
	}
	m.propose(verb, args)
	return nil, ""
}

// chosenReplicas are the replicas that an order is for: those marked or selected in
// the list in front, where that is one of replicas.
func (s *screen) chosenReplicas() []string {
	if s.view == viewReplicas || s.view == viewDonations {
		return s.pane().chosen()
	}
	return nil
}

// propose asks whether an order shall be carried out, or says why it cannot be.
func (m *Model) propose(verb Verb, replicas []string) {
	s := &m.screen
	switch {
	case m.cfg.Operator == nil:
		m.say(string(verb)+": this dashboard only looks; run it beside the service, or with its credentials", true)
		return
	case s.then != nil:
		m.say(string(verb)+": this is the past; esc goes back to now", true)
		return
	case s.link.err != "" || s.snapshot == nil:
		m.say(string(verb)+": the connection is lost, and so is what is known of the service", true)
		return
	}
	if verb == VerbApply {
		m.proposePlan()
		return
	}
	if len(replicas) == 0 {
		m.say(string(verb)+": select a replica first, or mark some with space", true)
		return
	}
	var fit []Order
	var refusal string
	for _, id := range replicas {
		if why := s.cannot(verb, id); why != "" {
			refusal = why
			continue
		}
		fit = append(fit, Order{Verb: verb, Replica: id})
	}
	if len(fit) == 0 {
		m.say(string(verb)+": "+refusal, true)
		return
	}
	ids := make([]string, len(fit))
	for i, o := range fit {
		ids[i] = s.theme.text(o.Replica)
	}
	s.dialog = dialog{orders: fit, lines: []string{
		strings.ToUpper(string(verb)[:1]) + string(verb)[1:] + " " + strings.Join(ids, ", ") + "?", s.consequence(verb, fit),
	}}
}

// cannot says why a replica is in no state for a verb; empty where it is.
func (s *screen) cannot(verb Verb, id string) string {
	r := s.replica(id)
	switch {
	case r == nil && verb == VerbUndrain:
		return ""
	case r == nil:
		return id + " is gone"
	case verb == VerbDrain && r.State == service.StateDraining:
		return id + " drains already"
	case verb == VerbUndrain && r.State != service.StateDraining:
		return id + " does not drain"
	case verb == VerbDonate && (r.Donated || r.State == service.StateDonated):
		return id + " is donated already"
	case verb == VerbReclaim && !r.Donated && r.State != service.StateDonated:
		return id + " is not donated"
	}
	return ""
}

// replica is the replica of that id; nil where there is none.
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

// consequence says what an order means, with what is left to serve.
func (s *screen) consequence(verb Verb, orders []Order) string {
	switch verb {
	case VerbUndrain:
		return "Requests are sent there again."
	case VerbReclaim:
		return "They serve again, with the weights that they still hold."
	}
	leaving := map[service.Region]int{}
	for _, o := range orders {
		if r := s.replica(o.Replica); r.State == service.StateReady {
			region, _ := s.regionOfReplica(o.Replica)
			leaving[region]++
		}
	}
	text := "They finish what they have and get nothing more."
	if verb == VerbDonate {
		text = "They finish what they have and are lent to the spot pool, until they are called back."
	}
	for _, r := range regionsOf(s.snapshot) {
		if n := leaving[r.Name]; n > 0 {
			text += fmt.Sprintf(" %s keeps %d of %d ready.", s.theme.text(r.Name.Place()), readyCount(r.Replicas)-n, readyCount(r.Replicas))
		}
	}
	return text
}

// proposePlan asks whether the last plan shall be applied.
func (m *Model) proposePlan() {
	s := &m.screen
	p := s.snapshot.Plan
	switch {
	case p == nil:
		m.say("apply: there is no plan yet", true)
	case len(p.Changes) == 0:
		m.say("apply: the plan changes nothing", true)
	default:
		s.dialog = dialog{orders: []Order{{Verb: VerbApply, Plan: p}}, lines: []string{
			"Apply the plan of " + p.At.In(s.snapshot.At.Location()).Format("15:04") + "?", s.planInWords(p),
		}}
	}
}

// planInWords says in a line what applying a plan changes and costs.
func (s *screen) planInWords(p *telemetry.PlanSummary) string {
	more, fewer := 0, 0
	for _, c := range p.Changes {
		more, fewer = more+max(c.Delta, 0), fewer+max(-c.Delta, 0)
	}
	text := fmt.Sprintf("%d replicas more, %d fewer.", more, fewer)
	if c := p.CostPerHour; c.Now != nil && c.Then != nil {
		text += fmt.Sprintf(" $%.2f/h %s $%.2f/h.", *c.Now, s.theme.glyphs.arrow, *c.Then)
	}
	return text
}

// answer takes the key that a dialog asks for: y does it, any other does not.
func (m *Model) answer(msg tea.KeyPressMsg) tea.Cmd {
	s := &m.screen
	orders := s.dialog.orders
	s.dialog = dialog{}
	if msg.String() != "y" && msg.String() != "Y" {
		m.say("nothing was done", false)
		return nil
	}
	m.say(string(orders[0].Verb)+" "+s.theme.glyphs.ellipsis, false)
	s.unmark()
	return m.carry(orders)
}

// carry carries orders out, one after the other: each changes what the next is
// decided on.
func (m *Model) carry(orders []Order) tea.Cmd {
	if len(orders) == 0 {
		return nil
	}
	ctx, operator, o := m.ctx, m.cfg.Operator, orders[0]
	return func() tea.Msg {
		text, err := operator.Do(ctx, o)
		return doneMsg{o, text, err, orders[1:]}
	}
}

// done shows what came of an order, and goes on with the next.
func (m *Model) done(msg doneMsg) tea.Cmd {
	m.tellDone(msg)
	return m.carry(msg.rest)
}

// tellDone says in a line what came of an order.
func (m *Model) tellDone(msg doneMsg) {
	what := strings.TrimSpace(string(msg.order.Verb) + " " + m.screen.theme.text(msg.order.Replica))
	if msg.err != nil {
		m.say(what+": "+m.screen.theme.text(briefly(msg.err)), true)
		return
	}
	if m.screen.toast.bad { // what went wrong before this one must not be covered
		return
	}
	text := m.screen.theme.text(msg.text)
	if msg.order.Verb == VerbDrain {
		text += "; :undrain " + m.screen.theme.text(msg.order.Replica) + " takes it back"
	}
	m.say(what+": "+text, false)
}

// marked is the ids that are marked in the list in front.
func (s *screen) marked() []string {
	if s.view == viewReplicas {
		return s.table.marks.chosen("", false)
	}
	return s.lists[s.view].marks.chosen("", false)
}

// unmark takes all marks of the list in front away.
func (s *screen) unmark() {
	if s.view == viewReplicas {
		s.table.marks = marks{}
		return
	}
	s.lists[s.view].marks = marks{}
}

// loggable is the process whose log the selection stands for.
func (s *screen) loggable() (id string, ok bool) {
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

// dialogLines draws the question above the footer.
func (s *screen) dialogLines() []string {
	if !s.dialog.open() {
		return nil
	}
	lines := []string{s.theme.alarm.over(s.fit(" " + s.dialog.lines[0] + " "))}
	for _, l := range s.dialog.lines[1:] {
		lines = append(lines, wrap(l, s.width)...)
	}
	return append(lines, s.theme.title.over(s.fit("y does it; any other key does not")))
}
