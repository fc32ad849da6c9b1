package sim

import (
	"io"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"skyserve/internal/sim/workload"
)

// drawnRows is a Poisson process of requests with the lengths of a conversation
// service, over three regions.
type drawnRows struct {
	random    *rand.Rand
	remaining int
	at        float64 // seconds
	rate      float64 // a second
}

func (d *drawnRows) Next() (workload.TraceRow, error) {
	if d.remaining == 0 {
		return workload.TraceRow{}, io.EOF
	}
	d.remaining--
	d.at += d.random.ExpFloat64() / d.rate
	length := func(median, sigma float64) int { return int(median*math.Exp(sigma*d.random.NormFloat64())) + 1 }
	return workload.TraceRow{
		Number: d.remaining, At: time.Duration(d.at * 1e9), Region: [...]string{"us", "us", "eu", "asia"}[d.random.IntN(4)],
		InputTokens: min(length(600, 1), 8000), OutputTokens: min(length(160, 0.7), 1000),
	}, nil
}
func (*drawnRows) Skipped() int { return 0 }
func (*drawnRows) Close() error { return nil }

// lightScenario is 12 H100 with a stream of requests that uses 70 % of their capacity.
func lightScenario(requests int) *Scenario {
	s := Default()
	s.Name, s.Engine, s.Warmup, s.MaxContext = "light", LightEngine, 0, 16_000
	s.Profile = profileNamed("h100-llama3.1-8b")
	for _, name := range []string{"us", "eu", "asia"} {
		s.Regions = append(s.Regions, Region{Name: name, Replicas: 4, Clients: 1})
	}
	const rate = 130
	s.Duration = time.Duration(float64(requests)/rate*1.1+60) * time.Second
	s.Trace = &Trace{Name: "drawn", Open: func() (Rows, error) {
		return &drawnRows{random: rand.New(rand.NewPCG(1, 1)), remaining: requests, rate: rate}, nil
	}}
	return &s
}

func benchmarkLight(b *testing.B, policy, mode string, layout Layout) {
	const requests = 50_000
	s := lightScenario(requests)
	events := int64(0)
	for b.Loop() {
		r := run(b, s, Setup{Policy: policy, Push: push(b, mode), Layout: layout, Seed: 1})
		if r.Totals.Completed != requests {
			b.Fatalf("completed %+v", r.Totals)
		}
		events += r.Totals.Events
	}
	b.ReportMetric(float64(b.N*requests)/b.Elapsed().Seconds(), "requests/s")
	b.ReportMetric(float64(events)/b.Elapsed().Seconds(), "events/s")
}

func BenchmarkLight(b *testing.B) {
	b.Run("round-robin", func(b *testing.B) { benchmarkLight(b, "round-robin", "blind", Single) })
	b.Run("least-load", func(b *testing.B) { benchmarkLight(b, "least-load", "blind", Single) })
	b.Run("sageserve", func(b *testing.B) { benchmarkLight(b, "sageserve", "blind", Regional) })
	b.Run("cost", func(b *testing.B) { benchmarkLight(b, "cost", "pending", Regional) })
}

// Full engine: trees of thoughts with shared prefixes.
func BenchmarkFull(b *testing.B) {
	s := short(b, "fig8c", 100*time.Second)
	requests, events := 0, int64(0)
	for b.Loop() {
		r := run(b, s, Setup{Policy: "skylb", Push: push(b, "pending"), Layout: Regional, Seed: 1})
		requests += r.Totals.Completed
		events += r.Totals.Events
	}
	b.ReportMetric(float64(requests)/b.Elapsed().Seconds(), "requests/s")
	b.ReportMetric(float64(events)/b.Elapsed().Seconds(), "events/s")
}
