package breaker

// Budget bounds how many requests are sent a second time, so that retries cannot multiply
// the load of a fleet that is failing as a whole: a share of what arrives, with a stock that
// the death of one full replica does not use up. A burst of 0 is no bound.
type Budget struct {
	stock float64
}

// NewBudget begins with a full stock.
func NewBudget(burst int) Budget { return Budget{float64(burst)} }

// Earn adds the share of a retry that an arrival allows.
func (r *Budget) Earn(share float64, burst int) { r.stock = min(float64(burst), r.stock+share) }

// Spend takes a retry out of the stock, and reports whether there was one.
func (r *Budget) Spend(burst int) bool {
	if burst <= 0 {
		return true
	}
	if r.stock < 1 {
		return false
	}
	r.stock--
	return true
}

// Rebound brings the stock within a new burst; where there was none before there was no
// stock either, and it begins full.
func (r *Budget) Rebound(before, burst int) {
	if before <= 0 {
		r.stock = float64(burst)
		return
	}
	r.stock = min(r.stock, float64(max(0, burst)))
}
