package eval

import (
	"encoding/json"
	"fmt"
	"io"

	"skyserve/internal/printable"
	"skyserve/internal/sim"
)

// Claim is a paper's claim about the comparison with the measured value: the mean over the seeds, nil
// if a side was not run or not measured.
type Claim struct {
	sim.Claim
	Measured *float64 `json:"measured"`
}

// MarshalJSON adds the former keys of Min and Max.
func (c Claim) MarshalJSON() ([]byte, error) {
	type plain Claim
	return json.Marshal(struct {
		plain
		OldMin float64 `json:"least"`
		OldMax float64 `json:"most"`
	}{plain(c), c.Min, c.Max})
}

// Delta returns the distance of the measured value from the claimed range, relative to the nearest end,
// or as a difference if the figure is a share. It is 0 inside the range and nil without a measurement.
func (c *Claim) Delta() *float64 {
	if c.Measured == nil {
		return nil
	}
	nearest := min(max(*c.Measured, c.Min), c.Max)
	delta := *c.Measured - nearest
	if !c.Figure.Share() {
		delta /= nearest
	}
	return &delta
}

// addClaims adds the scenario's claims with their measured values.
func (r *SimReport) addClaims(claims []sim.Claim) {
	for i := range claims {
		c := Claim{Claim: claims[i]}
		side, than := r.findSummary(&c.Side), r.findSummary(c.Than)
		if side != nil && (c.Than == nil || than != nil) {
			base := side
			if than != nil {
				base = than
			}
			c.Measured = c.Compare(&side.Mean, &base.Mean)
		}
		r.Claims = append(r.Claims, c)
	}
}

// findSummary returns the summary of a side of a claim; nil if it was not run.
func (r *SimReport) findSummary(side *sim.Side) *Summary {
	if side == nil {
		return nil
	}
	for i := range r.Summary {
		if s := &r.Summary[i]; s.Policy == side.Policy && (side.Push == "" || s.Push == side.Push) {
			return s
		}
	}
	return nil
}

// claimNames are the display names of claimed figures.
var claimNames = map[sim.Figure]string{
	"output_tokens_per_second": "throughput",
	"ttft_p90_ms":              "P90 TTFT",
	"prefix_hit_rate":          "hit rate",
	"outstanding_max_over_min": "max/min outstanding",
}

// cells formats a claim as a table row: subject, paper's value, measured value and difference.
func (c *Claim) cells() []string {
	what := claimNames[c.Figure] + " of " + sideName(c.Side)
	if c.Than != nil {
		what += map[bool]string{true: " minus that of ", false: " relative to that of "}[c.Figure.Share()] + sideName(*c.Than)
	}
	paper := c.value(c.Min)
	if c.Max != c.Min {
		paper += " to " + c.value(c.Max)
	}
	measured, delta := "-", "-"
	if c.Measured != nil {
		measured = c.value(*c.Measured)
		delta = percent(*c.Delta())
		if c.Figure.Share() {
			delta = fmt.Sprintf("%+.1f points", 100**c.Delta())
		}
	}
	return []string{what, paper, measured, delta}
}

func (c *Claim) value(x float64) string {
	if c.Figure.Share() {
		return fmt.Sprintf("%.1f%%", 100*x)
	}
	return fmt.Sprintf("%.2f", x)
}

func sideName(s sim.Side) string {
	if s.Push == "" {
		return s.Policy
	}
	return s.Policy + " (" + s.Push + ")"
}

func percent(share float64) string { return fmt.Sprintf("%+.1f%%", 100*share) }

// claimHeader names the columns of cells.
var claimHeader = []string{"FIGURE", "PAPER", "MEASURED", "DEVIATION"}

// writeClaims prints the paper's claims with the measured values.
func (r *SimReport) writeClaims(out io.Writer) error {
	if r.Note != "" {
		if _, err := fmt.Fprintf(out, "paper: %s\n", r.Note); err != nil {
			return err
		}
	}
	if len(r.Claims) == 0 {
		return nil
	}
	w := printable.NewTable(out)
	w.Row(claimHeader...)
	for i := range r.Claims {
		w.Row(r.Claims[i].cells()...)
	}
	return w.Flush()
}
