package eval

import (
	"fmt"
	"io"
	"math"
	"slices"
	"strings"

	"skyserve/internal/sim"
)

// WriteHTML writes reports as one page for a browser that needs nothing but
// itself: for each report the table, the bars of throughput, the boxes of TTFT
// and E2E and the load over time.
func WriteHTML(out io.Writer, reports []*Report) error {
	var names []string
	for _, r := range reports {
		names = append(names, r.Scenario)
	}
	p := newPage(names)
	for _, r := range reports {
		viewOf(r).put(p)
	}
	return p.Write(out)
}

// view is a report as the page shows it.
type view struct {
	Name, Title, Basis, Headline string
	Compares, Oracle             bool // the page has more than one policy, and the oracle
	Columns                      []column
	Rows                         []viewRow
	Charts                       []*policyChart
	Courses                      *courses // nil where no course is known
	Note                         string
	ClaimHeader                  []string
	Claims                       [][]string
}

func viewOf(r *Report) view {
	l := lineUp(r)
	v := view{Name: r.Scenario, Title: r.Title, Basis: r.basis(), Headline: l.headline(), Note: r.Note}
	v.Compares, v.Oracle = l.second != nil, l.oracle != nil
	v.Columns, v.Rows = l.table()
	for _, name := range claimHeader {
		v.ClaimHeader = append(v.ClaimHeader, strings.ToLower(name))
	}
	for i := range r.Claims {
		v.Claims = append(v.Claims, r.Claims[i].cells())
	}
	v.Charts = []*policyChart{
		l.bars(),
		l.boxes("Time to first token, in seconds", sim.Figure("ttft_p90_ms"), func(f *sim.Figures) *sim.Percentiles { return f.TTFT }),
		l.boxes("Time to the last token, in seconds", "", func(f *sim.Figures) *sim.Percentiles { return f.E2E }),
	}
	v.Courses = l.courses()
	return v
}

// lineup holds a report's policies as the page shows them: those that can be run
// in the plan's order, and after them the oracle, which bounds them and is none.
type lineup struct {
	report  *Report
	entries []entry
	leader  *entry // of those that can be run, the one with the most output tokens a second
	second  *entry // the one after it
	oracle  *entry
}

// entry is a policy at a push rule. Leader and Oracle say how it is drawn.
type entry struct {
	*Summary
	course         []sim.Moment
	Leader, Oracle bool
}

func lineUp(r *Report) *lineup {
	l := &lineup{report: r}
	for i := range r.Summary {
		e := entry{Summary: &r.Summary[i], Oracle: r.Summary[i].Policy == sim.Oracle}
		if i < len(r.courses) {
			e.course = r.courses[i]
		}
		l.entries = append(l.entries, e)
	}
	slices.SortStableFunc(l.entries, func(a, b entry) int { return b2i(a.Oracle) - b2i(b.Oracle) })
	for i := range l.entries {
		switch e := &l.entries[i]; {
		case e.Oracle:
			l.oracle = e
		case l.leader == nil || e.speed() > l.leader.speed():
			l.leader, l.second = e, l.leader
		case l.second == nil || e.speed() > l.second.speed():
			l.second = e
		}
	}
	if l.second != nil {
		l.leader.Leader = true // of one alone there is nothing to say
	}
	return l
}

func b2i(b bool) int {
	if b {
		return 1
	}
	return 0
}

func (e *entry) speed() float64 { return e.Mean.OutputTokensPerSecond }

// deviation is the spread of speed, 0 where there was one seed.
func (e *entry) deviation() float64 {
	if e.Spread == nil {
		return 0
	}
	return e.Spread.OutputTokensPerSecond
}

// name tells the entry from all others of the report.
func (e *entry) name() string { return e.Policy + ", " + e.Push }

// Style is the class that the entry is drawn in.
func (e *entry) Style() string {
	switch {
	case e.Leader:
		return "lead"
	case e.Oracle:
		return "oracle"
	}
	return "plain"
}

// headline says in words which policy leads, by how much, and how near it comes
// to the oracle.
func (l *lineup) headline() string {
	lead := l.leader
	if lead == nil || lead.speed() == 0 {
		return ""
	}
	text := fmt.Sprintf("%s (%s) has %.0f output tokens a second", lead.Policy, lead.Push, lead.speed())
	if l.second != nil {
		text += ", most of the policies that can be run"
	}
	if t := lead.Mean.TTFT; t != nil {
		text += fmt.Sprintf(", with a P90 TTFT of %s", seconds(t.P90/1000))
	}
	text += l.rivals()
	if l.oracle != nil && l.oracle.speed() > 0 {
		text += fmt.Sprintf(". The oracle reaches %.0f, of which this is %.1f%%", l.oracle.speed(), 100*lead.speed()/l.oracle.speed())
	}
	return text + "."
}

// alike is the share of the leader's throughput from which on another policy's
// counts as much: what people choose by is then the wait.
const alike = 0.99

// rivals says how far behind the next policy is or, where several have about as
// much throughput as the leader, which of them has the shortest wait.
func (l *lineup) rivals() string {
	lead, next := l.leader, l.second
	if next == nil {
		return ""
	}
	if next.speed() < alike*lead.speed() {
		less := lead.speed() - next.speed()
		text := fmt.Sprintf(". Next comes %s (%s) with %.1f%% less", next.Policy, next.Push, 100*less/lead.speed())
		if less <= lead.deviation()+next.deviation() {
			text += ", which is no more than they vary from seed to seed"
		}
		return text
	}
	others, first := 0, lead
	for i := range l.entries {
		e := &l.entries[i]
		if e.Oracle || e.speed() < alike*lead.speed() {
			continue
		}
		others++
		if e.wait() < first.wait() {
			first = e
		}
	}
	text := fmt.Sprintf(". %d others have as much to within %.0f%%", others-1, 100-100*alike)
	if others == 2 {
		text = fmt.Sprintf(". %s (%s) has as much to within %.0f%%", next.Policy, next.Push, 100-100*alike)
	}
	if first.wait() < math.Inf(1) {
		text += fmt.Sprintf("; of them all %s (%s) has the least P90 TTFT, %s", first.Policy, first.Push, seconds(first.wait()/1000))
	}
	return text
}

// wait is the P90 TTFT in milliseconds, without end where it is unknown.
func (e *entry) wait() float64 {
	if t := e.Mean.TTFT; t != nil {
		return t.P90
	}
	return math.Inf(1)
}
