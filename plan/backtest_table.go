package plan

import (
	"bytes"
	"fmt"
	"io"
	"strconv"
)

// WriteTable writes the backtest for people: one line per rule, then the assumptions.
func (t *Backtest) WriteTable(w io.Writer) error {
	var b bytes.Buffer
	fmt.Fprintf(&b, "%s from %s to %s: a plan every %s with a horizon of %s, forecast by %s\n\n",
		t.Service, t.From.Format("2006-01-02 15:04"), t.To.Format("2006-01-02 15:04 MST"), t.Every, t.Horizon, t.Forecaster)
	rows := [][]string{{"RULE", "COST", "REPLICA-HOURS", "MAX REPLICAS", "OVERLOAD MINUTES", "OVERLOAD TOKENS", "OVERLOAD %", "FORWARDED TOKENS", "STARTED", "STOPPED"}}
	for _, f := range t.Rules {
		share := "-"
		if f.OverloadShare != nil {
			share = fmt.Sprintf("%.3f%%", 100**f.OverloadShare)
		}
		rows = append(rows, []string{
			f.Name, fmt.Sprintf("$%.2f", f.CostUSD), fmt.Sprintf("%.1f", f.ReplicaHours), strconv.Itoa(f.MaxReplicas), strconv.Itoa(f.OverloadMinutes),
			formatRate(f.OverloadTokens), share, formatRate(f.ForwardedTokens), strconv.Itoa(f.Started), strconv.Itoa(f.Stopped),
		})
	}
	writeAligned(&b, rows)
	fmt.Fprintln(&b, "\nOverload: load above the capacity of the ready replicas of all regions. The rule predictive follows the load; each plan sets the minimum capacity and how")
	fmt.Fprintln(&b, "long replicas are kept after a peak. hourly keeps the planned counts until the next plan. constant is sized with hindsight for each region's peak.")
	fmt.Fprintln(&b, "threshold starts replicas above 70 % of the current capacity and stops one below 30 %, each minute.")
	failed := 0
	for _, s := range t.Reviews {
		if s.Status == StatusInfeasible || s.Status == StatusUnknown {
			failed++
		}
	}
	if failed > 0 {
		fmt.Fprintf(&b, "No plan was found in %d of %d reviews: the rule hourly kept its counts (in the first review: those of constant).\n", failed, len(t.Reviews))
	}
	if len(t.Assumed) > 0 {
		fmt.Fprintln(&b, "\nAssumed:")
		writeList(&b, t.Assumed)
	}
	_, err := w.Write(b.Bytes())
	return err
}
