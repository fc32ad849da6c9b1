package breaker

// Budget bounds how many requests are sent a second time, so that retries cannot multiply
// the load of a fleet that is failing as a whole: a share of what arrives, with a stock that
// the death of one full replica does not use up. A burst of 0 is no bound.
type Budget struct {
	tokens float64
}

// NewBudget begins with a full stock.
func NewBudget(burst int) Budget { return Budget{float64(burst)} }

// Earn adds the share of a retry that an arrival allows.
func (r *Budget) Earn(share float64, burst int) { r.tokens = min(float64(burst), r.tokens+share) }

// Spend takes a retry out of the stock, and reports whether there was one.
func (r *Budget) Spend(burst int) bool {
	if burst <= 0 {
		return true
	}
	if r.tokens < 1 {
		return false
	}
	r.tokens--
	return true
}

// Resize brings the stock within a new burst; where there was none before there was no
// stock either, and it begins full.
func (r *Budget) Resize(before, burst int) {
	if before <= 0 {
		r.tokens = float64(burst)
		return
	}
	r.tokens = min(r.tokens, float64(max(0, burst)))
}
