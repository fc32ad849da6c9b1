package breaker

// Budget limits retries, so that they cannot multiply the load of failing replicas. It grows by a
// share of the arrivals, up to a burst. The burst is large enough for the failure of one full
// replica; a burst of 0 means no limit.
type Budget struct {
	tokens float64
}

// NewBudget returns a full budget.
func NewBudget(burst int) Budget { return Budget{float64(burst)} }

// Earn adds the share of a retry for one arrival.
func (r *Budget) Earn(share float64, burst int) { r.tokens = min(float64(burst), r.tokens+share) }

// Spend removes a retry from the budget and reports whether there was one.
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

// Resize adapts the budget to a new burst. If there was no limit before, it becomes full.
func (r *Budget) Resize(before, burst int) {
	if before <= 0 {
		r.tokens = float64(burst)
		return
	}
	r.tokens = min(r.tokens, float64(max(0, burst)))
}
