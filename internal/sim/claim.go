package sim

// Figure names a figure that claims speak of.
type Figure string

// The figures that papers make claims of.
const (
	throughput Figure = "output_tokens_per_second"
	ttftP90    Figure = "ttft_p90_ms"
	hitRate    Figure = "prefix_hit_rate"
	imbalance  Figure = "outstanding_max_over_min"
)

// Side is a policy at a push rule; an empty Push is any.
type Side struct {
	Policy string `json:"policy"`
	Push   string `json:"push,omitempty"`
}

// Claim is what a paper says of a figure: of Side by itself, or against Than,
// as a ratio or, for shares, as a difference.
type Claim struct {
	Figure Figure `json:"figure"`
	Side   Side   `json:"side"`
	Than   *Side  `json:"than,omitempty"`
	// Least and Most are equal where the paper gives one number.
	Least float64 `json:"least"`
	Most  float64 `json:"most"`
}

// Share says whether the figure is a share, from 0 to 1.
func (f Figure) Share() bool { return f == hitRate }

// Of reads the figure; nil when it is unknown.
func (f Figure) Of(from *Figures) *float64 {
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

// Compare is what the claim speaks of, measured: the figure of one side, or how
// it compares with the other's. It is nil when something is unknown.
func (c *Claim) Compare(side, than *Figures) *float64 {
	got := c.Figure.Of(side)
	if c.Than == nil || got == nil {
		return got
	}
	base := c.Figure.Of(than)
	if base == nil || *base == 0 && !c.Figure.Share() {
		return nil
	}
	compared := *got - *base
	if !c.Figure.Share() {
		compared = *got / *base
	}
	return &compared
}

// level claims a figure of a policy.
func level(f Figure, policy string, least, most float64) Claim {
	return Claim{Figure: f, Side: Side{Policy: policy}, Least: least, Most: most}
}

// ratio claims how two policies compare: a ratio, of shares the difference.
func ratio(f Figure, policy, than string, paper float64) Claim {
	return Claim{Figure: f, Side: Side{Policy: policy}, Than: &Side{Policy: than}, Least: paper, Most: paper}
}
