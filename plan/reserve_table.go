package plan

import (
	"bytes"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"skyserve/forecast"
)

// reservationOptions describes the values of ReservedCost.Option.
var reservationOptions = map[string]string{
	"own_peaks":   "reserve for each region's own peak",
	"global_peak": "reserve for the peak of all regions",
	"mixed":       "reserve up to break-even, remainder on demand",
	"on_demand":   "all on demand, scaled without delay",
}

// WriteTable writes the comparison for people.
func (r *ReservedComparison) WriteTable(w io.Writer) error {
	var b bytes.Buffer
	fmt.Fprintf(&b, "Load from %s to %s, means of %s:\n", r.From.Format("2006-01-02 15:04"), r.To.Format("2006-01-02 15:04 MST"), forecast.ShortDuration(time.Duration(r.StepSeconds*float64(time.Second))))
	rows := [][]string{{"MODEL", "REGION", "PEAK TOK/S", "PEAK AT", "MIN TOK/S", "PEAK/MIN"}}
	for _, l := range r.Loads {
		region, ratio := "all regions", "-"
		if l.Region != nil {
			region = *l.Region
		}
		if l.PeakOverMin != nil {
			ratio = fmt.Sprintf("%.2f", *l.PeakOverMin)
		}
		rows = append(rows, []string{l.Model, region, fmt.Sprintf("%.0f", l.PeakTPS), l.PeakAt.Format("01-02 15:04"), fmt.Sprintf("%.0f", l.MinTPS), ratio})
	}
	writeAligned(&b, rows)
	if len(r.Rows) > 0 {
		fmt.Fprintln(&b, "\nReplicas to reserve:")
		rows = [][]string{{"MODEL", "REGION", "GPU", "FOR OWN PEAK", "FOR PEAK OF ALL"}}
		for _, x := range r.Rows {
			rows = append(rows, []string{x.Model, x.Region, x.GPU, strconv.Itoa(x.OwnPeak), strconv.Itoa(x.GlobalPeak)})
		}
		writeAligned(&b, rows)
	}
	fmt.Fprintln(&b)
	rows = [][]string{{"OPTION", "RESERVED", "ON DEMAND UP TO", "$/H", "$/MONTH"}}
	for _, c := range r.Costs {
		rows = append(rows, []string{reservationOptions[c.Option], strconv.Itoa(c.Reserved), strconv.Itoa(c.OnDemand), fmt.Sprintf("%.2f", c.CostPerHour), fmt.Sprintf("%.0f", c.CostPerMonth)})
	}
	writeAligned(&b, rows)
	if r.Saving != nil {
		fmt.Fprintf(&b, "\nReserving for the peak of all regions costs %.1f %% less than for each region's own.\n", 100**r.Saving)
	}
	for _, e := range r.BreakEven {
		fmt.Fprintf(&b, "%s in %s: $%.4g/h reserved, $%.4g/h on demand: a reservation pays off from %.0f of %d hours of use per month.\n", e.GPU, strings.Join(e.Regions, ", "), e.ReservedPerHour, e.OnDemandPerHour, e.HoursPerMonth, HoursPerMonth)
	}
	if len(r.Assumed) > 0 {
		fmt.Fprintln(&b, "\nAssumed:")
		writeList(&b, r.Assumed)
	}
	_, err := w.Write(b.Bytes())
	return err
}
