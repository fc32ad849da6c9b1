package sim

import (
	"math"
	"time"

	"skyserve/internal/sim/engine"
	"skyserve/lbd/core"
)

// RunFigures are the measurements of a run after its warm-up. Times are measured at the
// clients, over the requests completed in that period; unmeasured figures are nil.
type RunFigures struct {
	// Completed counts requests with a complete response, Rejected those that a balancer
	// rejected.
	Completed float64 `json:"completed"`
	Rejected  float64 `json:"rejected"`
	// OutputTokensPerSecond counts the output tokens of the engines.
	OutputTokensPerSecond float64 `json:"output_tokens_per_second"`
	// TTFT is the time to the first token, TPOT (E2E-TTFT)/(tokens-1), E2E the time to the last token.
	TTFT *Percentiles `json:"ttft_ms"`
	TPOT *Percentiles `json:"tpot_ms"`
	E2E  *Percentiles `json:"e2e_ms"`
	// PrefixHitRate is cached over prompt tokens of requests admitted by engines.
	PrefixHitRate *float64 `json:"prefix_hit_rate"`
	// Forwarded counts requests that a balancer forwarded to another.
	Forwarded float64 `json:"forwarded"`
	// MaxWaitMillis is the longest time that a balancer queued a request.
	MaxWaitMillis float64 `json:"max_wait_ms"`
	// OutstandingMaxOverMin is the ratio of the highest to the lowest mean number of requests in an
	// engine; nil if the lowest is 0.
	OutstandingMaxOverMin *float64 `json:"outstanding_max_over_min"`
}

// Percentiles is a set of percentiles by nearest rank, in milliseconds.
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

// Result is the result of a run.
type Result struct {
	Figures RunFigures
	Totals  Totals
	// Balancers and Replicas are the final states, in the order of the regions.
	Balancers []core.Counts
	Replicas  []engine.Load
	// LoadSamples is the load at equidistant times, from the start.
	LoadSamples []LoadSample
}

// Totals counts the whole run, including the warm-up.
type Totals struct {
	// Issued counts all requests that clients sent. It is the sum of Completed, Failed, Cancelled, Lost and InFlight.
	Issued    int
	Completed int
	Failed    int
	Cancelled int
	// Lost counts requests lost with a stopped balancer; their clients retried.
	Lost     int
	InFlight int
	// Events is the number of simulated events.
	Events int64
	// Rows is the number of replayed trace rows, Skipped the number that exceed the scenario's
	// MaxContext.
	Rows    int
	Skipped int
}

// tally accumulates a run's figures.
type tally struct {
	issued, completed, failures, cancelled, lost int // whole run

	ttft, tpot, e2e sample // after the warm-up
	rejected        int
	forwarded       int
	longest         time.Duration
}

// inFlight returns the number of unfinished requests.
func (t *tally) inFlight() int { return t.issued - t.completed - t.failures - t.cancelled - t.lost }

func (t *tally) addCompleted(warm bool, now time.Duration, f *clientRequest) {
	t.completed++
	if !warm {
		return
	}
	t.ttft.addLatency(milliseconds(f.first - f.firstIssued))
	t.e2e.addLatency(milliseconds(now - f.firstIssued))
	if f.output > 1 {
		t.tpot.addLatency(milliseconds(now-f.first) / float64(f.output-1))
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
		w.advanceReplica(r)
		r.atWarm = r.load()
	}
}

// worldResult returns the figures of a finished run.
func (w *world) worldResult() *Result {
	t := &w.tally
	r := &Result{Totals: Totals{
		Issued: t.issued, Completed: t.completed, Failed: t.failures, Cancelled: t.cancelled, Lost: t.lost,
		InFlight: t.inFlight(), Events: w.events, Rows: w.taken,
	}}
	if w.rows != nil {
		r.Totals.Skipped = w.rows.Skipped()
	}
	for _, n := range w.nodes {
		r.Balancers = append(r.Balancers, n.counts(w.now))
	}
	for _, rep := range w.replicas {
		r.Replicas = append(r.Replicas, rep.load())
	}
	r.LoadSamples = w.samples
	generated, hitRate := w.engineFigures()
	r.Figures = RunFigures{
		Completed: float64(t.e2e.count), Rejected: float64(t.rejected), OutputTokensPerSecond: generated, PrefixHitRate: hitRate,
		TTFT: t.ttft.percentiles(), TPOT: t.tpot.percentiles(), E2E: t.e2e.percentiles(), Forwarded: float64(t.forwarded),
		MaxWaitMillis: milliseconds(max(t.longest, w.oldest())), OutstandingMaxOverMin: w.imbalance(),
	}
	return r
}

// engineFigures returns the generated tokens per second and the prefix hit rate.
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
	return float64(generated) / (w.scenario.Duration - w.warmupEnd()).Seconds(), hitRate
}

// imbalance returns the ratio of the highest to the lowest mean load of a replica.
func (w *world) imbalance() *float64 {
	lowest, highest := math.Inf(1), 0.0
	for _, r := range w.replicas {
		mean := 0.0
		if r.samples > 0 {
			mean = float64(r.seen) / float64(r.samples)
		}
		lowest, highest = min(lowest, mean), max(highest, mean)
	}
	if lowest == 0 {
		return nil
	}
	ratio := highest / lowest
	return &ratio
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
