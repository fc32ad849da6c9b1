package policy

// LongestPrefix takes the available candidate that holds the most of the prompt,
// however little that is; ties go to the least loaded, then in turn. It is
// skylb without its rule of one half: locality before load, always.
type LongestPrefix struct{ match SkyLB }

// NewLongestPrefix makes the policy.
func NewLongestPrefix() *LongestPrefix { return &LongestPrefix{match: SkyLB{MinMatch: 0}} }

// Name is longest-prefix.
func (*LongestPrefix) Name() string { return "longest-prefix" }

// Traits says: it looks at prefixes.
func (*LongestPrefix) Traits() Traits { return Traits{Prefix: true} }

// Choose takes the available candidate with the longest match.
func (p *LongestPrefix) Choose(f *Facts) Choice { return p.match.Choose(f) }
