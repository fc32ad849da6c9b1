package plan

// away prices the load that a region cannot serve itself and sends away.
type away struct {
	// price is in USD for a token a second through the hour.
	price float64
	loads []float64 // by window
}

// egressHour turns a price of a million tokens into one of a token a second
// through the hour.
const egressHour = 3600.0 / 1e6

// cost is the price of what lies above capacity, the mean over the windows. It
// is convex and falls with capacity.
func (a *away) cost(capacity float64) float64 {
	if a.price == 0 || len(a.loads) == 0 {
		return 0
	}
	var sum float64
	for _, v := range a.loads {
		sum += max(0, v-capacity)
	}
	return a.price * sum / float64(len(a.loads))
}
