package eval

import (
	"math"

	"skyserve/internal/sim"
)

// SimReport is a comparison on one scenario. The same plan yields the same report, byte for byte, until
// WallMillis is set.
type SimReport struct {
	Scenario  string        `json:"scenario"`
	Title     string        `json:"title"`
	Constants sim.Constants `json:"constants"`
	// Rows has one element per policy, push mode and seed, in the plan's order.
	Rows []RunRow `json:"rows"`
	// Summary has one element per policy and push mode.
	Summary []Summary `json:"summary"`
	// Claims are the claims of the scenario's paper and Note its remark, if the plan requests them.
	Claims []Claim `json:"claims,omitempty"`
	Note   string  `json:"note,omitempty"`
	// WallMillis is the duration of the comparison, set by the caller.
	WallMillis float64 `json:"wall_ms"`
	// Issued counts all requests that clients sent in any run.
	Issued int `json:"-"`

	paper bool // the plan requests the paper's claims
	// series holds, for each summary, the load over time with its first seed.
	series [][]sim.LoadSample
}

// RunRow is one run.
type RunRow struct {
	Policy string     `json:"policy"`
	Push   string     `json:"push"`
	Layout sim.Layout `json:"layout"`
	Seed   uint64     `json:"seed"`
	sim.RunFigures
	// Requests counts all requests completed in the run, including its warm-up.
	Requests int `json:"requests"`
}

// Summary is a policy with a push mode over all seeds.
type Summary struct {
	Policy string     `json:"policy"`
	Push   string     `json:"push"`
	Layout sim.Layout `json:"layout"`
	// Mean and Spread (the sample standard deviation) are over the seeds, figure by figure. A figure
	// unknown for one seed is unknown here; Spread is nil with one seed.
	Mean   sim.RunFigures  `json:"mean"`
	Spread *sim.RunFigures `json:"spread"`
	// Best marks the highest output tokens per second.
	Best bool `json:"best"`
	// Reference holds the results of a simulation that follows the paper closely, nil if there are none.
	Reference *Reference `json:"reference"`
}

// Reference holds reference values of a policy.
type Reference struct {
	OutputTokensPerSecond float64 `json:"output_tokens_per_second"`
	TTFTP90Millis         float64 `json:"ttft_p90_ms"`
}

func newReport(p *Comparison, setups []sim.Setup, results []*sim.Result) *SimReport {
	s := &p.Scenario
	r := &SimReport{Scenario: s.Name, Title: s.Title, Constants: s.Constants(), paper: p.Paper}
	if t := r.Constants.Trace; t != nil {
		// all runs replay the same rows
		t.Requests, t.Skipped = results[0].Totals.Rows, results[0].Totals.Skipped
	}
	for i, setup := range setups {
		r.Rows = append(r.Rows, RunRow{
			Policy: setup.Policy, Push: setup.Push.String(), Layout: setup.Layout, Seed: setup.Seed,
			RunFigures: results[i].Figures, Requests: results[i].Totals.Completed,
		})
		r.Issued += results[i].Totals.Issued
	}
	for from := 0; from < len(r.Rows); {
		to := from + 1
		for to < len(r.Rows) && r.Rows[to].Seed > r.Rows[to-1].Seed {
			to++
		}
		r.Summary = append(r.Summary, summarise(s, r.Rows[from:to]))
		r.series = append(r.series, results[from].LoadSamples)
		from = to
	}
	r.markBest()
	if p.Paper {
		r.addClaims(s.Claims)
		r.Note = s.Note
	}
	return r
}

// summarise aggregates the seeds of one policy and push mode.
func summarise(s *sim.Scenario, rows []RunRow) Summary {
	first := &rows[0]
	sum := Summary{Policy: first.Policy, Push: first.Push, Layout: first.Layout, Mean: fold(rows, mean)}
	if len(rows) > 1 {
		spread := fold(rows, deviation)
		sum.Spread = &spread
	}
	if ref, known := s.Reference[first.Policy]; known {
		sum.Reference = &Reference{ref.OutputTokensPerSecond, 1000 * ref.TTFTP90Seconds}
	}
	return sum
}

func (r *SimReport) markBest() {
	best := 0
	for i := range r.Summary {
		if r.Summary[i].Mean.OutputTokensPerSecond > r.Summary[best].Mean.OutputTokensPerSecond {
			best = i
		}
	}
	r.Summary[best].Best = true
}

func mean(values []float64) float64 {
	sum := 0.0
	for _, v := range values {
		sum += v
	}
	return sum / float64(len(values))
}

func deviation(values []float64) float64 {
	m, sum := mean(values), 0.0
	for _, v := range values {
		sum += (v - m) * (v - m)
	}
	return math.Sqrt(sum / float64(len(values)-1))
}

// fold combines each figure of the rows with by.
func fold(rows []RunRow, by func([]float64) float64) sim.RunFigures {
	maybe := func(get func(*sim.RunFigures) *float64) *float64 {
		values := make([]float64, 0, len(rows))
		for i := range rows {
			v := get(&rows[i].RunFigures)
			if v == nil {
				return nil
			}
			values = append(values, *v)
		}
		joined := by(values)
		return &joined
	}
	set := func(get func(*sim.RunFigures) *sim.Percentiles) *sim.Percentiles {
		var out sim.Percentiles
		for k, to := range ranks(&out) {
			v := maybe(func(f *sim.RunFigures) *float64 {
				if p := get(f); p != nil {
					return ranks(p)[k]
				}
				return nil
			})
			if v == nil {
				return nil
			}
			*to = *v
		}
		return &out
	}
	return sim.RunFigures{
		Completed:             *maybe(func(f *sim.RunFigures) *float64 { return &f.Completed }),
		Rejected:              *maybe(func(f *sim.RunFigures) *float64 { return &f.Rejected }),
		OutputTokensPerSecond: *maybe(func(f *sim.RunFigures) *float64 { return &f.OutputTokensPerSecond }),
		TTFT:                  set(func(f *sim.RunFigures) *sim.Percentiles { return f.TTFT }),
		TPOT:                  set(func(f *sim.RunFigures) *sim.Percentiles { return f.TPOT }),
		E2E:                   set(func(f *sim.RunFigures) *sim.Percentiles { return f.E2E }),
		PrefixHitRate:         maybe(func(f *sim.RunFigures) *float64 { return f.PrefixHitRate }),
		Forwarded:             *maybe(func(f *sim.RunFigures) *float64 { return &f.Forwarded }),
		MaxWaitMillis:         *maybe(func(f *sim.RunFigures) *float64 { return &f.MaxWaitMillis }),
		OutstandingMaxOverMin: maybe(func(f *sim.RunFigures) *float64 { return f.OutstandingMaxOverMin }),
	}
}

// ranks returns pointers to the values of a percentile set.
func ranks(p *sim.Percentiles) [9]*float64 {
	return [9]*float64{&p.Mean, &p.P10, &p.P25, &p.P50, &p.P75, &p.P90, &p.P95, &p.P99, &p.Max}
}
