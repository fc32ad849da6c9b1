package barrier

import (
	"skyserve/lbd/bfio"
)

// Case is a fleet with its load and the rows compared on it; the first row is FCFS.
type Case struct {
	Scenario Scenario
	// Utilisation is the arrival rate as a fraction of the FCFS capacity; 0 in overload.
	Utilisation float64
	Rows        []PolicyRow
}

// Table1Cases returns the paper's Table 1: one fleet, overloaded.
func Table1Cases(seed uint64) []Case { return []Case{{Scenario: Table1(seed), Rows: Rows()}} }

// Capacity returns the requests per second that the fleet of Table 1 completes with FCFS in overload,
// over 20,000 steps (some 90,000 requests) with seed 1.
func Capacity() float64 {
	scenario := Table1(1)
	scenario.Steps = 20000
	f := NewSim(scenario, bfio.Defaults(0)).Run(FCFS())
	return float64(f.Completed) / f.Seconds
}

// Open returns the fleet of Table 1 with an arrival rate in requests per second. Ten simulated seconds,
// a few times the duration of a request, precede the measured minute.
func Open(seed uint64, rate float64) Scenario {
	scenario := Table1(seed)
	scenario.VisibleRequests, scenario.Rate = 0, rate
	scenario.WarmupSeconds, scenario.Duration = 10, 60
	return scenario
}

// OpenCases load the fleet with fractions of the FCFS capacity: three that FCFS sustains, one that only
// BF-IO sustains, and one that exceeds all policies.
func OpenCases(seed uint64, capacity float64) []Case {
	var cases []Case
	for _, u := range []float64{0.7, 0.9, 0.98, 1.1, 1.2} {
		cases = append(cases, Case{
			Scenario: Open(seed, u*capacity), Utilisation: u,
			Rows: []PolicyRow{
				{Policy: "fcfs"},
				{Policy: "jsq"},
				{Policy: "bf-io"},
				{Policy: "bf-io", H: 20},
				{Policy: "bf-io", WaitBound: 200},
				{Policy: "bf-io", H: 20, WaitBound: 200},
			},
		})
	}
	return cases
}

// DispatchCases compare a shared pool of waiting requests with binding on arrival (section 7.3 of the
// paper), both in open fleets.
func DispatchCases(seed uint64, capacity float64) []Case {
	var cases []Case
	for _, u := range []float64{0.98, 1.1, 1.2} {
		for _, onArrival := range []bool{false, true} {
			c := Case{
				Scenario: Open(seed, u*capacity), Utilisation: u,
				Rows: []PolicyRow{{Policy: "fcfs"}, {Policy: "jsq"}, {Policy: "bf-io"}, {Policy: "bf-io", H: 20}},
			}
			c.Scenario.OnArrival = onArrival
			cases = append(cases, c)
		}
	}
	return cases
}

// DriftCases are the fleet of Table 1 with loads that grow by other than one token per step (section
// 5.1): constant loads, a cache compressed four to one, decoding, speculative decoding that accepts one
// to three tokens at a time, and four tokens.
func DriftCases(seed uint64) []Case {
	var cases []Case
	for _, growth := range [][]int64{{0}, {0, 0, 0, 1}, {1}, {1, 2, 3, 2}, {4}} {
		c := Case{
			Scenario: Table1(seed),
			Rows:     []PolicyRow{{Policy: "fcfs"}, {Policy: "bf-io"}, {Policy: "bf-io", H: 20}, {Policy: "bf-io", H: 20, WaitBound: 200}},
		}
		c.Scenario.Growth = growth
		if len(growth) == 1 && growth[0] == 1 {
			c.Rows = printedRows(c.Rows)
		}
		cases = append(cases, c)
	}
	return cases
}

// ScaleCases vary the workers with the 72 slots of Table 1, then the slots with its 16 workers. The
// pool scales with the total number of slots; 2,000 steps are measured, fewer than in Table 1, so that
// all cases run in half a minute.
func ScaleCases(seed uint64) []Case {
	table := Table1(seed)
	var cases []Case
	add := func(workers, slots int) {
		c := Case{Scenario: table, Rows: []PolicyRow{{Policy: "fcfs"}, {Policy: "bf-io"}, {Policy: "bf-io", H: 20}}}
		if workers == table.Workers && slots == table.Slots {
			c.Rows = printedRows(c.Rows)
		}
		c.Scenario.Workers, c.Scenario.Slots = workers, slots
		all := table.Workers * table.Slots
		c.Scenario.VisibleRequests = (table.VisibleRequests*workers*slots + all - 1) / all
		c.Scenario.Steps = 2000
		cases = append(cases, c)
	}
	for _, workers := range []int{8, 16, 32, 64, 128, 256} {
		add(workers, table.Slots)
	}
	for _, slots := range []int{8, 24, 144, 288} {
		add(table.Workers, slots)
	}
	return cases
}

// printedRows adds the values of Table 1 to rows.
func printedRows(rows []PolicyRow) []PolicyRow {
	for i := range rows {
		for _, printed := range Rows() {
			if r := &rows[i]; r.Policy == printed.Policy && r.H == printed.H && r.WaitBound == printed.WaitBound {
				r.Paper = printed.Paper
			}
		}
	}
	return rows
}
