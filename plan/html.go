package plan

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
)

// Report is the data of an HTML page about a review.
type Report struct {
	Service    string
	Proposal   Proposal
	LoadCurves []LoadCurve
}

// WriteHTML writes the review as one self-contained page. The same review yields the same
// bytes, whatever the solving time.
func (p Report) WriteHTML(w io.Writer) error {
	v := pageView{Report: p, Status: describeStatus(p.Proposal), Headline: p.headline(), Tiles: p.tiles(), Binding: p.bindingConstraints()}
	v.When = p.describeTime()
	for _, c := range p.Proposal.Changes {
		v.Rows = append(v.Rows, newChangeView(c))
	}
	v.Billed = slices.ContainsFunc(p.Proposal.Changes, func(c ReplicaChange) bool { return c.CostChangePerHour != 0 })
	for _, c := range p.LoadCurves {
		v.Charts = append(v.Charts, p.chart(c))
	}
	return v.markup().Write(w)
}

// pageView is the data of the written page.
type pageView struct {
	Report
	When, Status, Headline string
	Tiles                  []tile
	Rows                   []changeView
	Billed                 bool // some change has a price
	Charts                 []loadChart
	Binding                []bindingConstraint
}

// tile is one value of the summary.
type tile struct{ Name, Value, Note string }

// changeView is one change.
type changeView struct {
	ReplicaChange
	Offering, CapacityName, ChangeText, Peak, PeakTime, PlannedCapacity, UtilisationText, CostChangeText string
}

func newChangeView(c ReplicaChange) changeView {
	r := changeView{ReplicaChange: c, Offering: c.GPU, ChangeText: "0", Peak: formatRate(c.PlannedPeakTPS), PlannedCapacity: formatRate(c.CapacityTPS), UtilisationText: "-", CostChangeText: "-"}
	if c.CapacityType != nil {
		r.CapacityName = strings.ReplaceAll(*c.CapacityType, "_", " ")
	}
	if c.Delta != 0 {
		r.ChangeText = fmt.Sprintf("%+d", c.Delta)
	}
	if c.PeakAt != nil {
		r.PeakTime = c.PeakAt.Format("15:04")
	}
	if c.Utilisation != nil {
		r.UtilisationText = fmt.Sprintf("%.0f %%", 100**c.Utilisation)
	}
	if c.CostChangePerHour != 0 {
		r.CostChangeText = signed(c.CostChangePerHour)
	}
	return r
}

// Class returns the CSS class of the change: more, less or same.
func (r changeView) Class() string {
	switch {
	case r.Delta > 0:
		return "more"
	case r.Delta < 0:
		return "less"
	}
	return "same"
}

// signed formats an amount of money with its sign: +$1.50, -$1.50.
func signed(usd float64) string {
	if usd < 0 {
		return "-" + dollars(-usd)
	}
	return "+" + dollars(usd)
}

// dollars formats an amount with commas between thousands, cents below a thousand.
func dollars(usd float64) string {
	if usd < 1000 {
		return fmt.Sprintf("$%.2f", usd)
	}
	whole := fmt.Sprintf("%.0f", usd)
	for at := len(whole) - 3; at > 0; at -= 3 {
		whole = whole[:at] + "," + whole[at:]
	}
	return "$" + whole
}

// describeTime returns the time and forecaster of the plan.
func (p Report) describeTime() string {
	var parts []string
	if p.Proposal.Horizon != nil && p.Proposal.At != nil {
		parts = append(parts, fmt.Sprintf("for %s from %s", *p.Proposal.Horizon, p.Proposal.At.Format("Monday, 2 January 2006, 15:04 MST")))
	}
	if p.Proposal.Forecaster != nil {
		parts = append(parts, "forecast by "+*p.Proposal.Forecaster)
	}
	return strings.Join(parts, ", ")
}

// describeStatus describes how close the plan is to the cheapest.
func describeStatus(p Proposal) string {
	atPrices := ""
	if p.unbilled() {
		atPrices = " at the assumed prices"
	}
	switch {
	case len(p.OverBudget) > 0 && p.TotalCostUSD != nil:
		return fmt.Sprintf("Cut to the budget of %s per hour: $%.2f for the hour%s, including start-up costs.", dollars(p.BudgetPerHour), *p.TotalCostUSD, atPrices)
	case p.Status == StatusOptimal && p.Gap != nil && *p.Gap == 0:
		return fmt.Sprintf("Proven to be the cheapest plan that satisfies every constraint: $%.2f for the hour%s, including start-up costs.", *p.TotalCostUSD, atPrices)
	case (p.Status == StatusOptimal || p.Status == StatusFeasible) && p.Gap != nil && p.LowerBoundUSD != nil:
		return fmt.Sprintf("$%.2f for the hour%s, including start-up costs; lower bound $%.2f (gap %.2g %%).", *p.TotalCostUSD, atPrices, *p.LowerBoundUSD, 100**p.Gap)
	case p.Status == StatusInfeasible:
		return "No plan satisfies every constraint."
	}
	return "No plan found: the solver reached its limit of work. Retry with another --solver: highs, cbc or glpsol."
}

// costsLessThanBilled reports whether the plan's cost, with start-up costs, is lower than what is billed per hour: the plan
// does not count what it cannot change, and counts replicas of on_demand_base at the price of the others.
func (p Proposal) costsLessThanBilled() bool {
	planned := p.CostPerHour.Planned
	return planned != nil && p.TotalCostUSD != nil && *p.TotalCostUSD < *planned-0.005
}

// unbilled reports whether no machine of the plan is billed. The plan then compares machines by assumed prices.
func (p Proposal) unbilled() bool {
	now, then := p.CostPerHour.Current, p.CostPerHour.Planned
	return now != nil && then != nil && *now == 0 && *then == 0 && p.TotalCostUSD != nil && *p.TotalCostUSD > 0
}

// headline summarises the changes and their cost in a sentence.
func (p Report) headline() string {
	if p.Proposal.Status == StatusInfeasible || p.Proposal.CostPerHour.Planned == nil {
		return describeStatus(p.Proposal)
	}
	s := p.describeChanges()
	now, then := p.Proposal.CostPerHour.Current, p.Proposal.CostPerHour.Planned
	if p.Proposal.unbilled() {
		return s + "; not billed."
	}
	if now == nil || *now == *then {
		return s + "; no change in cost."
	}
	word := "more"
	if *then < *now {
		word = "less"
	}
	return fmt.Sprintf("%s: %s %s per hour.", s, strings.TrimLeft(signed(*then-*now), "+-"), word)
}

// describeChanges returns how many replicas are added, removed and donated.
func (p Report) describeChanges() string {
	var added, removed, donated int
	for _, c := range p.Proposal.Changes {
		added, removed, donated = added+max(0, c.Delta), removed+max(0, -c.Delta)-c.Donate, donated+c.Donate
	}
	var parts []string
	for _, c := range []struct {
		verb  string
		count int
	}{{"add", added}, {"remove", removed}, {"donate", donated}} {
		switch {
		case c.count > 0 && len(parts) == 0:
			parts = append(parts, fmt.Sprintf("%s%s %d %s", strings.ToUpper(c.verb[:1]), c.verb[1:], c.count, replicaNoun(c.count)))
		case c.count > 0:
			parts = append(parts, fmt.Sprintf("%s %d", c.verb, c.count))
		}
	}
	if len(parts) == 0 {
		return "No changes"
	}
	last := len(parts) - 1
	if last == 0 {
		return parts[0]
	}
	return strings.Join(parts[:last], ", ") + " and " + parts[last]
}

func replicaNoun(n int) string {
	if n == 1 {
		return "replica"
	}
	return "replicas"
}

// tiles returns the values of the summary: cost, replicas, load.
func (p Report) tiles() []tile {
	var out []tile
	if now, then := p.Proposal.CostPerHour.Current, p.Proposal.CostPerHour.Planned; now != nil && then != nil {
		monthly := "no change per month"
		if *now != *then {
			monthly = signed(HoursPerMonth*(*then-*now)) + " per month at this rate"
		}
		out = append(out, tile{"Cost per hour", fmt.Sprintf("%s → %s", dollars(*now), dollars(*then)), monthly})
	}
	now, then := 0, 0
	for _, c := range p.Proposal.Changes {
		now, then = now+c.Current, then+c.Planned
	}
	var peak, capacity, before float64
	for _, c := range p.LoadCurves {
		before += c.CurrentCapacity
		if c.PlannedCapacity != nil {
			capacity += *c.PlannedCapacity
		}
	}
	peak, at := p.combinedPeak()
	if p.Proposal.Status != StatusInfeasible {
		out = append(out, tile{"Replicas", fmt.Sprintf("%d → %d", now, then), fmt.Sprintf("capacity %s → %s tokens/s", formatRate(before), formatRate(capacity))})
	}
	load := tile{"Planned peak of uncached prompt tokens, all regions", formatRate(peak) + " tokens/s", "planned load 0"}
	if peak > 0 {
		load.Note = p.describeMinute(at)
		if capacity > 0 {
			load.Note += fmt.Sprintf(", %.0f %% of planned capacity", 100*peak/capacity)
		}
	}
	return append(out, load)
}

// combinedPeak returns the highest total load of all curves in one minute, and the minute.
func (p Report) combinedPeak() (peak float64, minute int) {
	for w := 0; len(p.LoadCurves) > 0 && w < len(p.LoadCurves[0].Planned); w++ {
		var sum float64
		for _, c := range p.LoadCurves {
			sum += c.Planned[w]
		}
		if sum > peak {
			peak, minute = sum, w
		}
	}
	return peak, minute
}

// describeMinute returns the time of a minute of the forecast.
func (p Report) describeMinute(minute int) string {
	if p.Proposal.At == nil {
		return fmt.Sprintf("minute %d", minute)
	}
	return "at " + p.Proposal.At.Add(time.Duration(minute)*time.Minute).Format("15:04")
}

// bindingConstraint is a binding constraint, and where it binds.
type bindingConstraint struct {
	Name, Meaning string
	Locations     []string
}

// meanings explains constraints by the first word of their name.
var meanings = map[string]string{
	"local":    "a region must serve a minimum share of its own peak",
	"demand":   "all regions together serve their common peak",
	"capacity": "all capacity available there is used",
	"survival": "all load is served after the loss of that region",
	"maximum":  "load is served within the maximum round-trip time",
	"min":      "minimum set in the service",
	"max":      "maximum set in the service",
}

// bindingConstraints lists the binding constraints, in the order of the changes.
func (p Report) bindingConstraints() []bindingConstraint {
	var out []bindingConstraint
	for _, c := range p.Proposal.Changes {
		place := fmt.Sprintf("%s in %s on %s", c.Model, c.Region, c.offering())
		for _, b := range c.Binding {
			at := slices.IndexFunc(out, func(h bindingConstraint) bool { return h.Name == b })
			if at < 0 {
				at, out = len(out), append(out, bindingConstraint{Name: b, Meaning: meanings[strings.Fields(b)[0]]})
			}
			out[at].Locations = append(out[at].Locations, place)
		}
	}
	return out
}
