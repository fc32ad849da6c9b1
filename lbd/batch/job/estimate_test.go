package job

import (
	"bytes"
	"fmt"
	"math"
	"testing"
	"time"
)

// inProgress returns a batch of one model whose lines have 100 bytes each.
func inProgress(id string, window time.Duration, lines, completed int, input, output int64) EstimateInput {
	r := New(id, Params{}, window, "", "", start)
	r.Load = []ModelInput{{"llama", lines, int64(lines) * 100}}
	_, _ = r.ClaimValidation("w", everybody)
	_ = r.Start("w", Input{Chunks: []Chunk{{Lines: lines, Bytes: int64(lines) * 100}}, Load: r.Load}, start)
	_ = r.Claim(0, "w", everybody)
	_ = r.Report(0, "w", Progress{Completed: completed, Usage: Usage{InputTokens: input, OutputTokens: output}})
	return EstimateInput{Record: r}
}

func perSecond(o EstimateInput, rate float64) EstimateInput { o.RequestsPerSecond = &rate; return o }

func freePrice(string) (TokenPrice, bool) { return TokenPrice{}, false }

// describe writes what is known of an estimate, with its end relative to start.
func describe(e Estimate) string {
	text := fmt.Sprint(e.Requests)
	if e.InputTokens != nil {
		text += fmt.Sprintf(" in=%d out=%d", *e.InputTokens, *e.OutputTokens)
	}
	if e.CostUSD != nil {
		text += fmt.Sprintf(" usd=%.4f", *e.CostUSD)
	}
	if e.FinishAt != nil {
		text += " end=" + e.FinishAt.Sub(start).String()
	}
	if e.Late {
		text += " late"
	}
	return text
}

func TestExpect(t *testing.T) {
	half := inProgress("batch_a", time.Hour, 100, 50, 1000, 500) // 20 + 10 tokens per request
	fresh := inProgress("batch_b", 2*time.Hour, 200, 0, 0, 0)
	short := inProgress("batch_c", time.Minute, 100, 50, 1000, 500)
	waiting := inProgress("batch_d", 2*time.Hour, 100, 0, 0, 0)
	wait := NewWait("quota of key bob (1 request per day)", start.Add(90*time.Minute))
	_ = waiting.Report(0, "w", Progress{Wait: &wait})
	ended := &PastBatches{}
	done := inProgress("batch_z", time.Hour, 100, 100, 4000, 1000).Record
	done.Advance(start.Add(100 * time.Second))
	_, _ = done.ClaimFinish("w", everybody)
	_ = done.Finish("w", "", "", Counts{100, 100, 0}, Usage{InputTokens: 4000, OutputTokens: 1000}, start.Add(time.Hour))
	ended.Observe(&done)
	for name, c := range map[string]struct {
		open  []EstimateInput
		ended *PastBatches
		price func(string) (TokenPrice, bool)
		want  []string
	}{
		"nothing is measured":                       {[]EstimateInput{fresh}, &PastBatches{}, freePrice, []string{"200"}},
		"its own ratios, no rate":                   {[]EstimateInput{half}, &PastBatches{}, freePrice, []string{"100 in=2000 out=1000"}},
		"its own rate":                              {[]EstimateInput{perSecond(half, 5)}, &PastBatches{}, freePrice, []string{"100 in=2000 out=1000 end=10s"}},
		"those with earlier deadlines are first":    {[]EstimateInput{fresh, perSecond(half, 5)}, &PastBatches{}, freePrice, []string{"200 in=4000 out=2000 end=50s", "100 in=2000 out=1000 end=10s"}},
		"one that stands still never ends":          {[]EstimateInput{perSecond(half, 0)}, &PastBatches{}, freePrice, []string{"100 in=2000 out=1000"}},
		"the batch that ended last, 50 tokens/s":    {[]EstimateInput{fresh}, ended, freePrice, []string{"200 in=8000 out=2000 end=3m20s"}},
		"a batch that does not end in time is late": {[]EstimateInput{perSecond(short, 0.5)}, &PastBatches{}, freePrice, []string{"100 in=2000 out=1000 end=1m40s late"}},
		"one that waits for a quota goes on afterwards": {
			[]EstimateInput{waiting, perSecond(half, 0)}, ended, freePrice, []string{"100 in=2000 out=1000 end=1h31m30s", "100 in=2000 out=1000 end=30s"},
		},
		"prices": {[]EstimateInput{half}, &PastBatches{}, func(model string) (TokenPrice, bool) { return TokenPrice{1e-6, 2e-6}, model == "llama" }, []string{"100 in=2000 out=1000 usd=0.0040"}},
	} {
		t.Run(name, func(t *testing.T) {
			for i, e := range EstimateBatches(c.open, c.ended, start, c.price) {
				if got := describe(e); got != c.want[i] {
					t.Errorf("batch %d: %q, want %q", i, got, c.want[i])
				}
			}
		})
	}
}

// An estimate survives its header; unknown values are absent, and a cost is never zero.
func TestEstimateHeader(t *testing.T) {
	in, out, usd, at := int64(60), int64(9), 0.00001, time.Unix(1790000000, 0)
	for _, c := range []struct {
		e    Estimate
		want string
	}{
		{Estimate{}, ""},
		{Estimate{Requests: 3}, "requests=3"},
		{Estimate{3, &in, &out, &usd, &at, true}, "requests=3, input_tokens=60, output_tokens=9, cost_usd=0.001, finish_at=1790000000, late"},
	} {
		text := c.e.Header()
		if text != c.want {
			t.Errorf("%q, want %q", text, c.want)
		}
		if back, err := ParseEstimate(text); err != nil || back.Header() != text {
			t.Errorf("%q is read as %q, %v", text, back.Header(), err)
		}
	}
	if _, err := ParseEstimate("requests=many"); err == nil {
		t.Error("no error for a value that is no number")
	}
}

func TestRate(t *testing.T) {
	var m RateMeter
	for at := range 200 {
		m.Observe(start.Add(time.Duration(at)*time.Second), 2*at)
		rate := m.PerSecond(start.Add(time.Duration(at)*time.Second), 2*at)
		if (rate == nil) != (at < 5) || rate != nil && math.Abs(*rate-2) > 1e-9 {
			t.Fatalf("after %d s: %v", at, rate)
		}
	}
	if rate := m.PerSecond(start.Add(400*time.Second), 398); *rate > 0.1 {
		t.Errorf("the rate of a batch that stands still: %g", *rate)
	}
}

// The backlog is what has no result yet, at 4 bytes per token until a request is completed.
func TestBacklog(t *testing.T) {
	half, fresh := inProgress("batch_a", time.Hour, 100, 50, 1000, 500), inProgress("batch_b", time.Hour, 200, 0, 0, 0)
	fresh.Load = []ModelInput{{"a", 50, 5000}, {"b", 150, 15000}}
	got := fmt.Sprint(BacklogOf([]EstimateInput{half, fresh}, &PastBatches{}))
	if want := "[[{llama 1000}] [{a 1250} {b 3750}]]"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

func FuzzParseEstimate(f *testing.F) {
	f.Add("requests=3, cost_usd=0.5, late")
	f.Fuzz(func(t *testing.T, text string) {
		if e, err := ParseEstimate(text); err == nil && e.CostUSD != nil && math.IsNaN(*e.CostUSD) {
			t.Errorf("%q has the cost %v", text, *e.CostUSD)
		}
	})
}

// Lines that are written in any parts are counted as the reader counts them.
func FuzzLineCounter(f *testing.F) {
	f.Add([]byte("a\n\n b\r\n\r\nc"), 2)
	f.Fuzz(func(t *testing.T, text []byte, at int) {
		at = min(max(at, 0), len(text))
		var c LineCounter
		_, _ = c.Write(text[:at])
		_, _ = c.Write(text[at:])
		want := 0
		for line := range bytes.Lines(text) {
			if len(bytes.TrimSpace(line)) > 0 {
				want++
			}
		}
		if c.Lines() != want {
			t.Errorf("%q: %d lines, want %d", text, c.Lines(), want)
		}
	})
}
