package eval

import (
	"context"
	"encoding/json"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"skyserve/internal/sim"
	"skyserve/internal/sim/barrier"
)

// tinyBFIO returns two cases of a fleet whose runs are short: with a pool, and with dispatch on
// arrival.
func tinyBFIO(seed uint64, capacity float64) []barrier.Case {
	c := barrier.Case{
		Scenario: barrier.Scenario{
			Workers: 2, Slots: 2, Overhead: 1e-2, PerToken: 1e-4, Seed: seed, Rate: capacity, Duration: 2,
			Lengths: func(rng *rand.Rand) (int64, int64) { return 1 + rng.Int64N(90), 1 + rng.Int64N(9) },
		},
		Utilisation: 0.5,
		Rows:        []barrier.PolicyRow{{Policy: "fcfs"}, {Policy: "bf-io", H: 2}},
	}
	bound := c
	bound.Scenario.OnArrival = true
	bound.Rows = slices.Clone(c.Rows)
	return []barrier.Case{c, bound}
}

func TestBFIORowOrder(t *testing.T) {
	s := BFIOScenario{Name: "tiny", cases: tinyBFIO, open: true, ratio: true, label: labelDispatch}
	cases := [][]barrier.Case{tinyBFIO(1, 30), tinyBFIO(2, 30)}
	run := func() []BFIORow {
		report := &BFIOReport{}
		for at := range cases[0] {
			if err := s.runCase(context.Background(), report, cases, at, 0, func() time.Duration { return 0 }, func() {}); err != nil {
				t.Fatal(err)
			}
		}
		return report.Rows
	}
	rows := run()
	var order []string
	for i := range rows {
		r := &rows[i]
		order = append(order, r.Dispatch+" "+r.Policy+" "+string(rune('0'+r.Seed)))
		base := rows[i/4*4+i%2]
		if want := base.Imbalance / r.Imbalance; *r.Ratio != want || base.Policy != "fcfs" || base.Seed != r.Seed {
			t.Errorf("%s: %v below fcfs, want %v", order[i], *r.Ratio, want)
		}
		if r.Wait == nil || r.Wait.Max < r.Wait.P90 || r.Wait.Mean <= 0 || r.Utilisation != 0.5 {
			t.Errorf("%s: %+v", order[i], r)
		}
	}
	want := "pool fcfs 1,pool fcfs 2,pool bf-io 1,pool bf-io 2,arrival fcfs 1,arrival fcfs 2,arrival bf-io 1,arrival bf-io 2"
	if got := strings.Join(order, ","); got != want {
		t.Errorf("rows %s", got)
	}
	first, _ := json.Marshal(rows)
	if again, _ := json.Marshal(run()); string(first) != string(again) {
		t.Error("the same seeds yield other bytes")
	}
}

func TestBFIONames(t *testing.T) {
	for _, s := range BFIOScenarios() {
		if found, err := FindBFIOScenario(s.Name); err != nil || found.Title != s.Title || !IsBFIOName(s.Name) {
			t.Errorf("%s: found %+v, %v", s.Name, found, err)
		}
		for _, c := range s.cases(1, 300) {
			var row BFIORow
			s.label(&row, &c) // the columns must find their values
		}
	}
	for name, want := range map[string]bool{"bfio": true, "bfio-opne": true, "bfio.yaml": false, "bfio-mine.yaml": false, "bfio/mine": false, "fig8a": false} {
		if IsBFIOName(name) != want {
			t.Errorf("IsBFIO(%q) = %v", name, !want)
		}
	}
	_, err := RunBFIO(context.Background(), "bfio-opne", 1, 0, nil, noProgress)
	const want = `unknown scenario "bfio-opne": must be one of bfio-table1, bfio-open, bfio-dispatch, bfio-drift, bfio-scale`
	if err == nil || err.Error() != want {
		t.Errorf("got %v", err)
	}
}

// bfioFigures returns a made-up row for every scenario.
func bfioFigures(policy string, seed uint64, imbalance float64) BFIORow {
	drift, ratio := 0.25, 4e5/imbalance
	return BFIORow{
		Policy: policy, Seed: seed, Imbalance: imbalance, Idle: 0.125, Throughput: 81234, TPOT: 12.6, Energy: 385.6, MaxWait: 70,
		Decision: sim.Percentiles{P50: 21}, Workers: 16, Slots: 72, Utilisation: 0.9, Dispatch: "pool", Drift: &drift, Ratio: &ratio,
		Wait: &sim.Percentiles{Mean: 12, P90: 20.4, Max: 333},
	}
}

func TestBFIOTables(t *testing.T) {
	want := map[string]string{
		"bfio-table1": `
POLICY   H  WAIT BOUND  IMBALANCE 1e4 TOK  THROUGHPUT 1e4 TOK/S  TPOT 1e-2 S  ENERGY KJ  BARRIER IDLE  MAX WAIT  DECISION P50
fcfs     0           -  40.00 (27.90)      8.12 (8.00)           1.26 (1.42)  386 (396)         12.5%        70         21 us
bf-io   20         200  5.00               8.12                  1.26         386               12.5%        70         21 us
`,
		"bfio-open": `
UTILISATION  POLICY   H  WAIT BOUND  IMBALANCE 1e4 TOK  BARRIER IDLE  THROUGHPUT 1e4 TOK/S  TPOT 1e-2 S  WAIT MEAN    P90     MAX  ENERGY KJ  DECISION P50
       0.90  fcfs     0           -  40.00 (27.90)             12.5%  8.12 (8.00)           1.26 (1.42)      12 ms  20 ms  333 ms  386 (396)         21 us
       0.90  bf-io   20         200  5.00                      12.5%  8.12                  1.26             12 ms  20 ms  333 ms  386               21 us
`,
		"bfio-dispatch": `
UTILISATION  DISPATCH  POLICY   H  WAIT BOUND  IMBALANCE 1e4 TOK  BARRIER IDLE  THROUGHPUT 1e4 TOK/S  TPOT 1e-2 S  WAIT MEAN    P90     MAX  ENERGY KJ  DECISION P50
       0.90  pool      fcfs     0           -  40.00 (27.90)             12.5%  8.12 (8.00)           1.26 (1.42)      12 ms  20 ms  333 ms  386 (396)         21 us
       0.90  pool      bf-io   20         200  5.00                      12.5%  8.12                  1.26             12 ms  20 ms  333 ms  386               21 us
`,
		"bfio-drift": `
DRIFT TOK/STEP  POLICY   H  WAIT BOUND  IMBALANCE 1e4 TOK  BELOW FCFS  BARRIER IDLE  THROUGHPUT 1e4 TOK/S  TPOT 1e-2 S  DECISION P50
          0.25  fcfs     0           -  40.00 (27.90)            1.0x         12.5%  8.12 (8.00)           1.26 (1.42)         21 us
          0.25  bf-io   20         200  5.00                     8.3x         12.5%  8.12                  1.26                21 us
`,
		"bfio-scale": `
WORKERS  SLOTS  POLICY   H  IMBALANCE 1e4 TOK  BELOW FCFS  OVER SQRT(B LN G)  BARRIER IDLE  DECISION P50
     16     72  fcfs     0  40.00 (27.90)            1.0x                  -         12.5%         21 us
     16     72  bf-io   20  5.00                     8.3x               0.59         12.5%         21 us
`,
	}
	fcfs, one, two := bfioFigures("fcfs", 1, 4e5), bfioFigures("bf-io", 1, 4e4), bfioFigures("bf-io", 2, 6e4)
	fcfs.Paper = &BFIOPaper{Imbalance: 27.9e4, Throughput: 8e4, TPOT: 14.2, Energy: 396}
	one.H, one.WaitBound, two.H, two.WaitBound = 20, 200, 20, 200
	for _, s := range BFIOScenarios() {
		report := BFIOReport{Scenario: s.Name, Title: "a title", Rows: []BFIORow{fcfs, one, two}, columns: s.columns}
		head := s.Name + ": a title\n"
		if s.open {
			report.Capacity = 311.44
			head += "utilisation 1 = FCFS throughput in overload, 311.4 requests per second\n"
		}
		var got strings.Builder
		if err := report.WriteTable(&got); err != nil {
			t.Fatal(err)
		}
		if expected := head + strings.TrimPrefix(want[s.Name], "\n"); got.String() != expected {
			t.Errorf("%s:\n%swant\n%s", s.Name, got.String(), expected)
		}
	}
}

func TestBFIORowsOmitConstantColumns(t *testing.T) {
	data, err := json.Marshal(BFIORow{Policy: "fcfs"})
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{"workers", "slots", "utilisation", "dispatch", "drift", "wait_ms", "imbalance_ratio"} {
		if strings.Contains(string(data), `"`+key+`"`) {
			t.Errorf("%s is there: %s", key, data)
		}
	}
	still := 0.0
	if data, _ := json.Marshal(BFIORow{Drift: &still}); !strings.Contains(string(data), `"drift":0`) {
		t.Errorf("a drift of 0 is omitted: %s", data)
	}
}
