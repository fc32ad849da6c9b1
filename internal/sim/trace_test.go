package sim

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"strings"
	"testing"
	"time"

	"skyserve/internal/sim/workload"
	"skyserve/internal/testkit"
)

// fileOf returns a function that opens a file with that text repeatedly.
func fileOf(text string) func() (io.ReadCloser, error) {
	return func() (io.ReadCloser, error) { return io.NopCloser(strings.NewReader(text)), nil }
}

// rowsEvery is a trace of n rows with prompts of 200 and responses of 20 tokens.
func rowsEvery(n int, gap time.Duration) string {
	var lines strings.Builder
	lines.WriteString("t_s,input_tokens,output_tokens\n")
	for i := range n {
		fmt.Fprintf(&lines, "%v,200,20\n", (time.Duration(i) * gap).Seconds())
	}
	return lines.String()
}

// A trace's requests arrive at their times in their weighted regions, and end.
func TestReplayTrace(t *testing.T) {
	s := short(t, "fig8a", 30*time.Second)
	s.Warmup = 0
	lines := rowsEvery(40, time.Second) + "15,90000,20\n" // longer than the context
	if err := s.ReadTrace("t.csv", fileOf(lines), workload.TraceOptions{Weights: []workload.Weight{{Region: "eu", Weight: 1}}}); err != nil {
		t.Fatal(err)
	}
	if s.Reference != nil || s.Title != "t.csv (azure-2023) on the service of fig8a" || s.Trace.Format != "azure-2023" {
		t.Fatalf("%s, format %s", s.Title, s.Trace.Format)
	}
	for range 2 { // each run reads it anew
		r := run(t, s, Setup{Policy: "skylb", Push: push(t, "pending"), Layout: Regional, Seed: 1})
		if r.Totals.Rows != 30 || r.Totals.Skipped != 1 || r.Totals.Issued != 30 || r.Totals.Completed < 25 || r.Balancers[1].Arrived != 30 {
			t.Errorf("replayed %+v, %+v", r.Totals, r.Balancers)
		}
	}
	if c := s.Constants(); c.Workload != "trace" {
		t.Errorf("constants are %+v", c)
	}
	for want, o := range map[string]workload.TraceOptions{
		`weight of mars: unknown region "mars"`:  {Weights: []workload.Weight{{Region: "mars", Weight: 1}}},
		"reading t.csv: no request within 30s o": {From: time.Hour},
	} {
		if err := s.ReadTrace("t.csv", fileOf(lines), o); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("got %v, want %s", err, want)
		}
	}
	gone := errors.New("gone")
	if err := s.ReadTrace("t.csv", func() (io.ReadCloser, error) { return nil, gone }, workload.TraceOptions{}); !errors.Is(err, gone) {
		t.Errorf("a file that cannot be opened returned %v", err)
	}
}

// An unreadable row ends the run when it is reached; the error has its position.
func TestBadTraceRowEndsRun(t *testing.T) {
	s := short(t, "fig8a", time.Hour)
	lines := rowsEvery(2000, 10*time.Millisecond) + "21,many,20\n"
	if err := s.ReadTrace("t.csv", fileOf(lines), workload.TraceOptions{}); err != nil {
		t.Fatal(err)
	}
	_, err := Run(context.Background(), s, Setup{Policy: "round-robin", Push: push(t, "blind"), Layout: Single, Seed: 1})
	if err == nil || !strings.HasPrefix(err.Error(), "reading t.csv:2002: input_tokens: must be an integer") {
		t.Errorf("got %v", err)
	}
}

// countedRows is an endless trace that counts calls of Next.
type countedRows struct{ given, closed int }

func (c *countedRows) Next() (workload.TraceRow, error) {
	c.given++
	return workload.TraceRow{Number: c.given, At: time.Duration(c.given) * 10 * time.Millisecond, InputTokens: 100, OutputTokens: 10, Region: "us"}, nil
}
func (*countedRows) Skipped() int   { return 0 }
func (c *countedRows) Close() error { c.closed++; return nil }

// A run reads only one row ahead, and ends although the trace is endless.
func TestTraceRowsAreStreamed(t *testing.T) {
	s := short(t, "fig8a", 20*time.Second)
	rows := &countedRows{}
	s.Trace = &Trace{Name: "endless", Open: func() (Rows, error) { return rows, nil }}
	s.Engine = LightEngine
	r := run(t, s, Setup{Policy: "least-load", Push: push(t, "blind"), Layout: Single, Seed: 1})
	if rows.given != r.Totals.Rows+1 || rows.closed != 1 || r.Totals.Rows != 1999 {
		t.Errorf("read %d rows for %d requests, closed %d times", rows.given, r.Totals.Rows, rows.closed)
	}
}

// Without shared prefixes and with sufficient memory, a light engine yields the same figures as the
// full one.
func TestLightEngineEqualsFullWithoutSharing(t *testing.T) {
	testkit.Slow(t)
	for _, policy := range []string{"round-robin", "least-load", "skylb", "cost", "sageserve"} {
		s := short(t, "fig8a", 60*time.Second)
		s.MaxNew = 1
		if err := s.ReadTrace("t.csv", fileOf(rowsEvery(700, 80*time.Millisecond)), workload.TraceOptions{}); err != nil {
			t.Fatal(err)
		}
		setup := Setup{Policy: policy, Push: push(t, "pending"), Layout: Regional, Seed: 1}
		full := run(t, s, setup)
		s.Engine = LightEngine
		light := run(t, s, setup)
		if full.Figures.Completed < 500 || full.Replicas[0].Preempted > 0 {
			t.Fatalf("%s: the trace is unsuitable for the test: %+v", policy, full.Figures)
		}
		if light.Figures.PrefixHitRate != nil {
			t.Errorf("%s: a light engine has a hit rate of %v", policy, *light.Figures.PrefixHitRate)
		}
		for name, pair := range map[string][2]float64{
			"completed":   {light.Figures.Completed, full.Figures.Completed},
			"throughput":  {light.Figures.OutputTokensPerSecond, full.Figures.OutputTokensPerSecond},
			"mean TTFT":   {light.Figures.TTFT.Mean, full.Figures.TTFT.Mean},
			"mean E2E":    {light.Figures.E2E.Mean, full.Figures.E2E.Mean},
			"longest E2E": {light.Figures.E2E.Max, full.Figures.E2E.Max},
			"imbalance":   {*light.Figures.OutstandingMaxOverMin, *full.Figures.OutstandingMaxOverMin},
		} {
			// By chance some prompts begin with one word. A full engine also reports its cache hits, from which
			// cost learns.
			if math.Abs(pair[0]-pair[1]) > 1e-3*pair[1] {
				t.Errorf("%s: %s is %v light, %v full", policy, name, pair[0], pair[1])
			}
		}
	}
}

// A sample of many values has bounded memory and a precision of a thousandth.
func TestLargeSamplePrecision(t *testing.T) {
	var s sample
	var all []float64
	for i := range exactSample + 50_000 {
		v := math.Exp(float64(i*7919%100_003)/10_000) - 1 // 0 to 22,000 ms, out of order
		s.addLatency(v)
		all = append(all, v)
	}
	if s.values != nil {
		t.Fatalf("%d values are kept", len(s.values))
	}
	got, want := s.percentiles(), PercentilesOf(all)
	for name, pair := range map[string][2]float64{
		"mean": {got.Mean, want.Mean}, "p10": {got.P10, want.P10}, "p25": {got.P25, want.P25}, "p50": {got.P50, want.P50},
		"p75": {got.P75, want.P75}, "p90": {got.P90, want.P90}, "p95": {got.P95, want.P95}, "p99": {got.P99, want.P99}, "max": {got.Max, want.Max},
	} {
		if math.Abs(pair[0]-pair[1]) > 1e-3*pair[1] {
			t.Errorf("%s: %v, exactly %v", name, pair[0], pair[1])
		}
	}
}
