package demand

import (
	"fmt"
	"math"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"skyserve/internal/service"
	"skyserve/internal/telemetry"
)

func pt(minute int64, balancer, region, model string, tier service.Tier, prompt, cached int64) telemetry.Point {
	return telemetry.Point{
		Minute: minute, Balancer: balancer, Region: service.Region(region), Model: model, Tier: tier,
		PromptTokens: prompt, CachedTokens: cached, Requests: 1,
	}
}

// A minute without requests in a reported region is zero; a minute that no balancer reported is unknown.
func TestHistoryGaps(t *testing.T) {
	h, err := Traffic([]telemetry.Point{
		pt(100, "us-0", "us", "m", "IW-F", 10, 4),
		pt(100, "us-1", "us", "m", "IW-F", 20, 2),
		pt(101, "us-0", "us", "n", "IW-F", 1, 0),
		pt(103, "us-0", "us", "m", "IW-F", 7, 0),
		pt(103, "eu-0", "eu", "m", "IW-F", 9, 9),
		pt(100, "us-0", "us", "m", "IW-F", 11, 5), // again: the later one counts
	})
	if err != nil {
		t.Fatal(err)
	}
	var got strings.Builder
	for _, s := range h.Series {
		fmt.Fprintf(&got, "%s %v\n", s.SeriesKey, s.Values)
	}
	want := "eu m fast [NaN NaN NaN 9]\nus m fast [31 0 NaN 7]\nus n fast [0 1 NaN 0]\n"
	if got.String() != want || h.First != 100 || h.Minutes != 4 {
		t.Fatalf("from %d, %d minutes:\n%swant\n%s", h.First, h.Minutes, &got, want)
	}
	notes := strings.Join(h.Report.Notes(), "\n")
	if want := "1 duplicate sample (first: us m fast at 1970-01-01T01:40:00Z): the last one is used\n2 gaps (first: us m fast at 1970-01-01T01:42:00Z): 2 minutes in total are unknown"; notes != want {
		t.Errorf("notes\n%s\nwant\n%s", notes, want)
	}
	if rate, ok := h.HitRate("m", 60); !ok || math.Abs(rate-16.0/47) > 1e-12 {
		t.Fatalf("hit rate %v, %v", rate, ok)
	}
	if rate, ok := h.HitRate("m", 1); !ok || rate != 9.0/16 {
		t.Fatalf("hit rate of the last minute %v, %v", rate, ok)
	}
	if _, ok := h.HitRate("nobody", 60); ok {
		t.Fatal("a hit rate out of nothing")
	}
}

func TestHistoryBefore(t *testing.T) {
	h, err := Traffic([]telemetry.Point{pt(10, "a", "us", "m", "NIW", 1, 0), pt(12, "a", "us", "m", "NIW", 3, 0)})
	if err != nil {
		t.Fatal(err)
	}
	for minute, want := range map[int64]int{0: 0, 10: 0, 11: 1, 12: 2, 13: 3, 99: 3} {
		b := h.Before(minute)
		if b.Minutes != want || len(b.Series[0].Values) != want {
			t.Errorf("before %d: %d minutes, want %d", minute, b.Minutes, want)
		}
	}
	if h.End() != 13 {
		t.Fatalf("end %d", h.End())
	}
}

func TestHistoryBegun(t *testing.T) {
	h, err := Traffic([]telemetry.Point{pt(10, "a", "us", "m", "NIW", 100, 0), pt(11, "a", "us", "m", "NIW", 30, 15)})
	if err != nil {
		t.Fatal(err)
	}
	b := h.IncludingRunningMinute(11, 0.5)
	if s := b.Series[0]; b.Minutes != 2 || s.Values[0] != 100 || s.Values[1] != 60 || s.Cached[1] != 30 {
		t.Errorf("the history before the middle of minute 11 has %+v", b.Series)
	}
	if h.Series[0].Values[1] != 30 {
		t.Error("the history itself changed")
	}
	if b := h.IncludingRunningMinute(12, 0.5); b.Minutes != 2 || b.Series[0].Values[1] != 30 {
		t.Errorf("minute 12 must be unknown, got %+v", b.Series)
	}
}

func TestHistoryRefuses(t *testing.T) {
	for name, points := range map[string][]telemetry.Point{
		"span":     {pt(0, "a", "us", "m", "NIW", 1, 0), pt(29_000_000, "a", "us", "m", "NIW", 1, 0)},
		"negative": {pt(0, "a", "us", "m", "NIW", -1, 0)},
		"before":   {pt(-5, "a", "us", "m", "NIW", 1, 0)},
	} {
		if _, err := Traffic(points); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	if h, err := Traffic(nil); err != nil || h.Minutes != 0 || len(h.Series) != 0 {
		t.Fatalf("no points: %+v, %v", h, err)
	}
}

// The order in which points arrive does not matter, and tokens are conserved.
func TestHistoryConserves(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(0, 40).Draw(t, "n")
		var points []telemetry.Point
		var total int64
		for i := range n {
			p := pt(rapid.Int64Range(0, 9).Draw(t, "minute"), fmt.Sprint("lb-", i),
				rapid.SampledFrom([]string{"us", "eu"}).Draw(t, "region"),
				rapid.SampledFrom([]string{"m", "n"}).Draw(t, "model"), "IW-F", rapid.Int64Range(0, 1000).Draw(t, "tokens"), 0)
			points, total = append(points, p), total+p.PromptTokens
		}
		a, err := Traffic(points)
		if err != nil {
			t.Fatal(err)
		}
		b, err := Traffic(rapid.Permutation(points).Draw(t, "order"))
		if err != nil || fmt.Sprint(a) != fmt.Sprint(b) {
			t.Fatalf("order matters: %v\n%v\n%v", err, a, b)
		}
		var sum float64
		for _, s := range a.Series {
			for _, v := range s.Values {
				if !math.IsNaN(v) {
					sum += v
				}
			}
		}
		if sum != float64(total) {
			t.Fatalf("%v tokens of %d", sum, total)
		}
	})
}
