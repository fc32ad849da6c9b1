package eval

import (
	"fmt"
	"io"

	"skyserve/internal/printable"
	"skyserve/internal/sim"
)

// Claim is what a paper prints of the comparison, and what was measured: the
// mean over the seeds, nil where a side was not run or measured nothing.
type Claim struct {
	sim.Claim
	Measured *float64 `json:"measured"`
}

// Delta is how far what was measured lies outside of what the paper prints: a
// share of the paper's figure, for shares a difference. It is 0 inside and nil
// where nothing was measured.
func (c *Claim) Delta() *float64 {
	if c.Measured == nil {
		return nil
	}
	nearest := min(max(*c.Measured, c.Least), c.Most)
	delta := *c.Measured - nearest
	if !c.Figure.Share() {
		delta /= nearest
	}
	return &delta
}

// judge fills in what was measured of the scenario's claims.
func (r *Report) judge(claims []sim.Claim) {
	for i := range claims {
		c := Claim{Claim: claims[i]}
		side, than := r.find(&c.Side), r.find(c.Than)
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

// find is the summary of a side of a claim; nil when it was not run.
func (r *Report) find(side *sim.Side) *Summary {
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

// claimNames says in words what the figures of claims are.
var claimNames = map[sim.Figure]string{
	"output_tokens_per_second": "throughput",
	"ttft_p90_ms":              "P90 TTFT",
	"prefix_hit_rate":          "hit rate",
	"outstanding_max_over_min": "most over least outstanding",
}

// cells are a claim as a row of a table: what it speaks of, the paper's figure,
// ours and the difference.
func (c *Claim) cells() []string {
	what := claimNames[c.Figure] + " of " + sideName(c.Side)
	if c.Than != nil {
		what += map[bool]string{true: " less that of ", false: " over that of "}[c.Figure.Share()] + sideName(*c.Than)
	}
	paper := c.value(c.Least)
	if c.Most != c.Least {
		paper += " to " + c.value(c.Most)
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
var claimHeader = []string{"WHAT", "PAPER", "MEASURED", "OFF BY"}

// writeClaims writes what the paper says beside what was measured.
func (r *Report) writeClaims(out io.Writer) error {
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
