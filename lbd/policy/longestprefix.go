package policy

// LongestPrefix selects the available candidate with the longest match of any length. Ties are
// broken by load, then by rotation. It is skylb without the threshold of one half: locality always
// has priority over load.
type LongestPrefix struct{ match SkyLB }

// NewLongestPrefix returns the policy.
func NewLongestPrefix() *LongestPrefix { return &LongestPrefix{match: SkyLB{MinMatch: 0}} }

// Name returns longest-prefix.
func (*LongestPrefix) Name() string { return "longest-prefix" }

// Traits returns that the policy uses prefixes.
func (*LongestPrefix) Traits() Traits { return Traits{Prefix: true} }

// Choose selects the available candidate with the longest match.
func (p *LongestPrefix) Choose(f *Facts) Choice { return p.match.Choose(f) }
