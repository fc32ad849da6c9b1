package plan

import (
	"encoding/json"
	"fmt"
	"math"
	"time"
)

// LoadTrace is the load of a service by minute, with the prices and start-up times of replicas, for
// replaying plans. It uses the names, Theta, Capacity, CapacityType, Min and Max of Problem, and its
// prices to choose GPUs.
type LoadTrace struct {
	Problem *Problem
	// Load is uncached prompt tokens per second by model, region and minute; NaN is unknown. A minute
	// in which a model's load is unknown in all regions is not evaluated.
	Load [][][]float64
	// Price is the billed price of a replica on GPU k in region j, in USD per hour.
	Price [][]float64
	// StartUp is the number of minutes until a new replica in region j is ready.
	StartUp []int
}

// TargetCounts sets the desired counts from a minute on.
type TargetCounts struct {
	Minute int
	Counts [][][]int
}

// RuleOutcome is the cost and overload of replaying one rule's target counts over a past load.
type RuleOutcome struct {
	// Rule is the source of the target counts: plan, hourly, constant, reactive or real.
	Rule string `json:"rule"`
	// CostUSD is the billed price of all replicas, from launch to stop.
	CostUSD      float64 `json:"cost_usd"`
	ReplicaHours float64 `json:"replica_hours"`
	// MaxReplicas is the highest count at a time, including starting replicas.
	MaxReplicas int `json:"max_replicas"`
	// OverloadMinutes counts the minutes in which a model's load over all regions was above the
	// capacity of its ready replicas. OverloadTokens is the number of prompt tokens above it,
	// OverloadShare their share of all.
	OverloadMinutes int      `json:"minutes_above"`
	OverloadTokens  float64  `json:"tokens_above"`
	OverloadShare   *float64 `json:"share_above"`
	// ForwardedTokens is the number of prompt tokens served by other regions than their own.
	ForwardedTokens float64 `json:"tokens_sent"`
	// Started and Stopped count replicas.
	Started int `json:"started"`
	Stopped int `json:"stopped"`
}

// MarshalJSON adds the former key of MaxReplicas.
func (o RuleOutcome) MarshalJSON() ([]byte, error) {
	type plain RuleOutcome
	return json.Marshal(struct {
		plain
		OldMaxReplicas int `json:"most_replicas"`
	}{plain(o), o.MaxReplicas})
}

// minutes returns the length of the trace.
func (p *LoadTrace) minutes() int { return len(p.Load[0][0]) }

// Replay replays target counts, sorted by minute, and returns their outcome. The first must be for
// minute 0; its replicas count as ready. Replay fails when the target counts are not sorted.
func (p *LoadTrace) Replay(rule string, targets []TargetCounts) (RuleOutcome, error) {
	if len(targets) == 0 || targets[0].Minute != 0 {
		return RuleOutcome{}, fmt.Errorf("replaying %s: the first target counts must be for minute 0", rule)
	}
	f := newReplay(p, rule, targets[0].Counts)
	next := 1
	for m := range p.minutes() {
		f.now = m
		for next < len(targets) && targets[next].Minute <= m {
			if targets[next].Minute < m {
				return RuleOutcome{}, fmt.Errorf("replaying %s: target counts are not sorted: minute %d is after %d", rule, targets[next].Minute, m)
			}
			f.setTargets(targets[next].Counts)
			next++
		}
		f.stopDue()
		f.advance()
	}
	return f.replayResult(), nil
}

// cell is the replicas of one model in one region on one GPU: the ready ones, and the starting ones
// by the minute they become ready.
type cell struct {
	ready    int
	starting []startingGroup
}

// startingGroup is n replicas that become ready in minute at.
type startingGroup struct{ at, n int }

func (c *cell) count() int {
	n := c.ready
	for _, b := range c.starting {
		n += b.n
	}
	return n
}

// scale starts d replicas that become ready in minute at, or stops -d of them: first those that would
// be ready last.
func (c *cell) scale(d, at int) {
	if d > 0 {
		c.starting = append(c.starting, startingGroup{at, d})
		return
	}
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

// advance makes the replicas ready that are due in a minute.
func (c *cell) advance(minute int) {
	for len(c.starting) > 0 && c.starting[0].at <= minute {
		c.ready, c.starting = c.ready+c.starting[0].n, c.starting[1:]
	}
}

// replay is the state of a replay: the replicas at a minute, and the outcome so far.
type replay struct {
	*LoadTrace
	now    int
	cells  [][][]cell
	stops  []pendingStop
	out    RuleOutcome
	tokens float64
}

func newReplay(p *LoadTrace, rule string, want [][][]int) *replay {
	f := &replay{LoadTrace: p, out: RuleOutcome{Rule: rule}, cells: make([][][]cell, len(want))}
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

// setTargets starts and stops replicas to reach the desired counts. A model's replicas stop only when
// the replicas that replace them are ready.
func (f *replay) setTargets(want [][][]int) {
	f.stops = f.stops[:0]
	for i := range want {
		wait := 0
		for j := range want[i] {
			for k, n := range want[i][j] {
				if d := n - f.cells[i][j][k].count(); d > 0 {
					f.scale(i, j, k, d)
					wait = max(wait, f.StartUp[j])
				}
			}
		}
		for j := range want[i] {
			for k, n := range want[i][j] {
				if d := n - f.cells[i][j][k].count(); d < 0 {
					f.stops = append(f.stops, pendingStop{f.now + wait, i, j, k, d})
				}
			}
		}
	}
}

// pendingStop is the replicas to stop in a minute; n is negative.
type pendingStop struct{ at, i, j, k, n int }

// stopDue stops the replicas that are due.
func (f *replay) stopDue() {
	later := f.stops[:0]
	for _, s := range f.stops {
		if s.at > f.now {
			later = append(later, s)
		} else {
			f.scale(s.i, s.j, s.k, s.n)
		}
	}
	f.stops = later
}

// scale starts d replicas, or stops -d of them.
func (f *replay) scale(i, j, k, d int) {
	if d > 0 {
		f.out.Started += d
	} else {
		f.out.Stopped -= d
	}
	f.cells[i][j][k].scale(d, f.now+f.StartUp[j])
}

// advance advances the replay by a minute.
func (f *replay) advance() {
	all := 0
	for j := range f.Problem.Regions {
		for k := range f.Problem.GPUs {
			count := 0
			for i := range f.cells {
				c := &f.cells[i][j][k]
				c.advance(f.now)
				count += c.count()
			}
			all += count
			if f.Problem.Reserved(k) {
				count = limitOr(f.Problem.Capacity, j, k, count)
			}
			f.out.CostUSD += f.Price[j][k] * float64(count) / 60
		}
	}
	f.out.ReplicaHours += float64(all) / 60
	f.out.MaxReplicas = max(f.out.MaxReplicas, all)
	f.addOverload()
}

// addOverload compares the minute's load with the ready capacity.
func (f *replay) addOverload() {
	above := false
	for i := range f.cells {
		var load, capacity, own float64
		known := false
		for j := range f.cells[i] {
			has := f.readyCapacity(i, j)
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
		f.out.ForwardedTokens += 60 * (math.Min(load, capacity) - own)
		if !meetsNeed(capacity, load) {
			above = true
			f.out.OverloadTokens += 60 * (load - capacity)
		}
	}
	if above {
		f.out.OverloadMinutes++
	}
}

// readyCapacity returns the throughput of model i's ready replicas in region j.
func (f *replay) readyCapacity(i, j int) float64 {
	var sum float64
	for k := range f.cells[i][j] {
		sum += f.Problem.Theta[i][k] * float64(f.cells[i][j][k].ready)
	}
	return sum
}

func (f *replay) replayResult() RuleOutcome {
	if f.tokens > 0 {
		share := f.out.OverloadTokens / f.tokens
		f.out.OverloadShare = &share
	}
	return f.out
}

// Backtest is the cost and overload of following plans over a past period, compared with other
// rules.
type Backtest struct {
	Service    string         `json:"service"`
	From       time.Time      `json:"from"`
	Until      time.Time      `json:"until"`
	Every      string         `json:"every"`
	Horizon    string         `json:"horizon"`
	Forecaster string         `json:"forecaster"`
	Rules      []RuleOutcome  `json:"rules"`
	Reviews    []BacktestStep `json:"reviews"`
	Assumed    []string       `json:"assumed"`
}

// BacktestStep is one review of a Backtest: its planned and actual load. Rates are the highest of any
// minute, summed over all models and regions: PlannedPeakTPS that of the planned load, PeakTPS that
// of the actual load. PeakTPS is nil where the actual load is unknown.
// Replicas is the count after the review, Changed the number that it started and stopped.
type BacktestStep struct {
	At             time.Time   `json:"at"`
	Status         SolveStatus `json:"status"`
	PlannedPeakTPS float64     `json:"forecast_peak_tps"`
	PeakTPS        *float64    `json:"peak_tps"`
	Replicas       int         `json:"replicas"`
	Changed        int         `json:"changed"`
	CostPerHour    float64     `json:"cost_per_hour"`
}
