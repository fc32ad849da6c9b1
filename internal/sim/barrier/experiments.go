package barrier

import (
	"skyserve/lbd/bfio"
)

// Case is one fleet with its load, and the rows compared on it; the first is FCFS.
type Case struct {
	Scenario Scenario
	// Utilisation is the requests that come, as a share of the FCFS capacity; 0 in
	// overload.
	Utilisation float64
	Rows        []Row
}

// Table1Cases is the paper's Table 1: one fleet, overloaded.
func Table1Cases(seed uint64) []Case { return []Case{{Scenario: Table1(seed), Rows: Rows()}} }

// Capacity is how many requests per second the fleet of Table 1 ends under FCFS
// in overload, over 20,000 steps (some 90,000 requests) of seed 1.
func Capacity() float64 {
	scenario := Table1(1)
	scenario.Steps = 20000
	f := NewSim(scenario, bfio.Defaults(0)).Run(FCFS())
	return float64(f.Completed) / f.Seconds
}

// Open is the fleet of Table 1 with so many requests per second. Ten simulated
// seconds, a few times as long as a request runs, go before the minute measured.
func Open(seed uint64, rate float64) Scenario {
	scenario := Table1(seed)
	scenario.Reveal, scenario.Rate = 0, rate
	scenario.Settle, scenario.Duration = 10, 60
	return scenario
}

// OpenCases load the fleet with shares of the capacity that FCFS reaches: three
// that it carries, one that BF-IO carries alone, and one that is too much for all.
func OpenCases(seed uint64, capacity float64) []Case {
	var cases []Case
	for _, u := range []float64{0.7, 0.9, 0.98, 1.1, 1.2} {
		cases = append(cases, Case{
			Scenario: Open(seed, u*capacity), Utilisation: u,
			Rows: []Row{
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

// DispatchCases compare a pool of waiting requests with binding each to a worker
// when it comes (section 7.3 of the paper), open fleets both.
func DispatchCases(seed uint64, capacity float64) []Case {
	var cases []Case
	for _, u := range []float64{0.98, 1.1, 1.2} {
		for _, onArrival := range []bool{false, true} {
			c := Case{
				Scenario: Open(seed, u*capacity), Utilisation: u,
				Rows: []Row{{Policy: "fcfs"}, {Policy: "jsq"}, {Policy: "bf-io"}, {Policy: "bf-io", H: 20}},
			}
			c.Scenario.OnArrival = onArrival
			cases = append(cases, c)
		}
	}
	return cases
}

// DriftCases are the fleet of Table 1 with loads that grow by other than one token
// per step (section 5.1): constant ones, a cache compressed four to one, decoding,
// speculative decoding that accepts one to three tokens at a time, and four.
func DriftCases(seed uint64) []Case {
	var cases []Case
	for _, growth := range [][]int64{{0}, {0, 0, 0, 1}, {1}, {1, 2, 3, 2}, {4}} {
		c := Case{
			Scenario: Table1(seed),
			Rows:     []Row{{Policy: "fcfs"}, {Policy: "bf-io"}, {Policy: "bf-io", H: 20}, {Policy: "bf-io", H: 20, WaitBound: 200}},
		}
		c.Scenario.Growth = growth
		if len(growth) == 1 && growth[0] == 1 {
			c.Rows = printedRows(c.Rows)
		}
		cases = append(cases, c)
	}
	return cases
}

// ScaleCases vary the workers at the 72 slots of Table 1, then the slots at its 16
// workers. The pool keeps Table 1's proportion to the slots in all; fewer steps are
// measured than there, 2,000, so that all of it runs in half a minute.
func ScaleCases(seed uint64) []Case {
	table := Table1(seed)
	var cases []Case
	add := func(workers, slots int) {
		c := Case{Scenario: table, Rows: []Row{{Policy: "fcfs"}, {Policy: "bf-io"}, {Policy: "bf-io", H: 20}}}
		if workers == table.Workers && slots == table.Slots {
			c.Rows = printedRows(c.Rows)
		}
		c.Scenario.Workers, c.Scenario.Slots = workers, slots
		all := table.Workers * table.Slots
		c.Scenario.Reveal = (table.Reveal*workers*slots + all - 1) / all
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

// printedRows gives rows what Table 1 prints for them.
func printedRows(rows []Row) []Row {
	for i := range rows {
		for _, printed := range Rows() {
			if r := &rows[i]; r.Policy == printed.Policy && r.H == printed.H && r.WaitBound == printed.WaitBound {
				r.Paper = printed.Paper
			}
		}
	}
	return rows
}
