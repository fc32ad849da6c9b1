package telemetry

import "cmp"

// Traffic is the traffic of a model or an API key: the requests of clients that ended within the last
// minute, at the balancers that received them from the clients.
type Traffic struct {
	// Seconds is the time that the counts cover: 60, or less if the balancer started later.
	Seconds float64 `json:"seconds"`
	// Outcomes counts the requests by the response that their clients received.
	Outcomes Outcomes `json:"outcomes"`
	// Usage is the usage of those that an engine served, and its cost by the prices of the models.
	Usage Usage `json:"usage"`
	// TTFT and E2E are in milliseconds since the arrival of a request: until the first token of a stream,
	// and until the end of a served request. They are nil without such requests.
	TTFT *Percentiles `json:"ttft_ms"`
	E2E  *Percentiles `json:"e2e_ms"`
}

// KeyTraffic is the traffic of one API key, by its name, or of one user with identity tokens.
type KeyTraffic struct {
	Key string `json:"key"`
	// Tenant is the key's tenant; empty if it has none.
	Tenant  string  `json:"tenant"`
	Traffic Traffic `json:"traffic"`
}

// Ended is the number of requests with a response.
func (o Outcomes) Ended() int64 { return o.Served + o.Limited + o.Failed }

// FailedShare returns the share of requests that were answered with 429, 5xx or an error within the stream;
// nil without requests.
func (o Outcomes) FailedShare() *float64 {
	if o.Ended() == 0 {
		return nil
	}
	share := float64(o.Failed+o.Limited) / float64(o.Ended())
	return &share
}

// Plus returns the traffic of two balancers. The percentiles are means, weighted by requests, because the
// latencies themselves are not available.
func (t Traffic) Plus(u Traffic) Traffic {
	a, b := float64(t.Outcomes.Ended()), float64(u.Outcomes.Ended())
	return Traffic{
		max(t.Seconds, u.Seconds), t.Outcomes.Add(u.Outcomes), t.Usage.Plus(u.Usage),
		t.TTFT.Mix(a, u.TTFT, b), t.E2E.Mix(a, u.E2E, b),
	}
}

// PerSecond returns a count of the traffic as a rate; nil if the traffic covers no time.
func (t Traffic) PerSecond(n int64) *float64 {
	if t.Seconds <= 0 {
		return nil
	}
	rate := float64(n) / t.Seconds
	return &rate
}

// Mix returns the mean of two sets of percentiles by their weights, and the greater maximum. Nil has no
// weight. Equal parts without a weight count equally.
func (p *Percentiles) Mix(w float64, q *Percentiles, v float64) *Percentiles {
	switch {
	case p == nil:
		return q
	case q == nil:
		return p
	case w+v <= 0:
		w, v = 1, 1
	}
	mean := func(a, b float64) float64 { return (a*w + b*v) / (w + v) }
	return &Percentiles{
		Mean: mean(p.Mean, q.Mean), P10: mean(p.P10, q.P10), P25: mean(p.P25, q.P25), P50: mean(p.P50, q.P50), P75: mean(p.P75, q.P75),
		P90: mean(p.P90, q.P90), P95: mean(p.P95, q.P95), P99: mean(p.P99, q.P99), Max: max(p.Max, q.Max),
	}
}

// Compare orders traffic by tenant and key.
func (k KeyTraffic) Compare(other KeyTraffic) int {
	return cmp.Or(cmp.Compare(k.Tenant, other.Tenant), cmp.Compare(k.Key, other.Key))
}
