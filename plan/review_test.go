package plan

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"skyserve/forecast"
	"skyserve/internal/service"
	"skyserve/internal/telemetry"
	measured "skyserve/internal/telemetry/demand"
	"skyserve/internal/telemetry/demand/demandtest"
)

const reviewYAML = demandtest.Service

// reviewAt is the time at which the histories below end.
var reviewAt = demandtest.Now

func reviewed(t *testing.T, yaml string, counts []ReplicaCount, h *forecast.History, o ReviewOptions) Proposal {
	t.Helper()
	r, err := Review(demandtest.Parse(t, yaml), counts, h, reviewAt, o)
	if err != nil {
		t.Fatal(err)
	}
	return r.Proposal
}

// brief is a proposal's changes as region now+delta.
func brief(p Proposal) string {
	var out []string
	for _, c := range p.Changes {
		out = append(out, fmt.Sprintf("%s %d%+d", c.Region, c.Current, c.Delta))
	}
	return string(p.Status) + ": " + strings.Join(out, ", ")
}

func standing(us, eu int) []ReplicaCount {
	return []ReplicaCount{
		{Model: "meta-llama/Llama-3.1-8B-Instruct", Region: "local/us", GPU: "L4", Replicas: us},
		{Model: "meta-llama/Llama-3.1-8B-Instruct", Region: "local/eu", GPU: "L4", Replicas: eu},
	}
}

func TestReviewFollowsLoad(t *testing.T) {
	for name, c := range map[string]struct {
		us, eu, hit float64
		counts      []ReplicaCount
		want        string
	}{
		// 6000 tps: 4 replicas altogether, 4200 of them by us itself: 3.
		"one busy region":  {6000, 0, 0, standing(1, 1), "optimal: local/us 1+2, local/eu 1+0"},
		"caches spare it":  {6000, 0, 0.5, standing(1, 1), "optimal: local/us 1+1, local/eu 1+0"},
		"both busy":        {6000, 3000, 0, standing(4, 4), "optimal: local/us 4+0, local/eu 4-2"},
		"idle":             {1, 1, 0, standing(3, 2), "optimal: local/us 3-2, local/eu 2-1"},
		"beyond the bound": {30000, 0, 0, standing(1, 1), "infeasible: "},
	} {
		t.Run(name, func(t *testing.T) {
			p := reviewed(t, reviewYAML, c.counts, demandtest.Constant(t, 300, c.us, c.eu, c.hit), ReviewOptions{})
			if got := brief(p); got != c.want {
				t.Fatalf("%s, want %s", got, c.want)
			}
			if c.want != "infeasible: " && (*p.CostPerHour.Current != 0 || *p.TotalCostUSD <= 0) {
				t.Errorf("local replicas are planned with at a price and billed at none: %v, %v", *p.CostPerHour.Current, *p.TotalCostUSD)
			}
		})
	}
}

// A noisy load is planned for by the peak of the hour; a higher level gives a higher peak.
func TestReviewPlansForThePeak(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	var points []telemetry.Point
	top, sum := 0.0, 0.0
	for m := reviewAt.Unix()/60 - 1500; m < reviewAt.Unix()/60; m++ {
		tps := 2000 + 1500*rng.Float64()
		top, sum = max(top, tps), sum+tps
		points = append(points, telemetry.Point{
			Minute: m, Balancer: "lb-us", Region: "local/us", Model: "meta-llama/Llama-3.1-8B-Instruct", Tier: service.TierFast, PromptTokens: int64(60 * tps),
		})
	}
	h, err := measured.Traffic(points)
	if err != nil {
		t.Fatal(err)
	}
	before := sum / 1500 // the mean
	for _, level := range forecast.PeakQuantiles[:4] {
		p := reviewed(t, reviewYAML, standing(1, 1), h, ReviewOptions{PeakQuantile: level})
		peak := 0.0
		for _, c := range p.Changes {
			peak = max(peak, c.PlannedPeakTPS)
		}
		if peak < before*0.999 || peak > 1.2*top {
			t.Errorf("%s: %.0f tokens/s after %.0f at the level before; the mean is %.0f, the highest ever %.0f", level, peak, before, sum/1500, top)
		}
		if !slices.ContainsFunc(p.Assumed, func(a string) bool { return strings.Contains(a, "planned for the "+level+" peak") }) {
			t.Errorf("%s: assumed %q", level, p.Assumed)
		}
		before = peak
	}
}

// The first minute of a service counts while it is running, so that a plan right after the first
// load sees it.
func TestReviewExtrapolatesTheRunningMinute(t *testing.T) {
	minute := reviewAt.Add(-time.Minute) // the last one that past fills
	for name, c := range map[string]struct {
		minutes int
		passed  time.Duration
		peak    float64
		says    string
	}{
		"too early to tell":  {1, 10 * time.Second, 0, "no history yet"},
		"most of it":         {1, 40 * time.Second, 4500, "the current minute is extrapolated from its first 40 seconds"},
		"history is long":    {30, 40 * time.Second, 3000, "minutes of history"},
		"exactly at its end": {1, time.Minute, 3000, "1 minute of history"},
	} {
		r, err := Review(demandtest.Parse(t, reviewYAML), standing(1, 1), demandtest.Constant(t, c.minutes, 3000, 0, 0), minute.Add(c.passed), ReviewOptions{})
		if err != nil {
			t.Fatal(err)
		}
		p := r.Proposal
		got := 0.0
		for _, ch := range p.Changes {
			if ch.Region == "local/us" {
				got = ch.PlannedPeakTPS
			}
		}
		if math.Abs(got-c.peak) > 1 || !strings.Contains(strings.Join(p.Assumed, "\n"), c.says) {
			t.Errorf("%s: peak %v, want %v; assumed %q, want %q in it", name, got, c.peak, p.Assumed, c.says)
		}
	}
}

// The assumption about prefix hits names the history that it comes from: less than a day, or the running minute.
func TestHitRateNamesItsPeriod(t *testing.T) {
	for want, c := range map[string]struct {
		minutes int
		after   time.Duration // the time of the review, after the end of the history
	}{
		"50 %, as in the last day":                    {2000, 0},
		"50 %, as in the 119 minutes of history used": {119, 0},
		"50 %, as in the 1 minute of history used":    {2, 0},
		"50 %, as in the 21 seconds of history used":  {2, 21*time.Second - time.Minute},
		"50 %, as in the 81 seconds of history used":  {3, 21*time.Second - time.Minute},
	} {
		r, err := Review(demandtest.Parse(t, reviewYAML), standing(1, 1), demandtest.Constant(t, c.minutes, 100, 100, 0.5), reviewAt.Add(c.after), ReviewOptions{Forecaster: "moving-average"})
		if err != nil {
			t.Fatal(err)
		}
		if !slices.ContainsFunc(r.Proposal.Assumed, func(a string) bool { return strings.HasSuffix(a, "prefix hit rate of "+want) }) {
			t.Errorf("want %s in %q", want, r.Proposal.Assumed)
		}
	}
}

// A service starts within the first minute of its history, so that its balancers count only a part of that minute's
// load. Such a minute does not lower a plan from the few minutes after it.
func TestReviewOmitsFirstMinute(t *testing.T) {
	for name, c := range map[string]struct {
		minutes int
		passed  time.Duration // in the minute after the history
		peak    float64
		only    bool
	}{
		"nothing else is known":         {1, 0, 500, true},
		"the second minute is running":  {2, 20*time.Second - time.Minute, 3000, false},
		"the second minute has ended":   {2, 0, 3000, false},
		"ten minutes":                   {10, 0, 3000, false},
		"an hour: it matters no longer": {60, 0, 3000, false},
	} {
		h := demandtest.Constant(t, c.minutes, 3000, 0, 0)
		for i := range h.Series {
			h.Series[i].Values[0] /= 6
			if c.passed < 0 {
				h.Series[i].Values[c.minutes-1] /= 3
			}
		}
		r, err := Review(demandtest.Parse(t, reviewYAML), standing(1, 1), h, reviewAt.Add(c.passed), ReviewOptions{Forecaster: "moving-average"})
		if err != nil {
			t.Fatal(err)
		}
		got := 0.0
		for _, ch := range r.Proposal.Changes {
			if ch.Region == "local/us" {
				got = ch.PlannedPeakTPS
			}
		}
		if math.Abs(got-c.peak) > 0.02*c.peak || r.FirstMinuteOnly() != c.only {
			t.Errorf("%s: peak %v, want %v; first minute only: %v, want %v", name, got, c.peak, r.FirstMinuteOnly(), c.only)
		}
	}
}

// The first interactive load of a model in a region is new once its minute is over, unless the review knew that minute.
// Balancers report minutes without load too.
func TestNewLoadIsFirstLoadOfRegion(t *testing.T) {
	minute := reviewAt.Unix() / 60
	point := func(at int64, region service.Region, tier service.Tier, tokens int64) telemetry.Point {
		return telemetry.Point{Minute: at, Balancer: "lb-0", Region: region, Model: "chat-small", Tier: tier, PromptTokens: tokens}
	}
	history := func(points ...telemetry.Point) *forecast.History {
		h, err := measured.Traffic(points)
		if err != nil {
			t.Fatal(err)
		}
		return h
	}
	us, eu := point(minute-20, "local/us", service.TierFast, 60), point(minute-20, "local/eu", service.TierFast, 60)
	idle := point(minute-20, "local/eu", service.TierFast, 0)
	for name, c := range map[string]struct {
		before *forecast.History // of the review
		point  telemetry.Point
		want   bool
	}{
		"another region":             {history(us), point(minute, "local/eu", service.TierFast, 60), true},
		"a region without load":      {history(us, idle), point(minute, "local/eu", service.TierFast, 60), true},
		"still without load":         {history(us), point(minute, "local/eu", service.TierFast, 0), false},
		"before the review, unknown": {history(us), point(minute-1, "local/eu", service.TierFast, 60), true},
		"known to the review":        {history(us, point(minute-1, "local/us", service.TierFast, 60)), point(minute-1, "local/eu", service.TierFast, 60), false},
		"load of long ago":           {history(us, eu), point(minute, "local/eu", service.TierFast, 60), false},
		"deferred":                   {history(us), point(minute, "local/eu", service.TierDeferred, 60), false},
		"the minute is running":      {history(us), point(minute+2, "local/eu", service.TierFast, 60), false},
		"not of the service":         {history(us), point(minute, "local/asia", service.TierFast, 60), false},
		"the first load at all":      {nil, point(minute, "local/us", service.TierFast, 60), true},
	} {
		r, err := Review(demandtest.Parse(t, reviewYAML), standing(1, 1), c.before, reviewAt, ReviewOptions{Forecaster: "moving-average"})
		if err != nil {
			t.Fatal(err)
		}
		if got := r.HasNewLoad(history(c.point), reviewAt.Add(2*time.Minute)); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

func TestReviewReportsUnmetConstraints(t *testing.T) {
	p := reviewed(t, reviewYAML, standing(1, 1), demandtest.Constant(t, 300, 30000, 0, 0), ReviewOptions{})
	all := strings.Join(p.Infeasible, "\n")
	if !strings.Contains(all, "local/us: 21000 uncached prompt tokens per second must be served locally, the maximum and capacity allow 12000") ||
		!strings.Contains(all, "local/us: replicas.max is 8; without such limits the cheapest plan has 19 replicas there") {
		t.Fatalf("%s", all)
	}
}

func TestReviewReportsAssumptions(t *testing.T) {
	for name, c := range map[string]struct {
		yaml   string
		counts []ReplicaCount
		h      *forecast.History
		want   []string
	}{
		"no history": {reviewYAML, standing(2, 2), nil, []string{
			"no history yet at 2027-01-15T08:00:00Z: no load, scale to min",
			"local regions are not billed; L4 is planned at $0.8048 per hour (g6.xlarge in us-east-1, on demand)",
		}},
		"seven minutes": {reviewYAML, nil, demandtest.Constant(t, 7, 100, 100, 0), []string{
			"local/us, local/eu: only 6 minutes of history: assuming its mean for the next hour",
			"no replica is running: all are counted as new",
			"meta-llama/Llama-3.1-8B-Instruct: no prefix hits in the 6 minutes of history used, assuming none",
		}},
		"unmeasured": {strings.Replace(reviewYAML, ", tps: 1500", "", 1), standing(1, 1), nil, []string{
			"meta-llama/Llama-3.1-8B-Instruct on L4 has no measured throughput (models[].gpus[].prompt_tokens_per_second): assuming 15000 uncached prompt tokens per second per replica, at 10x real time",
		}},
		"no gpu": {strings.Replace(reviewYAML, "    gpus: [{type: L4, count: 1, tps: 1500}]\n", "", 1), standing(1, 1), nil, []string{
			"meta-llama/Llama-3.1-8B-Instruct has no models[].gpus: assuming one L4 per replica",
		}},
		"strangers": {reviewYAML, []ReplicaCount{{Model: "other", Region: "local/us", Replicas: 2}, {Model: "chat-small", Region: "local/us", GPU: "A10", Replicas: 1}}, nil, []string{
			"the service has no other in local/us: 2 replicas ignored",
			"replicas of meta-llama/Llama-3.1-8B-Instruct in local/us run on A10: counted as L4",
		}},
	} {
		t.Run(name, func(t *testing.T) {
			p := reviewed(t, c.yaml, c.counts, c.h, ReviewOptions{})
			if p.Status != StatusOptimal {
				t.Fatalf("%s %v", p.Status, p.Infeasible)
			}
			for _, want := range c.want {
				if !strings.Contains("\n"+strings.Join(p.Assumed, "\n")+"\n", "\n"+want+"\n") {
					t.Errorf("%q is not in\n%s", want, strings.Join(p.Assumed, "\n"))
				}
			}
		})
	}
}

// pricedYAML has two clouds and two kinds of GPU.
const pricedYAML = `name: chat
models:
  - name: m
    gpus: [{type: L4, tps: 1000}, {type: H100, tps: 12000}]
regions:
  - name: aws/us-east-1
    replicas: {min: 1, max: 20}
  - name: gcp/europe-west4
    replicas: {min: 1, max: 20}
    capacity: [spot, on_demand]
`

// The on-demand price of a replica is listed by region, or its spot price where the cloud sells only that: one
// H100 at Google. The operator's own machines are not billed.
func TestPricesOfReplicas(t *testing.T) {
	for text, want := range map[string][]ReplicaPrice{
		pricedYAML: {
			{Region: "aws/us-east-1", GPU: "L4", USDPerHour: 0.8048},
			{Region: "aws/us-east-1", GPU: "H100", USDPerHour: 6.88},
			{Region: "gcp/europe-west4", GPU: "L4", USDPerHour: 0.7068},
			{Region: "gcp/europe-west4", GPU: "H100", USDPerHour: 4.3915},
		},
		reviewYAML: {},
	} {
		v, err := Review(demandtest.Parse(t, text), nil, nil, reviewAt, ReviewOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if got := v.Prices(); !slices.Equal(got, want) {
			t.Errorf("got %+v, want %+v", got, want)
		}
	}
}

// Clouds have different prices, and a region offers only the machines of its cloud.
func TestReviewPrices(t *testing.T) {
	text := strings.Replace(pricedYAML, "    capacity: [spot, on_demand]\n", "", 1)
	p := reviewed(t, text, []ReplicaCount{{Model: "m", Region: "gcp/europe-west4", GPU: "L4", Replicas: 2}}, nil, ReviewOptions{})
	now, then, start := 2*0.7068, 0.8048+0.7068, 0.8048/6
	if math.Abs(*p.CostPerHour.Current-now) > 1e-9 || math.Abs(*p.CostPerHour.Planned-then) > 1e-9 || math.Abs(*p.TotalCostUSD-then-start) > 1e-9 {
		t.Fatalf("now %g, then %g, objective %g", *p.CostPerHour.Current, *p.CostPerHour.Planned, *p.TotalCostUSD)
	}
	if got := brief(p); got != "optimal: aws/us-east-1 0+1, gcp/europe-west4 2-1" {
		t.Fatal(got)
	}
}

// A load that deviates from its forecast in the last minutes is reported.
func TestReviewReportsABurst(t *testing.T) {
	end := reviewAt.Unix() / 60
	var points []telemetry.Point
	for m := end - 300; m < end; m++ {
		tps := 1000 + 100*(m%3)
		if m >= end-8 {
			tps *= 4
		}
		points = append(points, telemetry.Point{Minute: m, Region: "local/us", Model: "chat-small", Tier: service.TierNormal, PromptTokens: 60 * tps})
	}
	h, err := measured.Traffic(points)
	if err != nil {
		t.Fatal(err)
	}
	p := reviewed(t, reviewYAML, standing(1, 1), h, ReviewOptions{})
	if all := strings.Join(p.Assumed, "\n"); !strings.Contains(all, "local/us: load deviates from the forecast: 4.") || !strings.Contains(all, "for 8m (burst)") {
		t.Fatal(all)
	}
}

// Batch load counts for a tenth, and load without a region is split evenly.
func TestReviewTiersAndRegions(t *testing.T) {
	end := reviewAt.Unix() / 60
	var points []telemetry.Point
	for m := end - 120; m < end; m++ {
		points = append(points,
			telemetry.Point{Minute: m, Region: service.AnyRegion, Model: "chat-small", Tier: telemetry.TierInteractive, PromptTokens: 60 * 2000},
			telemetry.Point{Minute: m, Region: service.AnyRegion, Model: "chat-small", Tier: service.TierDeferred, PromptTokens: 60 * 20000},
			telemetry.Point{Minute: m, Region: "us", Model: "chat-small", Tier: service.TierNormal, PromptTokens: 60 * 500})
	}
	h, err := measured.Traffic(points)
	if err != nil {
		t.Fatal(err)
	}
	r, err := Review(demandtest.Parse(t, reviewYAML), standing(1, 1), h, reviewAt, ReviewOptions{Horizon: 30 * time.Minute, Forecaster: "moving-average"})
	if err != nil {
		t.Fatal(err)
	}
	rho := r.Problem.LoadTPS[0]
	if len(rho[0]) != 30 || math.Abs(rho[0][0]-(1000+1000+500)) > 1e-6 || math.Abs(rho[1][29]-(1000+1000)) > 1e-6 {
		t.Fatalf("us %g, eu %g", rho[0][0], rho[1][29])
	}
	all := strings.Join(r.Proposal.Assumed, "\n")
	if !strings.Contains(all, "split evenly over 2") || !strings.Contains(all, "the planned load includes 10 % of the batch load of the last hour") {
		t.Fatal(all)
	}
}

// In a service with many models and regions, the weights of each forecast would hide the other assumptions.
func TestReviewSummarizesCombinedForecasts(t *testing.T) {
	spec, h := demandtest.Parse(t, reviewYAML), days(t, 2, same)
	few, err := Review(spec, nil, h, reviewAt, ReviewOptions{Forecaster: "auto"})
	if err != nil {
		t.Fatal(err)
	}
	if all := strings.Join(few.Proposal.Assumed, "\n"); !strings.Contains(all, "combined by past errors: ") {
		t.Errorf("two forecasts, without their weights:\n%s", all)
	}
	spec.Models = append(spec.Models, spec.Models[0])
	spec.Models[1].Name, spec.Models[1].Aliases = "other", nil
	for _, s := range slices.Clone(h.Series) {
		s.Model = "other"
		h.Series = append(h.Series, s)
	}
	many, err := Review(spec, nil, h, reviewAt, ReviewOptions{Forecaster: "auto"})
	if err != nil {
		t.Fatal(err)
	}
	all := strings.Join(many.Proposal.Assumed, "\n")
	if strings.Contains(all, "combined by past errors: ") || strings.Count(all, "4 of 4 forecasts are combined by past errors") != 1 {
		t.Errorf("four forecasts, with their weights:\n%s", all)
	}
}

// A trace of requests has no models. It is the load of a service's only model; with several models it is ignored.
func TestReviewOfHistoryWithoutModels(t *testing.T) {
	end := reviewAt.Unix() / 60
	var points []telemetry.Point
	for m := end - 120; m < end; m++ {
		points = append(points, telemetry.Point{Minute: m, Region: service.AnyRegion, Model: service.AnyModel, Tier: service.TierFast, PromptTokens: 60 * 2000, CachedTokens: 60 * 500})
	}
	h, err := measured.Traffic(points)
	if err != nil {
		t.Fatal(err)
	}
	spec := demandtest.Parse(t, reviewYAML)
	r, err := Review(spec, standing(1, 1), h, reviewAt, ReviewOptions{Forecaster: "moving-average"})
	if err != nil {
		t.Fatal(err)
	}
	if got := r.Problem.LoadTPS[0][0][0]; math.Abs(got-750) > 1e-6 {
		t.Errorf("load of %g tokens per second, want half of 1500", got)
	}
	if all := strings.Join(r.Proposal.Assumed, "\n"); !strings.Contains(all, "the history has no models: its load is that of meta-llama/Llama-3.1-8B-Instruct") {
		t.Error(all)
	}
	spec.Models = append(spec.Models, spec.Models[0])
	spec.Models[1].Name, spec.Models[1].Aliases = "other", nil
	if _, err := CheckHistory(spec, h); err == nil || !strings.Contains(err.Error(), "the history has no models, and the service has 2") {
		t.Errorf("two models: %v", err)
	}
}

// A history without load of the service would scale it to its minimum. Of one with other load too, the share is a warning.
func TestHistoryOfOtherServiceIsRejected(t *testing.T) {
	const halfIgnored = "50.0 % of its prompt tokens are ignored: the service has no model other"
	spec := demandtest.Parse(t, reviewYAML)
	history := func(region service.Region, model string) *forecast.History {
		h, err := measured.Traffic([]telemetry.Point{
			{Minute: 30000000, Region: region, Model: model, Tier: service.TierFast, PromptTokens: 60},
			{Minute: 30000000, Region: "mars", Model: "other", Tier: service.TierFast, PromptTokens: 60},
		})
		if err != nil {
			t.Fatal(err)
		}
		return h
	}
	for name, c := range map[string]struct {
		h    *forecast.History
		want string
	}{
		"rows":         {history("local/us", "chat-small"), halfIgnored},
		"short region": {history("us", "chat-small"), halfIgnored},
		"no regions":   {history(service.AnyRegion, "chat-small"), halfIgnored},
		"empty":        {&forecast.History{}, "the history is empty"},
		"model":        {history("local/us", "gpt"), "no load of the service: the service has no model gpt, the service has no model other"},
		"region":       {history("venus", "chat-small"), "no load of the service: the service has no region venus, the service has no model other"},
	} {
		warning, err := CheckHistory(spec, c.h)
		if (err == nil) != (c.want == halfIgnored) || err != nil && !strings.Contains(err.Error(), c.want) || err == nil && warning != c.want {
			t.Errorf("%s: %q, %v, want %q", name, warning, err, c.want)
		}
	}
}

func TestReviewRejectsBadOptions(t *testing.T) {
	spec := demandtest.Parse(t, reviewYAML)
	old := demandtest.Constant(t, 10, 1, 1, 0)
	for name, c := range map[string]struct {
		at   time.Time
		o    ReviewOptions
		want string
	}{
		"horizon":    {reviewAt, ReviewOptions{Horizon: time.Second}, "horizon: must be 1m to 168h, got 1s"},
		"forecaster": {reviewAt, ReviewOptions{Forecaster: "oracle"}, `unknown forecaster "oracle"`},
		"peak":       {reviewAt, ReviewOptions{PeakQuantile: "p42"}, `peak quantile: must be one of p50, p90, p95, p99, expected, got "p42"`},
		"stale":      {reviewAt.Add(40 * 24 * time.Hour), ReviewOptions{}, "the history ends 40 days before"},
		"short":      {reviewAt, ReviewOptions{Forecaster: "seasonal-naive"}, "requires 1 day of history, got 9 minutes"},
	} {
		if _, err := Review(spec, nil, old, c.at, c.o); err == nil || !strings.Contains(err.Error(), c.want) || !strings.HasPrefix(err.Error(), "planning chat: ") {
			t.Errorf("%s: got %v, want %q in it", name, err, c.want)
		}
	}
}

// Donated replicas are reclaimed before anything new is started.
func TestReviewReportsDonationEarnings(t *testing.T) {
	counts := standing(1, 1)
	counts[0].Donated = 2
	yaml := strings.Replace(reviewYAML, "donate: true", "donate: true, donate_price: 0.3", 1)
	p := reviewed(t, yaml, counts, demandtest.Constant(t, 300, 600, 0, 0), ReviewOptions{})
	if !slices.Contains(p.Assumed, "the cost does not include the revenue of 2 donated replicas, $0.60 per hour") {
		t.Errorf("got %q", p.Assumed)
	}
}

func TestReviewReclaims(t *testing.T) {
	counts := standing(1, 1)
	counts[0].Donated = 1
	p := reviewed(t, reviewYAML, counts, demandtest.Constant(t, 300, 6000, 0, 0), ReviewOptions{})
	if c := p.Changes[0]; c.Delta != 2 || c.Reclaim != 1 || !strings.Contains(c.Reason, "1 of them reclaimed") {
		t.Fatalf("%+v", c)
	}
	p = reviewed(t, reviewYAML, standing(4, 1), demandtest.Constant(t, 300, 1, 1, 0), ReviewOptions{})
	if c := p.Changes[0]; c.Delta != -3 || c.Donate != 3 {
		t.Fatalf("%+v", c)
	}
}

// The load of a region whose balancers find all replicas does not make a plan infeasible: nobody knows their capacity.
func TestReviewOmitsLoadOfDiscoveredReplicas(t *testing.T) {
	yaml := strings.Replace(reviewYAML, "local/us\n    replicas: {min: 1, max: 8}", "static/us\n    endpoints_file: engines.txt", 1)
	h := demandtest.Constant(t, 300, 3000, 3000, 0)
	for i := range h.Series {
		if h.Series[i].Region == "local/us" {
			h.Series[i].Region = "static/us"
		}
	}
	p := reviewed(t, yaml, standing(0, 1)[1:], h, ReviewOptions{})
	if got, want := brief(p), "optimal: local/eu 1+1"; got != want || !strings.Contains(strings.Join(p.Assumed, "\n"), "in static/us: balancers find the replicas") {
		t.Errorf("%s, want %s; assumed %q", got, want, p.Assumed)
	}
}

// The plan says what happens to excess replicas: machines of static regions are donated, rented ones are removed, and
// local ones follow autoscale.donate.
func TestReviewSaysWhatHappensToExcessReplicas(t *testing.T) {
	for _, tt := range []struct {
		region  string
		donate  bool
		donated bool
	}{
		{"local/us", true, true},
		{"local/us", false, false},
		{"aws/us-east-1", true, false},
		{"aws/us-east-1", false, false},
		{"gcp/us-east1", true, false},
		{"static/us", true, true},
		{"static/us", false, true},
	} {
		region, yaml := service.Region(tt.region), strings.Replace(reviewYAML, "donate: true", fmt.Sprintf("donate: %v", tt.donate), 1)
		if region.Cloud() == service.CloudStatic {
			yaml = strings.Replace(yaml, "local/us\n", tt.region+"\n    endpoints: ["+strings.Repeat(`"http://10.0.0.1:8000", `, 8)+"]\n", 1)
			for n := range 8 {
				yaml = strings.Replace(yaml, "10.0.0.1:8000", fmt.Sprintf("10.0.0.%d:8000", n+2), 1)
			}
		}
		spec := demandtest.Parse(t, yaml)
		spec.Regions[0].Name = region
		h := demandtest.Constant(t, 300, 1, 1, 0)
		for i := range h.Series {
			if h.Series[i].Region == "local/us" {
				h.Series[i].Region = region
			}
		}
		counts := standing(4, 1)
		counts[0].Region = region
		r, err := Review(spec, counts, h, reviewAt, ReviewOptions{})
		if err != nil {
			t.Fatal(tt.region, err)
		}
		if len(r.Proposal.Changes) == 0 {
			t.Fatalf("%s: %+v", tt.region, r.Proposal)
		}
		c := r.Proposal.Changes[0]
		verb, n := "remove 3,", 0
		if tt.donated {
			verb, n = "donate 3,", 3
		}
		if c.Delta != -3 || c.Donate != n || !strings.Contains(c.Reason, verb) {
			t.Errorf("%s, autoscale.donate %v: donates %d: %s", tt.region, tt.donate, c.Donate, c.Reason)
		}
	}
}

// The cost of egress is weighed against replicas where the load is.
func TestReviewIncludesEgressCost(t *testing.T) {
	expensive := strings.ReplaceAll(reviewYAML, "replicas: {min: 1, max: 8}", "replicas: {min: 1, max: 8}\n    egress_per_gb: 100")
	h := demandtest.Constant(t, 120, 7000, 100, 0) // eu has free capacity for 1400 tokens/s of us
	near, err := Review(demandtest.Parse(t, expensive), nil, h, reviewAt, ReviewOptions{LocalShare: 0.1})
	if err != nil {
		t.Fatal(err)
	}
	far, err := Review(demandtest.Parse(t, reviewYAML), nil, h, reviewAt, ReviewOptions{LocalShare: 0.1})
	if err != nil {
		t.Fatal(err)
	}
	if far.Problem.Egress != nil {
		t.Errorf("no price is stated: got %v", far.Problem.Egress)
	}
	if got := near.Problem.Egress; len(got) != 2 || math.Abs(got[0]-0.4) > 1e-12 {
		t.Fatalf("a million tokens of 4 bytes at $100 a GB: got %v", got)
	}
	sent := func(p Proposal) (sum float64) {
		for _, c := range p.Changes {
			sum += c.ForwardedTPS
		}
		return sum
	}
	if expensive, free := sent(near.Proposal), sent(far.Proposal); expensive != 0 || free != 1000 {
		t.Errorf("%g tokens per second are sent where egress has a price, %g where it is free", expensive, free)
	}
	if !slices.ContainsFunc(near.Proposal.Assumed, func(s string) bool { return strings.Contains(s, "local/us: egress at $100 per GB") }) {
		t.Errorf("got %q", near.Proposal.Assumed)
	}
	const omitted = "the cost of egress is that of forwarded prompts: responses, which leave the region that serves them, are not counted"
	if !slices.Contains(near.Proposal.Assumed, omitted) {
		t.Errorf("with an egress price: assumed %q", near.Proposal.Assumed)
	}
}
