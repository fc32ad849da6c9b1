package plan

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"
)

// HoursPerMonth converts hourly prices to monthly ones.
const HoursPerMonth = 730

// ReservedComparison compares the cost of four ways to provide the replicas for a service's past load: reserve
// those for each region's own peak, reserve those for the peak of all regions together (SkyLB 2.2 and
// figure 3), reserve only those whose use exceeds the break-even, or reserve none. The others are on demand.
type ReservedComparison struct {
	From time.Time `json:"from"`
	To   time.Time `json:"until"`
	// StepSeconds is the interval over which the load was averaged.
	StepSeconds float64        `json:"step_s"`
	Loads       []ReservedLoad `json:"loads"`
	Rows        []ReservedRow  `json:"rows"`
	Costs       []ReservedCost `json:"costs"`
	BreakEven   []BreakEven    `json:"break_even"`
	// Saving is the relative saving of reserving for the peak of all regions instead of for each
	// region's own; nil when there is no load.
	Saving *float64 `json:"saving"`
	// Assumed lists the assumptions for unknown values.
	Assumed []string `json:"assumed"`
}

// ReservedLoad is a model's load in one region, or, when Region is nil, in all together. PeakTPS
// and MinTPS are uncached prompt tokens per second; PeakOverMin is nil where MinTPS is
// 0.
type ReservedLoad struct {
	Model       string    `json:"model"`
	Region      *string   `json:"region"`
	PeakTPS     float64   `json:"peak_tps"`
	PeakAt      time.Time `json:"peak_at"`
	MinTPS      float64   `json:"min_tps"`
	PeakOverMin *float64  `json:"peak_over_min"`
}

// MarshalJSON adds the former keys of MinTPS and PeakOverMin.
func (l ReservedLoad) MarshalJSON() ([]byte, error) {
	type plain ReservedLoad
	return json.Marshal(struct {
		plain
		OldMinTPS      float64  `json:"least_tps"`
		OldPeakOverMin *float64 `json:"peak_over_least"`
	}{plain(l), l.MinTPS, l.PeakOverMin})
}

// ReservedRow is the number of replicas to reserve: for the region's own peak, and for the peak
// of all regions.
type ReservedRow struct {
	Model      string `json:"model"`
	Region     string `json:"region"`
	GPU        string `json:"gpu"`
	OwnPeak    int    `json:"own_peak"`
	GlobalPeak int    `json:"global_peak"`
}

// ReservedCost is the cost in USD of one option of providing the replicas, for a mean hour and
// for a month. Reserved is the number of reserved replicas, which are billed all the time; OnDemand is the number of
// additional ones in the busiest step.
type ReservedCost struct {
	Option       string  `json:"option"` // own_peaks, global_peak, mixed or on_demand
	Reserved     int     `json:"committed"`
	OnDemand     int     `json:"on_demand"`
	CostPerHour  float64 `json:"cost_per_hour"`
	CostPerMonth float64 `json:"cost_per_month"`
}

// MarshalJSON adds the former key of Option.
func (c ReservedCost) MarshalJSON() ([]byte, error) {
	type plain ReservedCost
	return json.Marshal(struct {
		plain
		OldOption string `json:"way"`
	}{plain(c), c.Option})
}

// BreakEven is the number of hours of use a month from which reserving a GPU pays off.
type BreakEven struct {
	GPU string `json:"gpu"`
	// Regions are the regions that have it.
	Regions         []string `json:"regions"`
	OnDemandPerHour float64  `json:"on_demand_per_hour"`
	ReservedPerHour float64  `json:"reserved_per_hour"`
	HoursPerMonth   float64  `json:"hours_per_month"`
}

// compareReservations compares reservations for the load of p, whose windows are steps of a past that
// began at from. PricePerHour is the on-demand price of a replica, reserved its reserved price. Running
// replicas and start-up costs are ignored. For the peak of all regions, each region serves
// LocalShare of its own peak. It fails on a problem that Check rejects, or with ErrInfeasible or ErrNoCounts.
func compareReservations(p *Problem, reserved []float64, from time.Time, step time.Duration, o SolveOptions) (*ReservedComparison, error) {
	q := *p
	q.Extras, q.Max = Extras{}, nil
	q.PricePerHour = reserved
	q.Current, q.StartCostUSD = zeroCounts(p), make([][]float64, len(p.Models))
	for i := range q.StartCostUSD {
		q.StartCostUSD[i] = make([]float64, len(p.GPUs))
	}
	global, err := solveFor(&q, "the peak of all regions", o)
	if err != nil {
		return nil, err
	}
	apart := q
	apart.LocalShare, apart.LoadTPS = 1, make([][][]float64, len(p.Models))
	for i := range p.Models {
		for j := range p.Regions {
			apart.LoadTPS[i] = append(apart.LoadTPS[i], []float64{p.RegionPeak(i, j)})
		}
	}
	own, err := solveFor(&apart, "each region's peak", o)
	if err != nil {
		return nil, err
	}
	r := &ReservedComparison{
		From: from, To: from.Add(time.Duration(len(p.LoadTPS[0][0])) * step), StepSeconds: step.Seconds(), Rows: []ReservedRow{}, Assumed: []string{},
	}
	r.addLoads(p, step)
	r.addRows(p, own.Counts, global.Counts)
	r.addCosts(p, reserved, own, global)
	return r, nil
}

func zeroCounts(p *Problem) [][][]int {
	out := make([][][]int, len(p.Models))
	for i := range out {
		out[i] = make([][]int, len(p.Regions))
		for j := range out[i] {
			out[i][j] = make([]int, len(p.GPUs))
		}
	}
	return out
}

// The errors of a comparison of reservations for which no counts were found.
var (
	ErrInfeasible = errors.New("infeasible")
	ErrNoCounts   = errors.New("no counts found: the solver reached its limit of work")
)

func solveFor(p *Problem, what string, o SolveOptions) (Solution, error) {
	r, err := Solve(p, o)
	switch {
	case err != nil:
		return r, err
	case r.Status == StatusInfeasible:
		return r, fmt.Errorf("planning for %s: %w: %s; add to models[].gpus a GPU that the region's cloud rents", what, ErrInfeasible, r.Infeasible[0])
	case r.Counts == nil:
		return r, fmt.Errorf("planning for %s: %w", what, ErrNoCounts)
	}
	return r, nil
}

// addLoads adds the variation of each model's load, by region and over all.
func (r *ReservedComparison) addLoads(p *Problem, step time.Duration) {
	for i, model := range p.Models {
		sum := make([]float64, len(p.LoadTPS[i][0]))
		for j, region := range p.Regions {
			for w, v := range p.LoadTPS[i][j] {
				sum[w] += v
			}
			r.addLoad(model, &region, p.LoadTPS[i][j], step)
		}
		r.addLoad(model, nil, sum, step)
	}
}

func (r *ReservedComparison) addLoad(model string, region *string, values []float64, step time.Duration) {
	l := ReservedLoad{Model: model, Region: region, PeakAt: r.From}
	if len(values) > 0 {
		l.PeakTPS, l.MinTPS = slices.Max(values), slices.Min(values)
		l.PeakAt = r.From.Add(time.Duration(slices.Index(values, l.PeakTPS)) * step)
	}
	if l.MinTPS > 0 {
		ratio := l.PeakTPS / l.MinTPS
		l.PeakOverMin = &ratio
	}
	r.Loads = append(r.Loads, l)
}

func (r *ReservedComparison) addRows(p *Problem, own, global [][][]int) {
	for i := range p.Models {
		for j := range p.Regions {
			for k := range p.GPUs {
				if own[i][j][k] > 0 || global[i][j][k] > 0 {
					r.Rows = append(r.Rows, ReservedRow{p.Models[i], p.Regions[j], p.GPUs[k], own[i][j][k], global[i][j][k]})
				}
			}
		}
	}
}

// addCosts adds the cost of each option, the saving and the break-even.
func (r *ReservedComparison) addCosts(p *Problem, reserved []float64, own, global Solution) {
	for k, gpu := range p.GPUs {
		b := BreakEven{GPU: gpu, Regions: []string{}, OnDemandPerHour: p.PricePerHour[k], ReservedPerHour: reserved[k]}
		for j, region := range p.Regions {
			if limitOr(p.Capacity, j, k, unlimited) > 0 {
				b.Regions = append(b.Regions, region)
			}
		}
		if p.PricePerHour[k] > 0 {
			b.HoursPerMonth = HoursPerMonth * reserved[k] / p.PricePerHour[k]
		}
		r.BreakEven = append(r.BreakEven, b)
	}
	r.addCost("own_peaks", sumAll(own.Counts), 0, own.Objective)
	r.addCost("global_peak", sumAll(global.Counts), 0, global.Objective)
	if own.Objective > 0 {
		saving := 1 - global.Objective/own.Objective
		r.Saving = &saving
	}
	var mixed, rented ReservedCost
	for i := range p.Models {
		p.addStackedCost(i, global.Counts[i], reserved, reserved, &mixed)
		p.addStackedCost(i, global.Counts[i], p.PricePerHour, nil, &rented)
	}
	r.addCost("mixed", mixed.Reserved, mixed.OnDemand, mixed.CostPerHour)
	r.addCost("on_demand", 0, rented.OnDemand, rented.CostPerHour)
}

func (r *ReservedComparison) addCost(option string, reserved, onDemand int, perHour float64) {
	r.Costs = append(r.Costs, ReservedCost{option, reserved, onDemand, perHour, HoursPerMonth * perHour})
}

func sumAll(x [][][]int) int {
	sum := 0
	for i := range x {
		for j := range x[i] {
			for _, n := range x[i][j] {
				sum += n
			}
		}
	}
	return sum
}

// addStackedCost adds to cost the cost of serving model i's load with replicas x. In every step the load fills the
// replicas in the order of their price (sortPrices) per throughput, the cheapest first. A replica is reserved
// when that is cheaper than on demand for the time that it is needed. reserved are the reserved prices; nil = no
// reservations.
func (p *Problem) addStackedCost(i int, x [][]int, sortPrices, reserved []float64, cost *ReservedCost) {
	loads := make([]float64, len(p.LoadTPS[i][0]))
	for j := range p.Regions {
		for w, v := range p.LoadTPS[i][j] {
			loads[w] += v
		}
	}
	slices.Sort(loads)
	var order []int // the GPU of each replica
	for j := range x {
		for k, n := range x[j] {
			order = append(order, slices.Repeat([]int{k}, n)...)
		}
	}
	slices.SortStableFunc(order, func(a, b int) int {
		return cmp.Compare(sortPrices[a]*p.ReplicaTPS[i][b], sortPrices[b]*p.ReplicaTPS[i][a])
	})
	below := 0.0
	for _, k := range order {
		idle, _ := slices.BinarySearch(loads, below*(1+relTolerance)+relTolerance)
		below += p.ReplicaTPS[i][k]
		onDemand := p.PricePerHour[k] * float64(len(loads)-idle) / float64(max(1, len(loads)))
		switch {
		case reserved != nil && reserved[k] <= onDemand:
			cost.Reserved++
			cost.CostPerHour += reserved[k]
		case idle < len(loads):
			cost.OnDemand++
			cost.CostPerHour += onDemand
		}
	}
}
