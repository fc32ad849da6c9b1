package sim

// Figure is the name of a figure that claims refer to.
type Figure string

// The figures in papers' claims.
const (
	throughput Figure = "output_tokens_per_second"
	ttftP90    Figure = "ttft_p90_ms"
	hitRate    Figure = "prefix_hit_rate"
	imbalance  Figure = "outstanding_max_over_min"
)

// Side is a policy with a push mode; an empty Push matches any.
type Side struct {
	Policy string `json:"policy"`
	Push   string `json:"push,omitempty"`
}

// Claim is a paper's claim about a figure of Side, or of Side relative to Than: a ratio or, for shares,
// a difference.
type Claim struct {
	Figure Figure `json:"figure"`
	Side   Side   `json:"side"`
	Than   *Side  `json:"than,omitempty"`
	// Min and Max are equal if the paper reports a single value.
	Min float64 `json:"min"`
	Max float64 `json:"max"`
}

// Share reports whether the figure is a share, from 0 to 1.
func (f Figure) Share() bool { return f == hitRate }

// ValueIn returns the figure; nil if it is unknown.
func (f Figure) ValueIn(from *RunFigures) *float64 {
	switch f {
	case throughput:
		return &from.OutputTokensPerSecond
	case ttftP90:
		if from.TTFT != nil {
			return &from.TTFT.P90
		}
	case hitRate:
		return from.PrefixHitRate
	case imbalance:
		return from.OutstandingMaxOverMin
	}
	return nil
}

// Compare returns the measured value of the claim: the figure of one side, or its ratio or difference
// to the other side's. It is nil if a value is unknown.
func (c *Claim) Compare(side, than *RunFigures) *float64 {
	got := c.Figure.ValueIn(side)
	if c.Than == nil || got == nil {
		return got
	}
	base := c.Figure.ValueIn(than)
	if base == nil || *base == 0 && !c.Figure.Share() {
		return nil
	}
	compared := *got - *base
	if !c.Figure.Share() {
		compared = *got / *base
	}
	return &compared
}

// level returns a claim about a figure of a policy.
func level(f Figure, policy string, low, high float64) Claim {
	return Claim{Figure: f, Side: Side{Policy: policy}, Min: low, Max: high}
}

// ratio returns a claim about two policies: a ratio or, for shares, a difference.
func ratio(f Figure, policy, than string, paper float64) Claim {
	return Claim{Figure: f, Side: Side{Policy: policy}, Than: &Side{Policy: than}, Min: paper, Max: paper}
}
