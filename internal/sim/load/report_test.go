package load

import (
	"encoding/json"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"skyserve/internal/telemetry"
)

// TestHistogramEqualsSorting compares percentiles with those of the sorted samples.
func TestHistogramEqualsSorting(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		random := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 1))
		n := rapid.IntRange(1, 500).Draw(t, "n")
		sigma := rapid.Float64Range(0, 4).Draw(t, "sigma")
		var whole, left, right histogram
		var samples []float64
		for i := range n {
			d := time.Duration(float64(50*time.Millisecond) * math.Exp(sigma*random.NormFloat64()))
			d = max(d, time.Microsecond)
			samples = append(samples, float64(d)/1e6)
			whole.addDuration(d)
			if i%3 == 0 {
				left.addDuration(d)
			} else {
				right.addDuration(d)
			}
		}
		slices.Sort(samples)
		left.merge(&right)
		p, merged := whole.percentiles(), left.percentiles()
		for _, c := range []struct {
			q                float64
			got, mergedValue float64
		}{{0.1, p.P10, merged.P10}, {0.25, p.P25, merged.P25}, {0.5, p.P50, merged.P50}, {0.75, p.P75, merged.P75}, {0.9, p.P90, merged.P90}, {0.95, p.P95, merged.P95}, {0.99, p.P99, merged.P99}, {1, p.Max, merged.Max}} {
			want := samples[max(int(math.Ceil(c.q*float64(n)))-1, 0)]
			if math.Abs(c.got-want) > 0.0051*want {
				t.Fatalf("quantile %v of %d samples: %v, want %v", c.q, n, c.got, want)
			}
			if c.got != c.mergedValue {
				t.Fatalf("quantile %v: %v of all, %v of the merged parts", c.q, c.got, c.mergedValue)
			}
		}
		sum := 0.0
		for _, x := range samples {
			sum += x
		}
		if math.Abs(p.Mean*float64(n)-sum) > 1e-6*sum {
			t.Fatalf("mean %v, want %v", p.Mean, sum/float64(n))
		}
	})
}

func TestPercentilesWithoutSamples(t *testing.T) {
	if p := (&histogram{}).percentiles(); p != nil {
		t.Errorf("percentiles of nothing: %+v", p)
	}
	var h histogram
	h.addDuration(0)
	if p := h.percentiles(); p.P50 != 0.001 || p.Max != 0.001 {
		t.Errorf("a sample below a microsecond: %+v", p)
	}
}

// keys returns the keys of an object, sorted.
func keys(t *testing.T, data []byte) []string {
	t.Helper()
	var object map[string]json.RawMessage
	if err := json.Unmarshal(data, &object); err != nil {
		t.Fatal(err)
	}
	var names []string
	for k := range object {
		names = append(names, k)
	}
	slices.Sort(names)
	return names
}

func TestJSONKeysAreStable(t *testing.T) {
	r := newRecorder([]Target{{"us", ""}, {"eu", ""}})
	r.addResult(&result{region: "us", status: 200, events: 2, usage: &usage{prompt: 4, output: 2}}, time.Now())
	report := r.report(time.Second, false)
	data, err := json.Marshal(report)
	if err != nil {
		t.Fatal(err)
	}
	figures := []string{
		"by_status", "cached_tokens", "cancelled", "duration_s", "e2e_ms", "failed", "failures", "forwarded", "itl_ms", "ok", "output_tokens",
		"output_tokens_per_second", "prefix_hit_rate", "prompt_tokens", "rejected", "requests", "requests_per_second", "tpot_ms", "ttft_ms",
	}
	if got, want := keys(t, data), append([]string{"by_region", "interrupted"}, figures...); !slices.Equal(got, sorted(want)) {
		t.Errorf("keys %v\nwant %v", got, sorted(want))
	}
	for _, region := range []string{"us", "eu"} {
		one, err := json.Marshal(report.ByRegion[region])
		if err != nil {
			t.Fatal(err)
		}
		if got := keys(t, one); !slices.Equal(got, figures) {
			t.Errorf("keys of %s: %v", region, got)
		}
	}
	if !strings.Contains(string(data), `"prefix_hit_rate":null`) || !strings.Contains(string(data), `"itl_ms":null`) {
		t.Errorf("unknown values are not null: %s", data)
	}
	if got := keys(t, mustJSON(t, report.TTFT)); !slices.Equal(got, []string{"max", "mean", "p10", "p25", "p50", "p75", "p90", "p95", "p99"}) {
		t.Errorf("a percentile set has %v", got)
	}
}

func sorted(names []string) []string {
	slices.Sort(names)
	return names
}

func mustJSON(t *testing.T, v any) []byte {
	t.Helper()
	data, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func TestWriteTable(t *testing.T) {
	hits := 0.8765
	omitted, delayed, forwarded := 4, 2, 2
	set := func(scale float64) *telemetry.Percentiles {
		return &telemetry.Percentiles{Mean: 1.2345 * scale, P50: scale, P90: 12.345 * scale, P99: 123.45 * scale, Max: 1234.5 * scale}
	}
	figures := ClientFigures{
		Requests: 22, OK: 14, Rejected: 3, Failed: 4, Cancelled: 1, DurationSeconds: 60, RequestsPerSecond: 0.2, OutputTokensPerSecond: 1234.5,
		TTFT: set(1), TPOT: set(0.1), ITL: set(0.004), E2E: set(10), PrefixHitRate: &hits, PromptTokens: 5000, OutputTokens: 900, Forwarded: &forwarded,
		Failures: map[string]int{"stream_broken": 1, "connect": 3},
	}
	r := Report{
		ClientFigures: figures, ByRegion: map[string]ClientFigures{"us": figures, "asia": {}}, FirstError: "status 429: slow down",
		Interrupted: true, RowsSkipped: &omitted, Delayed: &delayed,
	}
	want := `requests   14 ok, 3 rejected, 4 failed, 1 cancelled
rates      0.2 requests/s, 1234 output tokens/s over 60.0 s; not counted in the rates: 2 ok requests that ended later
tokens     5000 prompt, 900 output; prefix hits 87.6%
forwarded  2

ms     mean    p50   p90   p99    max
TTFT   1.23   1.00  12.3   123   1234
TPOT   0.12   0.10  1.23  12.3    123
ITL   <0.01  <0.01  0.05  0.49   4.94
E2E    12.3   10.0   123  1234  12345
TTFT: to the first token; TPOT: per output token after it; ITL: between two tokens; E2E: to the end of the response
ITL p50 is below 0.01 ms: most tokens arrived together with the token before them; TPOT is the mean time of a token

region  ok  rejected  failed  cancelled  req/s  tok/s  TTFT p50  TTFT p90  TPOT p50   hits  forwarded
asia     0         0       0          0    0.0      0         -         -         -      -          -
us      14         3       4          1    0.2   1234      1.00      12.3      0.10  87.6%          2

failures: 3 requests without a response, 1 request with a broken stream
first error: status 429: slow down
omitted: 4 rows whose prompt exceeds the limit
delayed: 2 rows waited for an in-flight slot
interrupted: the load ended early
`
	var b strings.Builder
	if err := r.WriteTable(&b); err != nil {
		t.Fatal(err)
	}
	if b.String() != want {
		t.Errorf("table\n%s\nwant\n%s", b.String(), want)
	}
}
