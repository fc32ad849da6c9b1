package tui

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"
	"time"

	"skyserve/internal/printable"
	"skyserve/internal/service"
	"skyserve/internal/telemetry"
)

// planSheet has one row per replica count that the last plan changes: by region, model, GPU and capacity type.
func (s *screen) planSheet() sheet {
	numberColumn := func(title string, rank int, letter, word string) sheetColumn {
		return sheetColumn{column{title: title, minWidth: 4, right: true, dropRank: rank}, letter, word, true, false}
	}
	sh := sheet{noun: "change", empty: s.emptyPlan(), columns: []sheetColumn{
		{column{title: "REGION", minWidth: 10, maxWidth: 28}, "R", "region", false, false},
		{column{title: "MODEL", minWidth: 8, maxWidth: 28, dropRank: 5}, "M", "model", false, true},
		{column{title: "GPU", minWidth: 4, maxWidth: 10, dropRank: 2}, "U", "GPU", false, false},
		{column{title: "CAPACITY", minWidth: 8, maxWidth: 10, dropRank: 2}, "P", "capacity type", false, true},
		numberColumn("CURRENT", 1, "W", "current"),
		numberColumn("CHANGE", 0, "C", "change"),
		numberColumn("PLANNED", 1, "T", "planned"),
		{column{title: "REASON", minWidth: 20, maxWidth: 200, dropRank: 4}, "Y", "reason", false, false},
	}}
	p := s.snapshot.Plan
	if p == nil {
		return sh
	}
	for i := range p.Changes {
		c := &p.Changes[i]
		if s.focus != "" && c.Region != s.focus {
			continue
		}
		r := roleGood
		if c.Delta < 0 {
			r = roleWarn
		}
		why := s.theme.text(c.Reason)
		sh.rows = append(sh.rows, sheetRow{
			id: changeID(c), details: []string{why},
			cells: []cellValue{
				textCell(s.regionName(c.Region), roleAccent), textCell(s.theme.text(shortModel(c.Model)), roleText), textCell(s.theme.text(c.GPU), roleMuted), s.namedCell(string(c.Capacity)),
				numberCell(float64(c.Current), strconv.Itoa(c.Current), roleText), numberCell(float64(c.Delta), fmt.Sprintf("%+d", c.Delta), r),
				numberCell(float64(c.Planned), strconv.Itoa(c.Planned), roleText), textCell(why, roleMuted),
			},
		})
	}
	return sh
}

// changeID returns the row id of a change of the plan.
func changeID(c *telemetry.PlanChange) string {
	return strings.TrimSuffix(strings.Join([]string{string(c.Region), c.Model, c.GPU, string(c.Capacity)}, " "), " ")
}

// emptyPlan returns why no changes are listed.
func (s *screen) emptyPlan() []string {
	p := s.snapshot.Plan
	switch {
	case p == nil:
		return []string{"No plan yet", "the controller plans every autoscale.every (service.yaml); run 'skyserve plan' to plan now"}
	case p.Status == "infeasible":
		return []string{"No plan satisfies the bounds: see the lines above"}
	}
	if why := s.noPlan(p); why != "" {
		return []string{strings.ToUpper(why[:1]) + why[1:]}
	}
	of := " of " + p.At.In(s.snapshot.At.Location()).Format("15:04") // replicas that changed later are not in it
	if s.focus != "" {
		return []string{"No changes in " + s.theme.text(string(s.focus)) + ": the plan" + of + " matched its replicas at that time (tab: other regions)"}
	}
	return []string{"No changes: the plan" + of + " matched the replicas at that time", "'skyserve plan' shows the limits that determine each count, such as replicas.max"}
}

// noPlan returns why a summary contains no plan; empty if it contains one. Before the first plan, the controller
// publishes a summary without a status.
func (s *screen) noPlan(p *telemetry.PlanSummary) string {
	switch {
	case p == nil:
		return "no plan yet"
	case p.Status == "":
		return strings.TrimSuffix("no plan yet: "+s.theme.text(cmp.Or(p.Waiting, p.Error)), ": ")
	case len(p.Changes) > 0:
		return ""
	case p.Status == "infeasible":
		return "no plan satisfies the bounds"
	case p.Status == "unknown":
		return "no plan was found in time"
	}
	return ""
}

// strategy returns autoscale.strategy as text, and whether it applies the plan without a user.
func (s *screen) strategy() (text string, applies bool) {
	strategy := cmp.Or(s.snapshot.Strategy, service.StrategyManual)
	text = "strategy " + s.theme.text(strategy)
	switch strategy {
	case service.StrategyManual:
		return text, false
	case "lt-i", "lt-u", "lt-ua":
		return text + " applies it", true
	}
	return text + " ignores it", false
}

// abovePlan returns the status, cost and problems of the last plan.
func (s *screen) abovePlan() []string {
	p := s.snapshot.Plan
	if p == nil {
		return nil
	}
	t := &s.theme
	status := roleGood
	switch p.Status {
	case "infeasible", "unknown":
		status = roleBad
	case "feasible":
		status = roleWarn
	}
	strategy, applies := s.strategy()
	hint, now := "", ""
	if applies {
		now = " all of it now"
	}
	if s.accepts(VerbApply) {
		hint = "press a to apply" + now
	}
	line, _ := t.segments(s.width, "  ",
		segment{"plan from " + p.At.In(s.snapshot.At.Location()).Format("Mon 15:04"), t.title},
		segment{t.text(p.Status), t.paint(status)}, segment{s.planCost(p), paint{}},
		segment{strategy, t.muted}, segment{hint, t.accent},
	)
	var lines []string
	if p.Status != "" {
		lines = append(lines, line)
	}
	for _, text := range p.Infeasible {
		lines = append(lines, t.bad.apply(s.fit(t.text(text))))
	}
	if unmet := s.snapshot.UnmetLine(); unmet != "" {
		lines = append(lines, t.warn.apply(s.fit(t.text(unmet))))
	}
	if p.Error != "" && p.Status != "" { // without a plan, the list shows it
		lines = append(lines, t.bad.apply(s.fit("the last attempt to plan failed: "+t.text(p.Error))))
	}
	for _, text := range p.OverBudget {
		lines = append(lines, t.warn.apply(s.fit("not added because of the budget: "+t.text(text))))
	}
	for _, text := range s.snapshot.Launches.Lines() {
		lines = append(lines, t.text(s.fit(text)))
	}
	if len(lines) == 0 {
		return nil
	}
	return append(lines, "")
}

// assumptions returns the assumptions of the last plan, which are shown below its changes.
func (s *screen) assumptions() []string {
	var lines []string
	if p := s.snapshot.Plan; p != nil {
		for _, text := range p.Assumed {
			lines = append(lines, s.theme.muted.apply(s.fit("assumed: "+s.theme.text(text))))
		}
	}
	return lines
}

// planCost returns the cost per hour now and after the plan.
func (s *screen) planCost(p *telemetry.PlanSummary) string {
	usd := func(v *float64) string {
		if v == nil {
			return unknown
		}
		return fmt.Sprintf("$%.2f/h", *v)
	}
	return usd(p.CostPerHour.Current) + " " + s.theme.glyphs.arrow + " " + usd(p.CostPerHour.Planned)
}

// donationSheet has one row per donated replica.
func (s *screen) donationSheet() sheet {
	sh := sheet{noun: "donation", columns: []sheetColumn{
		{column{title: "REPLICA", minWidth: 8, maxWidth: 28}, "N", "replica", false, false},
		{column{title: "REGION", minWidth: 6, maxWidth: 28, dropRank: 3}, "R", "region", false, false},
		{column{title: "MODEL", minWidth: 8, maxWidth: 28, dropRank: 6}, "M", "model", false, true},
		{column{title: "GPU", minWidth: 4, maxWidth: 10, dropRank: 4}, "U", "GPU", false, false},
		{column{title: "DONATED FOR", minWidth: 5, right: true, dropRank: 1}, "F", "time donated", true, false},
		{column{title: "UNTIL", minWidth: 5, right: true, dropRank: 5}, "I", "end", false, false},
		{column{title: "REVENUE $/H", minWidth: 5, right: true, dropRank: 2}, "E", "revenue per hour", true, false},
		{column{title: "REVENUE", minWidth: 7, right: true, dropRank: 2}, "D", "revenue so far", true, false},
	}, empty: s.emptyDonations()}
	for _, d := range s.snapshot.Donations {
		if s.focus != "" && d.Region != s.focus {
			continue
		}
		donated := max(s.snapshot.At.Sub(d.Since), 0)
		earned := d.RevenuePerHour * donated.Hours()
		until := unknownCell()
		until.text = "no end"
		if d.Until != nil {
			until = numberCell(float64(d.Until.Unix()), s.clockTime(*d.Until), roleText)
		}
		sh.rows = append(sh.rows, sheetRow{id: d.Replica, cells: []cellValue{
			textCell(s.theme.text(d.Replica), roleText), textCell(s.regionName(d.Region), roleAccent), textCell(s.theme.text(shortModel(d.Model)), roleText),
			textCell(s.theme.text(d.GPU), roleMuted), numberCell(donated.Seconds(), age(donated), roleText), until,
			numberCell(d.RevenuePerHour, fmt.Sprintf("%.2f", d.RevenuePerHour), roleText), numberCell(earned, fmt.Sprintf("$%.2f", earned), roleGood),
		}})
	}
	return sh
}

// clockTime returns a time in the zone of the snapshot, with its day unless it is that of the snapshot.
func (s *screen) clockTime(t time.Time) string {
	t = t.In(s.snapshot.At.Location())
	switch {
	case t.Format(time.DateOnly) == s.snapshot.At.Format(time.DateOnly):
		return t.Format("15:04")
	case t.Sub(s.snapshot.At).Abs() < 6*24*time.Hour:
		return t.Format("Mon 15:04")
	}
	return t.Format("2006-01-02 15:04")
}

// emptyDonations returns why no donations are listed.
func (s *screen) emptyDonations() []string {
	if s.usesClouds() {
		return []string{"No donated replicas", "replicas in clouds are not donated: the controller drains excess ones and returns their machines"}
	}
	return []string{"No donated replicas", "press o on a replica in view 2 to donate it; scaling strategies donate excess replicas in static regions, and in local ones if autoscale.donate is set"}
}

// aboveDonations returns the totals of the donations, with the recent changes.
func (s *screen) aboveDonations() []string {
	donated, reclaimed := 0, 0
	for _, e := range s.snapshot.Events {
		switch e.Kind {
		case telemetry.EventDonate:
			donated++
		case telemetry.EventReclaim:
			reclaimed++
		}
	}
	earned := 0.0
	for _, d := range s.snapshot.Donations {
		earned += d.RevenuePerHour * max(s.snapshot.At.Sub(d.Since), 0).Hours()
	}
	line, _ := s.theme.segments(s.width, "  ",
		segment{printable.Count(len(s.snapshot.Donations), "replica") + " donated", s.theme.title},
		segment{fmt.Sprintf("assumed revenue $%.2f/h (autoscale.donate_price)", s.snapshot.RevenuePerHour()), paint{}},
		segment{fmt.Sprintf("$%.2f so far", earned), s.theme.good},
		segment{fmt.Sprintf("recent events: %d donated, %d reclaimed", donated, reclaimed), s.theme.muted},
	)
	return []string{line, ""}
}
