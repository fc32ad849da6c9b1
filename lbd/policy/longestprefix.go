package policy

// LongestPrefix selects the available candidate with the longest match, however short. It is skylb
// without the minimum match of one half: locality always has priority over load. Ties go to the
// least loaded candidate, then in turn.
type LongestPrefix struct{ skylb SkyLB }

// NewLongestPrefix returns the policy.
func NewLongestPrefix() *LongestPrefix { return &LongestPrefix{skylb: SkyLB{MinMatch: 0}} }

// Name returns longest-prefix.
func (*LongestPrefix) Name() string { return "longest-prefix" }

// Traits returns that the policy uses prefixes.
func (*LongestPrefix) Traits() Traits { return Traits{Prefix: true} }

// Choose selects the available candidate with the longest match.
func (p *LongestPrefix) Choose(f *Facts) Choice { return p.skylb.Choose(f) }
