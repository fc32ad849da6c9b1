package tui

import (
	"fmt"
	"os/exec"
	"strings"
	"time"

	tea "charm.land/bubbletea/v2"

	"skyserve/internal/printable"
	"skyserve/internal/service"
	"skyserve/internal/telemetry"
)

// describe opens the details of the selected row: those of a machine with its alerts and events.
func (m *Model) describe() tea.Cmd {
	s := &m.screen
	id, ok := s.pane().selection()
	switch {
	case s.snapshot == nil || !ok:
		m.showToast("describe: select a row", true)
	case s.view == viewReplicas:
		return m.openReplica()
	case s.view == viewOverview:
		if r := findRegion(s.snapshot, service.Region(id)); r != nil {
			s.openText("region "+id, s.regionText(r))
		}
	case s.view == viewRequests || s.view == viewDonations:
		return m.openSelection()
	default:
		r, _ := s.lists[s.view].current()
		s.openText(viewNames[s.view], s.rowText(r))
	}
	return nil
}

// openReplica opens the details of the selected replica, which are updated while they are open.
func (m *Model) openReplica() tea.Cmd {
	s := &m.screen
	r, _ := s.table.current()
	s.openText("replica "+r.replica.ID, s.replicaText(r))
	s.panel.kind, s.panel.id = panelReplica, r.replica.ID
	return m.fetchViewData()
}

// refreshReplica updates the details of a replica if they are open, also if a filter hides it. If the snapshot
// does not have it, the title says so.
func (s *screen) refreshReplica() {
	if s.panel.kind != panelReplica {
		return
	}
	s.panel.title = "replica " + s.panel.id
	region, found := s.regionOfReplica(s.panel.id)
	switch {
	case !found && s.pastFrame != nil:
		s.panel.title += " is not in this snapshot: figures of another one"
		return
	case !found:
		s.panel.title += " no longer exists: last figures"
		return
	}
	s.panel.lines = s.replicaText(row{region: findRegion(s.snapshot, region), replica: s.replica(s.panel.id)})
}

// regionText returns the details of a region: its balancers, replicas, alerts and events.
func (s *screen) regionText(r *telemetry.RegionSnapshot) []string {
	donated := donatedCount(r.Replicas)
	replicas := fmt.Sprintf("replicas        %d of %d ready", readyCount(r.Replicas), len(r.Replicas)-donated)
	if donated > 0 {
		replicas += fmt.Sprintf(", %d donated", donated)
	}
	lines := []string{
		replicas,
		"queued          " + printable.Count(r.Queued, "request"), "",
	}
	for _, b := range r.Balancers {
		lines = append(lines,
			"balancer        "+b.ID, "  state         "+strings.TrimSuffix(string(b.State)+": "+b.Reason, ": "),
			"  version       "+orUnknown(b.Version),
		)
		lines = append(lines, balancerURLs(b)...)
	}
	lines = append(lines, "")
	for i := range r.Replicas {
		rep := &r.Replicas[i]
		lines = append(lines, fmt.Sprintf("replica         %s  %s  %s", rep.ID, rep.State, reasonOf(rep)))
	}
	return append(lines, s.aboutObject(r.Name, "")...)
}

// balancerURLs returns the lines with the URLs of a balancer. Snapshots contain the endpoint for clients of the balancer
// that sent them only; of all others they contain the URL at which balancers and commands reach them, twice.
func balancerURLs(b telemetry.BalancerSnapshot) []string {
	if b.Endpoint != "" && b.Endpoint == b.Admin {
		return []string{"  admin API     " + b.Admin + "  and peer API; not for clients"}
	}
	return []string{"  endpoint      " + orUnknown(b.Endpoint), "  admin API     " + orUnknown(b.Admin)}
}

// aboutObject returns the alerts and the events of a machine, or of a whole region without one.
func (s *screen) aboutObject(region service.Region, id string) []string {
	matches := func(in service.Region, object string) bool {
		return object == id && id != "" || id == "" && in == region
	}
	alerts, events := []string{"", "alerts:"}, []string{"", "events:"}
	for _, a := range s.snapshot.Alerts {
		if matches(a.Region, a.Object) {
			alerts = append(alerts, "  "+a.Line())
		}
	}
	for i := len(s.snapshot.Events) - 1; i >= 0; i-- {
		if e := s.snapshot.Events[i]; matches(e.Region, e.Object) {
			events = append(events, "  "+e.At.In(s.snapshot.At.Location()).Format(time.DateOnly)+" "+e.Line(s.snapshot.At.Location()))
		}
	}
	if len(alerts) == 2 {
		alerts = append(alerts, "  none")
	}
	if len(events) == 2 {
		events = append(events, "  none of the last "+count(telemetry.SnapshotEvents)+"; 'skyserve events' shows older ones")
	}
	return append(alerts, events...)
}

// replicaText returns the details of a replica: every metric with its unit, and its most
// recent requests.
func (s *screen) replicaText(r row) []string {
	rep := r.replica
	url := orUnknown(rep.URL)
	if rep.URL != "" {
		url += " (used by balancers: the engine, or its TLS proxy, which accepts balancers only)"
	}
	lines := []string{
		"region          " + string(r.region.Name),
		"model           " + orUnknown(rep.Model),
		"GPU             " + orUnknown(rep.GPU),
		"replica URL     " + url,
		"state           " + strings.TrimSuffix(string(rep.State)+": "+reasonOf(rep), ": "),
		"pending         " + withUnit(maybeRequests(rep.Pending), " waiting in the engine"),
		"running         " + withUnit(maybeRequests(rep.Running), " in the engine's batch"),
		"outstanding     " + printable.Count(rep.Outstanding, "request") + " sent by the balancer, not finished",
		"KV utilisation  " + percent(rep.KV),
		"prefix hit rate " + percent(rep.PrefixHitRate),
		"output rate     " + withUnit(rate(rep.OutputTokensPerSecond), " tok/s"),
		"last report     " + withUnit(maybeAge(rep.AgeMillis, s.sinceFetch), " ago"),
	}
	if rep.Version != "" {
		lines = append(lines, "engine version  "+rep.Version)
	}
	if rep.ReadySince != nil {
		lines = append(lines, "ready since     "+rep.ReadySince.In(s.snapshot.At.Location()).Format(time.DateTime)+", "+uptime(rep.ReadySince, s.snapshot.At))
	}
	for i, g := range rep.GPUs {
		one := telemetry.SummarizeGPUs([]telemetry.GPUFigures{g})
		lines = append(lines, fmt.Sprintf("GPU %d           %s busy, memory %s used, %s", i, percent(one.Utilisation), percent(one.Memory), degrees(one.Temperature)))
	}
	if rep.Start != nil {
		lines = append(lines, "start           "+rep.Start.Summary())
	}
	if usd, known := s.prices.priceOf(r); known {
		lines = append(lines, fmt.Sprintf("price           $%.2f/h", usd))
	}
	for _, d := range s.snapshot.Donations {
		if d.Replica == rep.ID {
			lines = append(lines, fmt.Sprintf("donated         for %s, revenue $%.2f/h", age(s.snapshot.At.Sub(d.Since)), d.RevenuePerHour))
		}
	}
	lines = append(lines, "", "recent requests:")
	n := 0
	for i := range s.data.requests {
		if q := &s.data.requests[i]; q.Target == rep.ID && s.pastFrame == nil {
			lines = append(lines, fmt.Sprintf("  %s  %-9s %s  %s", q.At.In(s.snapshot.At.Location()).Format("15:04:05"), stateText(q), q.Request, q.Why))
			n++
		}
	}
	switch {
	case s.readOnly:
		lines = append(lines, "  snapshots do not contain requests")
	case s.pastFrame != nil:
		lines = append(lines, "  the history contains no requests")
	case s.data.requestsErr != "":
		lines = append(lines, "  update failed: "+s.theme.text(s.data.requestsErr))
	case s.data.requestsAt.IsZero():
		lines = append(lines, "  not read yet")
	case n == 0:
		lines = append(lines, "  none of the last "+count(requestLimit)+" was sent to this replica")
	}
	return append(lines, s.aboutObject(r.region.Name, rep.ID)...)
}

// shellMsg is the command that opens a shell on a machine, or why there is none.
type shellMsg struct {
	id  string
	cmd *exec.Cmd
	err error
}

// shellDoneMsg is the end of a shell.
type shellDoneMsg struct {
	id  string
	err error
}

// openShell requests the command that opens a shell on the machine of the selected row.
func (m *Model) openShell() tea.Cmd {
	id, ok := m.screen.logTarget()
	switch {
	case m.cfg.Operator == nil:
		m.showToast("shell: this dashboard is read-only", true)
	case !ok:
		m.showToast("shell: "+m.screen.logHint(), true)
	default:
		ctx, operator := m.ctx, m.cfg.Operator
		return func() tea.Msg {
			cmd, err := operator.Shell(ctx, id)
			return shellMsg{id, cmd, err}
		}
	}
	return nil
}

// runShell suspends the dashboard while the shell runs.
func (m *Model) runShell(msg shellMsg) tea.Cmd {
	if msg.err != nil {
		m.showToast("shell: "+m.screen.theme.text(shortError(msg.err)), true)
		return nil
	}
	return tea.ExecProcess(msg.cmd, func(err error) tea.Msg { return shellDoneMsg{msg.id, err} })
}

// receiveShellEnd shows how a shell ended.
func (m *Model) receiveShellEnd(msg shellDoneMsg) {
	if msg.err != nil {
		m.showToast("shell on "+m.screen.theme.text(msg.id)+": "+m.screen.theme.text(shortError(msg.err)), true)
		return
	}
	m.showToast("shell on "+m.screen.theme.text(msg.id)+" closed", false)
}

// withUnit appends a unit to a value; an unknown value has none.
func withUnit(value, unit string) string {
	if value == unknown {
		return unknown
	}
	return value + unit
}

// maybeRequests formats a number of requests that may be unknown.
func maybeRequests(n *int) string {
	if n == nil {
		return unknown
	}
	return printable.Count(*n, "request")
}
