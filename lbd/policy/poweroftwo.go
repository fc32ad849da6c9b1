package policy

import "math/rand/v2"

// PowerOfTwo draws two different available candidates at random and selects the less loaded one
// (Mitzenmacher, The Power of Two Choices in Randomized Load Balancing, 2001): it balances nearly
// as well as least-load, but compares only two candidates.
type PowerOfTwo struct{ rng *rand.Rand }

// powerOfTwoSeed is the seed of every PowerOfTwo, so that a replay draws the same candidates.
const powerOfTwoSeed = 0x70_6f_77_65_72_32

// NewPowerOfTwo returns the policy.
func NewPowerOfTwo() *PowerOfTwo {
	return &PowerOfTwo{rng: rand.New(rand.NewPCG(powerOfTwoSeed, 0))}
}

// Name returns power-of-two.
func (*PowerOfTwo) Name() string { return "power-of-two" }

// Traits returns no traits: the policy uses only loads.
func (*PowerOfTwo) Traits() Traits { return Traits{} }

// Choose selects the less loaded of two candidates of the layer. If they are equal, it selects the
// one drawn first.
func (p *PowerOfTwo) Choose(f *Facts) Choice {
	from, to, peer := layer(f.Candidates)
	cs := f.Candidates[from:to]
	n := countAvailable(cs)
	if n == 0 {
		return Choice{Index: Wait, Reason: ReasonNoneAvailable}
	}
	i := 0
	if n > 1 {
		i = p.lessLoadedOfTwo(cs, n)
	}
	return Choice{Index: from + nthAvailable(cs, i), Reason: reason(ReasonPowerOfTwo, peer)}
}

// lessLoadedOfTwo draws two of the n available candidates and returns the less loaded one as an
// argument of nthAvailable.
func (p *PowerOfTwo) lessLoadedOfTwo(cs []Candidate, n int) int {
	i, j := p.rng.IntN(n), p.rng.IntN(n-1)
	if j >= i {
		j++ // the second draw is from the others
	}
	if lessLoaded(&cs[nthAvailable(cs, j)], &cs[nthAvailable(cs, i)]) {
		return j
	}
	return i
}

func countAvailable(cs []Candidate) int {
	n := 0
	for i := range cs {
		if cs[i].Available {
			n++
		}
	}
	return n
}

// nthAvailable returns the index of the n-th available candidate, counted from 0, or none.
func nthAvailable(cs []Candidate, n int) int {
	for i := range cs {
		if !cs[i].Available {
			continue
		}
		if n == 0 {
			return i
		}
		n--
	}
	return none
}
