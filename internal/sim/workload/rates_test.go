package workload

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"skyserve/internal/testkit"
)

// rateTable is one client's table of n windows of 600 s.
func rateTable(n int, rate float64, dist string, p1, cv string) string {
	var b strings.Builder
	b.WriteString("model,client,t_s,rate_rps,cv,dist,p1,p2\n")
	for i := range n {
		fmt.Fprintf(&b, "m,0,%d,%g,%s,%s,%s,1\n", i*600, rate, cv, dist, p1)
	}
	return b.String()
}

// gapsOf returns the gaps between the rows' arrivals, in seconds.
func gapsOf(rows []TraceRow) []float64 {
	var gaps []float64
	for i := 1; i < len(rows); i++ {
		gaps = append(gaps, (rows[i].At - rows[i-1].At).Seconds())
	}
	return gaps
}

func variation(xs []float64) float64 {
	sum, squares := 0.0, 0.0
	for _, x := range xs {
		sum += x
		squares += x * x
	}
	n := float64(len(xs))
	m := sum / n
	return math.Sqrt(squares/n-m*m) / m
}

func TestArrivalRateAndBurstiness(t *testing.T) {
	testkit.Slow(t)
	for _, c := range []struct {
		dist, p1, cv string
		want         float64 // coefficient of variation
		tolerance    float64
	}{
		{"Poisson", "", "1", 1, 0.03},
		{"", "", "1", 1, 0.03},
		{"Gamma", "0.25", "9", 2, 0.05},
		{"Gamma", "", "0.5", 0.5, 0.03},
		{"Gamma", "4", "9", 0.5, 0.03},
		{"Weibull", "0.5", "9", math.Sqrt(5), 0.08},
		{"Weibull", "1", "9", 1, 0.03},
	} {
		rows := mustRows(t, rateTable(20, 5, c.dist, c.p1, c.cv), TraceOptions{Seed: 3})
		near(t, c.dist+" "+c.p1+" count", float64(len(rows)), 20*600*5, 0.05)
		near(t, c.dist+" "+c.p1+" variation", variation(gapsOf(rows)), c.want, c.tolerance)
		for i, r := range rows {
			if r.Number != i+1 || r.User != "m/0" || r.At < 0 || r.At > 12000*time.Second {
				t.Fatalf("row %d: %+v", i, r)
			}
		}
	}
}

// A bursty process must not exceed its rate at the start: over many short processes the mean count is
// the integral of the rate.
func TestBurstyArrivalsStartUnbiased(t *testing.T) {
	testkit.Slow(t)
	for _, dist := range []string{"Gamma", "Weibull"} {
		total := 0
		const runs = 20000
		for seed := range uint64(runs) {
			total += len(mustRows(t, rateTable(1, 0.01, dist, "0.3", "3"), TraceOptions{Seed: seed}))
		}
		near(t, dist+" mean count", float64(total)/runs, 6, 0.05)
	}
}

func TestClientsInterleaveInTime(t *testing.T) {
	table := "model,client,t_s,rate_rps,cv,dist,p1,p2\n" +
		"m,0,0,2,1,Gamma,1,1\nm,0,600,0,1,Gamma,1,1\nm,0,1200,2,1,Gamma,1,1\n" +
		"m,1,600,4,1,Gamma,1,1\n" +
		"m,2,1200,1,1,Gamma,1,1\nm,2,0,1,1,Gamma,1,1\n" // out of order within the client
	rows := mustRows(t, table, TraceOptions{Seed: 1})
	if !slices.IsSortedFunc(rows, func(a, b TraceRow) int { return int(a.At - b.At) }) {
		t.Fatal("arrivals are not in order of time")
	}
	count := map[string]int{}
	for _, r := range rows {
		count[fmt.Sprintf("%s@%d", r.User, int(r.At/(600*time.Second)))]++
	}
	for key, want := range map[string]float64{"m/0@0": 1200, "m/0@2": 1200, "m/1@1": 2400, "m/2@0": 600, "m/2@2": 600} {
		near(t, key, float64(count[key]), want, 0.15)
	}
	if count["m/0@1"]+count["m/1@0"]+count["m/1@2"]+count["m/2@1"] != 0 {
		t.Errorf("arrivals outside the windows: %v", count)
	}
	part := mustRows(t, table, TraceOptions{Seed: 1, From: 600 * time.Second, To: 1200 * time.Second})
	for _, r := range part {
		if r.User != "m/1" || r.At > 600*time.Second {
			t.Fatalf("a part of the trace has %+v", r)
		}
	}
	near(t, "part", float64(len(part)), 2400, 0.15)
}

func TestTotalRatesArePoisson(t *testing.T) {
	table := "model,t_s,total_rps,active_clients\nbig,0,10,43\nbig,600,30,40\n"
	tr := openText(t, table, TraceOptions{Seed: 2})
	rows, err := rowsOf(tr, math.MaxInt)
	if err != nil || tr.Format() != "servegen-total" {
		t.Fatalf("format %s, error %v", tr.Format(), err)
	}
	near(t, "count", float64(len(rows)), 24000, 0.03)
	if rows[0].User != "big" {
		t.Errorf("user %q", rows[0].User)
	}
}

func TestRateLengths(t *testing.T) {
	var in, out []int
	for _, r := range mustRows(t, rateTable(10, 10, "Poisson", "", "1"), TraceOptions{Seed: 8}) {
		in, out = append(in, r.InputTokens), append(out, r.OutputTokens)
	}
	if slices.Min(in) < 4 || slices.Max(in) > 16000 || slices.Min(out) < 1 || slices.Max(out) > 4096 {
		t.Errorf("lengths from %d to %d and %d to %d", slices.Min(in), slices.Max(in), slices.Min(out), slices.Max(out))
	}
	near(t, "mean input", mean(in), 0.75*300*math.Exp(0.72)+0.25*900*math.Exp(0.32), 0.05)
	near(t, "mean output", mean(out), 0.25*20*math.Exp(0.32)+0.75*250*math.Exp(0.28125), 0.05)
}

func TestExtremeShapesStayFinite(t *testing.T) {
	for _, dist := range []string{"Gamma", "Weibull"} {
		for _, p1 := range []string{"0", "1e-9", "0.01", "1e9"} {
			rows := mustRows(t, rateTable(3, 1, dist, p1, "1038"), TraceOptions{Seed: 6})
			if len(rows) > 100000 {
				t.Errorf("%s %s: %d rows of 1800 expected ones", dist, p1, len(rows))
			}
		}
	}
}

func TestArrivalsAreReproducible(t *testing.T) {
	table := rateTable(3, 3, "Weibull", "0.4", "2")
	a, b := mustRows(t, table, TraceOptions{Seed: 1}), mustRows(t, table, TraceOptions{Seed: 1})
	if !slices.EqualFunc(a, b, sameRow) {
		t.Error("the same seed drew other arrivals")
	}
	if c := mustRows(t, table, TraceOptions{Seed: 2}); slices.EqualFunc(a, c, sameRow) {
		t.Error("another seed drew the same arrivals")
	}
}
