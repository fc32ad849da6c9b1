package eval

import (
	"fmt"
	"io"
	"math"
	"slices"
	"strings"

	"skyserve/internal/sim"
)

// WriteHTML writes reports as one self-contained HTML page: for each report a table, bars of
// throughput, boxes of TTFT and E2E, and the load over time.
func WriteHTML(out io.Writer, reports []*SimReport) error {
	var names []string
	for _, r := range reports {
		names = append(names, r.Scenario)
	}
	p := newPage(names)
	for _, r := range reports {
		newReportView(r).addTo(p)
	}
	return p.Write(out)
}

// reportView holds the contents of a report's section of the page.
type reportView struct {
	Name, Title, Basis, Headline string
	Compares, Oracle             bool // the page has more than one policy; it has the oracle
	Columns                      []column
	Rows                         []tableRow
	Charts                       []*policyChart
	LoadOverTime                 *loadSeries // nil without time series
	Note                         string
	ClaimHeader                  []string
	Claims                       [][]string
}

func newReportView(r *SimReport) reportView {
	l := newLineup(r)
	v := reportView{Name: r.Scenario, Title: r.Title, Basis: r.basis(), Headline: l.headline(), Note: r.Note}
	v.Compares, v.Oracle = l.runnerUp != nil, l.oracle != nil
	v.Columns, v.Rows = l.table()
	for _, name := range claimHeader {
		v.ClaimHeader = append(v.ClaimHeader, strings.ToLower(name))
	}
	for i := range r.Claims {
		v.Claims = append(v.Claims, r.Claims[i].cells())
	}
	v.Charts = []*policyChart{
		l.bars(),
		l.boxes("Time to first token, in seconds", sim.Figure("ttft_p90_ms"), func(f *sim.RunFigures) *sim.Percentiles { return f.TTFT }),
		l.boxes("Time to the last token, in seconds", "", func(f *sim.RunFigures) *sim.Percentiles { return f.E2E }),
	}
	v.LoadOverTime = l.loadSeries()
	return v
}

// lineup holds a report's policies in display order: runnable policies in the plan's order, then the
// oracle, which is a reference and not a policy.
type lineup struct {
	report   *SimReport
	entries  []entry
	leader   *entry // the runnable policy with the most output tokens per second
	runnerUp *entry // the runnable policy with the second highest
	oracle   *entry
}

// entry is a policy with a push mode. Leader and Oracle select how it is drawn.
type entry struct {
	*Summary
	series         []sim.LoadSample
	Leader, Oracle bool
}

func newLineup(r *SimReport) *lineup {
	l := &lineup{report: r}
	for i := range r.Summary {
		e := entry{Summary: &r.Summary[i], Oracle: r.Summary[i].Policy == sim.Oracle}
		if i < len(r.series) {
			e.series = r.series[i]
		}
		l.entries = append(l.entries, e)
	}
	slices.SortStableFunc(l.entries, func(a, b entry) int { return b2i(a.Oracle) - b2i(b.Oracle) })
	for i := range l.entries {
		switch e := &l.entries[i]; {
		case e.Oracle:
			l.oracle = e
		case l.leader == nil || e.throughput() > l.leader.throughput():
			l.leader, l.runnerUp = e, l.leader
		case l.runnerUp == nil || e.throughput() > l.runnerUp.throughput():
			l.runnerUp = e
		}
	}
	if l.runnerUp != nil {
		l.leader.Leader = true // a single policy has no competitor to lead
	}
	return l
}

func b2i(b bool) int {
	if b {
		return 1
	}
	return 0
}

func (e *entry) throughput() float64 { return e.Mean.OutputTokensPerSecond }

// deviation returns the standard deviation of speed; 0 with one seed.
func (e *entry) deviation() float64 {
	if e.Spread == nil {
		return 0
	}
	return e.Spread.OutputTokensPerSecond
}

// name identifies the entry within the report.
func (e *entry) name() string { return e.Policy + ", " + e.Push }

// Style returns the CSS class of the entry.
func (e *entry) Style() string {
	switch {
	case e.Leader:
		return "lead"
	case e.Oracle:
		return "oracle"
	}
	return "plain"
}

// headline describes the leading policy, its margin, and its share of the oracle's throughput.
func (l *lineup) headline() string {
	lead := l.leader
	if lead == nil || lead.throughput() == 0 {
		return ""
	}
	text := fmt.Sprintf("%s (%s) reaches %.0f output tokens per second", lead.Policy, lead.Push, lead.throughput())
	if l.runnerUp != nil {
		text += ", the highest of all runnable policies"
	}
	if t := lead.Mean.TTFT; t != nil {
		text += fmt.Sprintf(", with a P90 TTFT of %s", seconds(t.P90/1000))
	}
	text += l.describeRunnersUp()
	if l.oracle != nil && l.oracle.throughput() > 0 {
		text += fmt.Sprintf(". That is %.1f%% of the oracle's %.0f", 100*lead.throughput()/l.oracle.throughput(), l.oracle.throughput())
	}
	return text + "."
}

// nearTie is the share of the leader's throughput from which another policy's throughput counts as equal.
// The P90 TTFT then decides.
const nearTie = 0.99

// describeRunnersUp describes the margin to the next policy or, if several have about the leader's throughput,
// which of them has the lowest P90 TTFT.
func (l *lineup) describeRunnersUp() string {
	lead, next := l.leader, l.runnerUp
	if next == nil {
		return ""
	}
	if next.throughput() < nearTie*lead.throughput() {
		less := lead.throughput() - next.throughput()
		text := fmt.Sprintf(". Next is %s (%s) with %.1f%% less", next.Policy, next.Push, 100*less/lead.throughput())
		if less <= lead.deviation()+next.deviation() {
			text += ", within the variation between seeds"
		}
		return text
	}
	others, first := 0, lead
	for i := range l.entries {
		e := &l.entries[i]
		if e.Oracle || e.throughput() < nearTie*lead.throughput() {
			continue
		}
		others++
		if e.ttftP90() < first.ttftP90() {
			first = e
		}
	}
	text := fmt.Sprintf(". %d other policies are within %.0f%%", others-1, 100-100*nearTie)
	if others == 2 {
		text = fmt.Sprintf(". %s (%s) is within %.0f%%", next.Policy, next.Push, 100-100*nearTie)
	}
	if first.ttftP90() < math.Inf(1) {
		text += fmt.Sprintf("; of these, %s (%s) has the lowest P90 TTFT, %s", first.Policy, first.Push, seconds(first.ttftP90()/1000))
	}
	return text
}

// ttftP90 returns the P90 TTFT in milliseconds, +Inf where it is unknown.
func (e *entry) ttftP90() float64 {
	if t := e.Mean.TTFT; t != nil {
		return t.P90
	}
	return math.Inf(1)
}
