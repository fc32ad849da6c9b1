package sim

import (
	"math"
	"time"

	"skyserve/internal/sim/engine"
	"skyserve/lbd/core"
)

// Figures is what a run measured after its warm-up. Times are what clients saw,
// over the requests that were answered in that time; what could not be measured
// is nil.
type Figures struct {
	// Completed counts answers, Rejected requests that ended without one.
	Completed float64 `json:"completed"`
	Rejected  float64 `json:"rejected"`
	// OutputTokensPerSecond counts the tokens that engines emitted.
	OutputTokensPerSecond float64 `json:"output_tokens_per_second"`
	// TTFT is until the first token, TPOT (E2E-TTFT)/(tokens-1), E2E until the last.
	TTFT *Percentiles `json:"ttft_ms"`
	TPOT *Percentiles `json:"tpot_ms"`
	E2E  *Percentiles `json:"e2e_ms"`
	// PrefixHitRate is cached over prompt tokens of what engines admitted.
	PrefixHitRate *float64 `json:"prefix_hit_rate"`
	// Forwarded counts requests that a balancer sent to another one.
	Forwarded float64 `json:"forwarded"`
	// MaxWaitMillis is the longest that a request was held by one balancer.
	MaxWaitMillis float64 `json:"max_wait_ms"`
	// OutstandingMaxOverMin compares the replicas with the most and the fewest
	// requests in the engine, each by its mean over time; nil when one had none.
	OutstandingMaxOverMin *float64 `json:"outstanding_max_over_min"`
}

// Percentiles is a percentile set: the nearest rank, in milliseconds.
type Percentiles struct {
	Mean float64 `json:"mean"`
	P10  float64 `json:"p10"`
	P25  float64 `json:"p25"`
	P50  float64 `json:"p50"`
	P75  float64 `json:"p75"`
	P90  float64 `json:"p90"`
	P95  float64 `json:"p95"`
	P99  float64 `json:"p99"`
	Max  float64 `json:"max"`
}

// Result is a run at its end.
type Result struct {
	Figures Figures
	Totals  Totals
	// Balancers and Replicas are the final state of each, in the order of the regions.
	Balancers []core.Counts
	Replicas  []engine.Load
	// Course is the load at moments at equal distances, from the very beginning.
	Course []Moment
}

// Totals counts the whole run, warm-up included.
type Totals struct {
	// Issued is the sum of the others: every request that a client sent.
	Issued    int
	Answered  int
	Failed    int
	Cancelled int
	// Lost went with a balancer that died; their clients asked again.
	Lost     int
	InFlight int
	// Events is how many things happened.
	Events int64
	// Rows is how many rows of a trace were replayed, LeftOut how many did not fit
	// into the scenario's MaxContext.
	Rows    int
	LeftOut int
}

// tally collects a run's figures.
type tally struct {
	issued, done, failures, cancelled, lost int // all run

	ttft, tpot, e2e sample // since the warm-up
	rejected        int
	forwarded       int
	longest         time.Duration
}

// inFlight is how many requests have not come to an end.
func (t *tally) inFlight() int { return t.issued - t.done - t.failures - t.cancelled - t.lost }

func (t *tally) answered(warm bool, now time.Duration, f *flight) {
	t.done++
	if !warm {
		return
	}
	t.ttft.add(milliseconds(f.first - f.asked))
	t.e2e.add(milliseconds(now - f.asked))
	if f.output > 1 {
		t.tpot.add(milliseconds(now-f.first) / float64(f.output-1))
	}
}

func (t *tally) failed(warm bool) {
	t.failures++
	if warm {
		t.rejected++
	}
}

func (t *tally) waited(warm bool, wait time.Duration) {
	if warm {
		t.longest = max(t.longest, wait)
	}
}

// beginFigures ends the warm-up.
func (w *world) beginFigures() {
	w.warm = true
	for _, r := range w.replicas {
		w.settle(r)
		r.atWarm = r.load()
	}
}

// result reads the figures off a run that has ended.
func (w *world) result() *Result {
	t := &w.tally
	r := &Result{Totals: Totals{
		Issued: t.issued, Answered: t.done, Failed: t.failures, Cancelled: t.cancelled, Lost: t.lost,
		InFlight: t.inFlight(), Events: w.events, Rows: w.taken,
	}}
	if w.rows != nil {
		r.Totals.LeftOut = w.rows.LeftOut()
	}
	for _, n := range w.nodes {
		r.Balancers = append(r.Balancers, n.counts(w.now))
	}
	for _, rep := range w.replicas {
		r.Replicas = append(r.Replicas, rep.load())
	}
	r.Course = w.course
	generated, hitRate := w.engineFigures()
	r.Figures = Figures{
		Completed: float64(t.e2e.count), Rejected: float64(t.rejected), OutputTokensPerSecond: generated, PrefixHitRate: hitRate,
		TTFT: t.ttft.percentiles(), TPOT: t.tpot.percentiles(), E2E: t.e2e.percentiles(), Forwarded: float64(t.forwarded),
		MaxWaitMillis: milliseconds(max(t.longest, w.oldest())), OutstandingMaxOverMin: w.imbalance(),
	}
	return r
}

// engineFigures is the tokens generated a second and the prefix hit rate.
func (w *world) engineFigures() (perSecond float64, hitRate *float64) {
	var generated, hit, queried int64
	for _, r := range w.replicas {
		l := r.load()
		generated += l.GeneratedTokens - r.atWarm.GeneratedTokens
		hit += l.HitTokens - r.atWarm.HitTokens
		queried += l.QueriedTokens - r.atWarm.QueriedTokens
	}
	if queried > 0 {
		rate := float64(hit) / float64(queried)
		hitRate = &rate
	}
	return float64(generated) / (w.scenario.Duration - w.begin()).Seconds(), hitRate
}

// imbalance is the ratio of the greatest to the least mean load of a replica.
func (w *world) imbalance() *float64 {
	least, most := math.Inf(1), 0.0
	for _, r := range w.replicas {
		mean := 0.0
		if r.samples > 0 {
			mean = float64(r.seen) / float64(r.samples)
		}
		least, most = min(least, mean), max(most, mean)
	}
	if least == 0 {
		return nil
	}
	ratio := most / least
	return &ratio
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
