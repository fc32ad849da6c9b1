package plan

import (
	"encoding/json"
	"math"
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

// days is a load with a daily cycle in two regions half a day apart.
func days(t *testing.T, n int, change func(minute int, tps float64) float64) *forecast.History {
	t.Helper()
	var points []telemetry.Point
	end := reviewAt.Unix() / 60
	for m := range n * 24 * 60 {
		for region, offset := range map[service.Region]float64{"local/us": 0, "local/eu": 12} {
			tps := 5000 + 4500*math.Cos((float64(m)/60-offset)*math.Pi/12)
			points = append(points, telemetry.Point{
				Minute: end - int64(n*24*60-m), Balancer: string(region), Region: region, Model: "chat-small", Tier: service.TierNormal, PromptTokens: int64(60 * change(m, tps)),
			})
		}
	}
	h, err := measured.Traffic(points)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func same(_ int, tps float64) float64 { return tps }

func backtested(t *testing.T, h *forecast.History, o BacktestOptions) *Backtest {
	t.Helper()
	if o.Review.Forecaster == "" {
		o.Review.Forecaster = "seasonal-naive"
	}
	b, err := NewBacktest(demandtest.Parse(t, reviewYAML), h, o)
	if err != nil {
		t.Fatal(err)
	}
	for n := range b.NumReviews() {
		if err := b.Forecast(n); err != nil {
			t.Fatal(err)
		}
	}
	out, err := b.Report()
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// Plans with a daily forecast serve a cyclic load with less than a fleet for the peaks. The actual
// counts are replayed the same way.
func TestBacktestFollowsPlans(t *testing.T) {
	h := days(t, 3, same)
	from := time.Unix(h.First*60, 0).Add(36 * time.Hour)
	b := backtested(t, h, BacktestOptions{From: from, ActualCounts: []ReplicaCountAt{{At: from.Add(-time.Hour), ReplicaCount: standing(7, 7)[0]}, {At: from.Add(-time.Hour), ReplicaCount: standing(7, 7)[1]}}})
	var names []string
	for _, f := range b.Rules {
		names = append(names, f.Name)
	}
	if !slices.Equal(names, []string{"predictive", "hourly", "constant", "threshold", "actual"}) || len(b.Reviews) != 36 || b.Every != "1h" {
		t.Fatalf("%v, %d reviews every %s", names, len(b.Reviews), b.Every)
	}
	planned, constant, actual := b.Rules[1], b.Rules[2], b.Rules[4]
	if planned.OverloadMinutes != 0 || planned.ReplicaHours > 0.7*constant.ReplicaHours || planned.ForwardedTokens == 0 || constant.MaxReplicas != 14 || math.Abs(actual.ReplicaHours-14*36) > 1e-6 {
		t.Errorf("%+v\n%+v\n%+v", planned, constant, actual)
	}
	if data, err := json.Marshal(b); err != nil || strings.Contains(string(data), "null") {
		t.Errorf("%s %v", data, err)
	}
	var table strings.Builder
	if err := b.WriteTable(&table); err != nil || !strings.Contains(table.String(), "\nactual ") || !strings.Contains(table.String(), "a plan every 1h with a horizon of 1h, forecast by seasonal-naive") {
		t.Errorf("%s %v", table.String(), err)
	}
}

// What a backtest ignores of its history and of the actual counts is part of its result: otherwise its rows would be read
// as those of the whole service.
func TestBacktestReportsIgnoredInputs(t *testing.T) {
	h := days(t, 3, same)
	h.Series = append(h.Series, h.Series[0])
	h.Series[len(h.Series)-1].Model = "other"
	from := time.Unix(h.First*60, 0)
	known, unknown := ReplicaCountAt{At: from, ReplicaCount: standing(7, 7)[0]}, ReplicaCountAt{At: from, ReplicaCount: standing(7, 7)[1]}
	known.Region, unknown.Region = "us", "mars"
	b := backtested(t, h, BacktestOptions{ActualCounts: []ReplicaCountAt{known, unknown}, Review: ReviewOptions{Notes: []string{"2 gaps"}}})
	all := strings.Join(b.Assumed, "\n")
	for _, want := range []string{"the service has no model other: its history is ignored", "the service has no meta-llama/Llama-3.1-8B-Instruct in mars: its actual counts are ignored", "2 gaps"} {
		if strings.Count(all, want) != 1 {
			t.Errorf("want once %q in\n%s", want, all)
		}
	}
	if actual := b.Rules[len(b.Rules)-1]; actual.Name != RuleActual || actual.MaxReplicas != 7 {
		t.Errorf("%+v, want the 7 replicas of us", actual)
	}
	for want, counts := range map[string]ReplicaCountAt{
		"actual counts: the service has no meta-llama/Llama-3.1-8B-Instruct in mars": unknown,
		"actual counts: must be known at the start of the backtest, ":                {At: from.Add(3 * 24 * time.Hour), ReplicaCount: known.ReplicaCount},
	} {
		if _, err := NewBacktest(demandtest.Parse(t, reviewYAML), h, BacktestOptions{ActualCounts: []ReplicaCountAt{counts}}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
}

// A plan uses no later load: another future does not change it.
func TestBacktestUsesNoFutureLoad(t *testing.T) {
	split := 40 * 60
	one := backtested(t, days(t, 2, same), BacktestOptions{})
	other := backtested(t, days(t, 2, func(m int, tps float64) float64 {
		if m >= split {
			return 3 * tps
		}
		return tps
	}), BacktestOptions{})
	at := time.Unix((reviewAt.Unix()/60-2*24*60+int64(split))*60, 0)
	seen := 0
	for n, step := range one.Reviews {
		if step.At.After(at) {
			break
		}
		seen++
		a, b := step, other.Reviews[n]
		a.PeakTPS, b.PeakTPS = nil, nil
		if a != b {
			t.Fatalf("%s: %+v, with another future %+v", step.At, a, b)
		}
	}
	if seen < 10 || one.Reviews[len(one.Reviews)-1] == other.Reviews[len(one.Reviews)-1] {
		t.Errorf("%d reviews seen, the last %+v", seen, one.Reviews[len(one.Reviews)-1])
	}
}

// Without a feasible plan the rule hourly keeps its counts, and the table reports it.
func TestBacktestWithoutFeasiblePlan(t *testing.T) {
	b := backtested(t, days(t, 2, func(_ int, tps float64) float64 { return 20 * tps }), BacktestOptions{})
	var table strings.Builder
	if err := b.WriteTable(&table); err != nil || !strings.Contains(table.String(), "No plan was found in 24 of 24 reviews: the rule hourly kept its counts (in the first review: those of constant).") {
		t.Errorf("%s %v", table.String(), err)
	}
}

func TestBacktestRejectsBadPeriods(t *testing.T) {
	h := days(t, 2, same)
	spec := demandtest.Parse(t, reviewYAML)
	first := time.Unix(h.First*60, 0)
	for want, o := range map[string]BacktestOptions{
		"backtesting chat: every: must be whole minutes, at least 1m, got 30s":                {Every: 30 * time.Second},
		"must be within the history (after 2027-01-13T08:00:00Z, until 2027-01-15T08:00:00Z)": {From: first},
		"and must not be empty":        {From: first.Add(9 * time.Hour), To: first.Add(8 * time.Hour)},
		"must have at most 2400 plans": {Every: time.Minute, From: first.Add(time.Hour)},
	} {
		if _, err := NewBacktest(spec, h, o); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %s", err, want)
		}
	}
	if _, err := NewBacktest(spec, &forecast.History{}, BacktestOptions{}); err == nil || err.Error() != "backtesting chat: history: must have at least 2 minutes, got 0; wait until it has more, or pass --history FILE" {
		t.Error(err)
	}
	b, err := NewBacktest(spec, h, BacktestOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.Report(); err == nil || err.Error() != "backtesting chat: some reviews have no forecast: call Forecast for each before Report" {
		t.Error(err)
	}
}

func TestReadCounts(t *testing.T) {
	got, err := ReadCounts("c.csv", strings.NewReader("at,model,region,gpu,replicas\n2027-01-15T09:00:00Z,m,local/us,L4,3\n2027-01-15T08:00:00Z,m,local/us,,2\n"))
	if err != nil || len(got) != 2 || got[0].Replicas != 2 || got[1].GPU != "L4" || got[1].At.Hour() != 9 {
		t.Errorf("%+v %v", got, err)
	}
	if got, err = ReadCounts("c.csv", strings.NewReader("\ufeffMinute, Model, Region, Replicas\n30000000,m,local/us,3\n")); err != nil || !got[0].At.Equal(reviewAt) {
		t.Errorf("%+v %v", got, err)
	}
	for text, want := range map[string]string{
		"":                                        "reading counts c.csv: is empty: must begin with a header such as minute,model,region,replicas",
		"model,region,replicas\n":                 "reading counts c.csv:1: must have a column minute or at, got model,region,replicas",
		"minute,model,region\n":                   "reading counts c.csv:1: must have a column replicas, got minute,model,region",
		"minute,model,region,replicas,model\n":    `reading counts c.csv:1: duplicate column "model": rename or remove one`,
		"minute,model,region,replicas\n":          "reading counts c.csv: has no row after its header",
		"minute,model,region,replicas\n1,m,r,x\n": `reading counts c.csv:2: replicas: must be a whole number from 0 to 1000000, got "x"`,
		"minute,model,region,replicas\n1,m,,1\n":  `reading counts c.csv:2: model and region: must not be empty, got "m" and ""`,
		"minute,model,region,replicas\nx,m,r,1\n": `reading counts c.csv:2: minute: must be minutes since 1970, got "x"`,
		"at,model,region,replicas\nnoon,m,r,1\n":  `reading counts c.csv:2: at: must be a time such as 2025-01-31T12:00:00Z, got "noon"`,
		"at,model,region,replicas\nnoon,m\n":      "reading counts c.csv:2: must have 4 fields like the header, got 2",
	} {
		if _, err := ReadCounts("c.csv", strings.NewReader(text)); err == nil || err.Error() != want {
			t.Errorf("%q: got %v, want %s", text, err, want)
		}
	}
}

// Regions with peaks at different times need less together; prices are those of the service's
// reservations where it has one.
func TestReserve(t *testing.T) {
	yaml := strings.NewReplacer("local/us", "aws/us-east-1", "local/eu", "aws/eu-west-1", "autoscale: {donate: true}", "    reserved: [{type: g6.xlarge, count: 2, price: 0.5}]").Replace(reviewYAML)
	h := days(t, 2, same)
	for at := range h.Series {
		h.Series[at].Region = map[service.Region]service.Region{"local/us": "aws/us-east-1", "local/eu": "aws/eu-west-1"}[h.Series[at].Region]
	}
	r, err := CompareReservations(demandtest.Parse(t, yaml), h, time.Time{}, time.Time{}, ReviewOptions{})
	if err != nil {
		t.Fatal(err)
	}
	own, global := r.Costs[0], r.Costs[1]
	if own.Reserved != 14 || global.Reserved != 10 || math.Abs(own.CostPerHour-7) > 1e-9 || r.BreakEven[0].ReservedPerHour != 0.5 {
		t.Errorf("%+v %+v", r.Costs, r.BreakEven)
	}
	if r, err = CompareReservations(demandtest.Parse(t, yaml), h, time.Time{}, time.Unix((h.First+30)*60, 0), ReviewOptions{}); err != nil || r.To.Sub(r.From) != 30*time.Minute {
		t.Errorf("%+v %v", r, err)
	}
	_, err = CompareReservations(demandtest.Parse(t, yaml), &forecast.History{}, time.Time{}, time.Time{}, ReviewOptions{})
	if err == nil || !strings.HasPrefix(err.Error(), "comparing reservations for chat: history: must have at least 5m between ") || !strings.HasSuffix(err.Error(), "; provide a longer history") {
		t.Error(err)
	}
}
