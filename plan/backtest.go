package plan

import (
	"fmt"
	"math"
	"time"
)

// Past is what was asked of a service, minute by minute, and what replicas cost and
// how long they take to start: what plans are followed over. Of Problem it uses the
// names, Theta, Capacity, CapacityType, Min and Max.
type Past struct {
	Problem *Problem
	// Load is uncached prompt tokens a second by model, region and minute; NaN is
	// unknown, and no minute in which a model's is unknown everywhere is judged.
	Load [][][]float64
	// Price is what a replica on GPU k in region j is billed, in USD an hour.
	Price [][]float64
	// StartUp is how many minutes a new replica in region j takes to serve.
	StartUp []int
}

// Order asks for counts from a minute on.
type Order struct {
	Minute int
	Want   [][][]int
}

// Followed is what following some orders over a past cost and broke.
type Followed struct {
	// Rule is who gave the orders: plan, constant, reactive or real.
	Rule string `json:"rule"`
	// CostUSD is what all replicas were billed, from their order to their end.
	CostUSD      float64 `json:"cost_usd"`
	ReplicaHours float64 `json:"replica_hours"`
	// MostReplicas is the greatest count at a time, starting ones included.
	MostReplicas int `json:"most_replicas"`
	// MinutesAbove counts the minutes in which a model's load over all regions was
	// above what its ready replicas carry; TokensAbove is the prompt tokens above,
	// ShareAbove their share of all.
	MinutesAbove int      `json:"minutes_above"`
	TokensAbove  float64  `json:"tokens_above"`
	ShareAbove   *float64 `json:"share_above"`
	// TokensSent is the prompt tokens that other regions than their own carried.
	TokensSent float64 `json:"tokens_sent"`
	// Started and Stopped count replicas.
	Started int `json:"started"`
	Stopped int `json:"stopped"`
}

// minutes is how long the past is.
func (p *Past) minutes() int { return len(p.Load[0][0]) }

// Follow follows orders, sorted by minute, the first at minute 0, whose replicas
// are taken to be ready. It fails on orders that are not so.
func (p *Past) Follow(rule string, orders []Order) (Followed, error) {
	if len(orders) == 0 || orders[0].Minute != 0 {
		return Followed{}, fmt.Errorf("following %s: the first order must be for the first minute", rule)
	}
	f := newFollower(p, rule, orders[0].Want)
	next := 1
	for m := range p.minutes() {
		f.now = m
		for next < len(orders) && orders[next].Minute <= m {
			if orders[next].Minute < m {
				return Followed{}, fmt.Errorf("following %s: orders are not sorted: minute %d comes after %d", rule, orders[next].Minute, m)
			}
			f.order(orders[next].Want)
			next++
		}
		f.stopDue()
		f.minute()
	}
	return f.result(), nil
}

// cell is the replicas of one model in one region on one GPU: how many are ready,
// and how many will be by minute.
type cell struct {
	ready    int
	starting []batch
}

type batch struct{ at, n int }

func (c *cell) count() int {
	n := c.ready
	for _, b := range c.starting {
		n += b.n
	}
	return n
}

// follower is a fleet on its way through a past.
type follower struct {
	*Past
	now    int
	cells  [][][]cell
	stops  []stop
	out    Followed
	tokens float64
}

func newFollower(p *Past, rule string, want [][][]int) *follower {
	f := &follower{Past: p, out: Followed{Rule: rule}, cells: make([][][]cell, len(want))}
	for i := range want {
		f.cells[i] = make([][]cell, len(want[i]))
		for j := range want[i] {
			f.cells[i][j] = make([]cell, len(want[i][j]))
			for k, n := range want[i][j] {
				f.cells[i][j][k].ready = n
			}
		}
	}
	return f
}

// order starts and stops replicas to have what is wanted. A model's replicas are
// stopped only when those that the same order starts in their place are ready.
func (f *follower) order(want [][][]int) {
	f.stops = f.stops[:0]
	for i := range want {
		wait := 0
		for j := range want[i] {
			for k, n := range want[i][j] {
				if d := n - f.cells[i][j][k].count(); d > 0 {
					f.change(i, j, k, d)
					wait = max(wait, f.StartUp[j])
				}
			}
		}
		for j := range want[i] {
			for k, n := range want[i][j] {
				if d := n - f.cells[i][j][k].count(); d < 0 {
					f.stops = append(f.stops, stop{f.now + wait, i, j, k, d})
				}
			}
		}
	}
}

// stop is replicas that go in a minute; n is below 0.
type stop struct{ at, i, j, k, n int }

// stopDue stops the replicas whose minute has come.
func (f *follower) stopDue() {
	later := f.stops[:0]
	for _, s := range f.stops {
		if s.at > f.now {
			later = append(later, s)
		} else {
			f.change(s.i, s.j, s.k, s.n)
		}
	}
	f.stops = later
}

// change starts d replicas, or stops -d of them, those first that would be ready
// last.
func (f *follower) change(i, j, k, d int) {
	c := &f.cells[i][j][k]
	if d > 0 {
		f.out.Started += d
		c.starting = append(c.starting, batch{f.now + f.StartUp[j], d})
		return
	}
	f.out.Stopped -= d
	for ; d < 0 && len(c.starting) > 0; c.starting = c.starting[:len(c.starting)-1] {
		last := &c.starting[len(c.starting)-1]
		if last.n > -d {
			last.n += d
			return
		}
		d += last.n
	}
	c.ready += d
}

// minute lets a minute pass.
func (f *follower) minute() {
	all := 0
	for j := range f.Problem.Regions {
		for k := range f.Problem.GPUs {
			count := 0
			for i := range f.cells {
				c := &f.cells[i][j][k]
				for len(c.starting) > 0 && c.starting[0].at <= f.now {
					c.ready, c.starting = c.ready+c.starting[0].n, c.starting[1:]
				}
				count += c.count()
			}
			all += count
			if f.Problem.Reserved(k) {
				count = limit(f.Problem.Capacity, j, k, count)
			}
			f.out.CostUSD += f.Price[j][k] * float64(count) / 60
		}
	}
	f.out.ReplicaHours += float64(all) / 60
	f.out.MostReplicas = max(f.out.MostReplicas, all)
	f.judge()
}

// judge compares the minute's load with what is ready.
func (f *follower) judge() {
	above := false
	for i := range f.cells {
		var load, capacity, own float64
		known := false
		for j := range f.cells[i] {
			has := f.ready(i, j)
			capacity += has
			if v := f.Load[i][j][f.now]; !math.IsNaN(v) {
				known = true
				load += v
				own += math.Min(v, has)
			}
		}
		if !known {
			continue
		}
		f.tokens += 60 * load
		f.out.TokensSent += 60 * (math.Min(load, capacity) - own)
		if !covers(capacity, load) {
			above = true
			f.out.TokensAbove += 60 * (load - capacity)
		}
	}
	if above {
		f.out.MinutesAbove++
	}
}

// ready is what model i's ready replicas in region j carry.
func (f *follower) ready(i, j int) float64 {
	var sum float64
	for k := range f.cells[i][j] {
		sum += f.Problem.Theta[i][k] * float64(f.cells[i][j][k].ready)
	}
	return sum
}

func (f *follower) result() Followed {
	if f.tokens > 0 {
		share := f.out.TokensAbove / f.tokens
		f.out.ShareAbove = &share
	}
	return f.out
}

// Backtest is what following plans over a past would have cost and broken, and what
// other rules would have.
type Backtest struct {
	Service    string     `json:"service"`
	From       time.Time  `json:"from"`
	Until      time.Time  `json:"until"`
	Every      string     `json:"every"`
	Horizon    string     `json:"horizon"`
	Forecaster string     `json:"forecaster"`
	Rules      []Followed `json:"rules"`
	Reviews    []Step     `json:"reviews"`
	Assumed    []string   `json:"assumed"`
}

// Step is one review of a Backtest: what it expected and asked for, and what came.
// The rates are the greatest of any minute, over all models and regions together;
// what came is nil where nothing is known of it. Replicas is how many stood after
// it, Changed how many it started and stopped.
type Step struct {
	At              time.Time `json:"at"`
	Status          Status    `json:"status"`
	ForecastPeakTPS float64   `json:"forecast_peak_tps"`
	PeakTPS         *float64  `json:"peak_tps"`
	Replicas        int       `json:"replicas"`
	Changed         int       `json:"changed"`
	CostPerHour     float64   `json:"cost_per_hour"`
}
