package plan

import (
	"encoding/json"
	"fmt"
	"math"
	"time"
)

// LoadTrace is the load of a service by minute, with the prices and start-up times of replicas, for
// replaying plans. It uses the names, ReplicaTPS, Capacity, CapacityType, Min and Max of Problem, and its
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

// The rules that are compared: the sources of target counts.
const (
	RulePredictive = "predictive" // the strategy predictive, which follows the load between plans
	RuleHourly     = "hourly"     // the counts of each plan, kept until the next one
	RuleConstant   = "constant"   // LoadTrace.ConstantCounts
	RuleThreshold  = "threshold"  // LoadTrace.ThresholdCounts
	RuleActual     = "actual"     // BacktestOptions.ActualCounts, if known
)

// formerRules are the former names of rules. JSON contains them beside the names, in a former key.
var formerRules = map[string]string{RulePredictive: "plan", RuleThreshold: "reactive", RuleActual: "real"}

// RuleOutcome is the cost and overload of replaying one rule's target counts over a past load.
type RuleOutcome struct {
	// Name is the rule, one of the Rule constants.
	Name string `json:"name"`
	// CostUSD is the billed price of all replicas, from launch to stop, and of reserved capacity all the time.
	CostUSD      float64 `json:"cost_usd"`
	ReplicaHours float64 `json:"replica_hours"`
	// MaxReplicas is the highest count at a time, including starting replicas.
	MaxReplicas int `json:"max_replicas"`
	// OverloadMinutes counts the minutes in which a model's load over all regions was above the
	// capacity of its ready replicas. OverloadTokens is the number of prompt tokens above it,
	// OverloadShare their share of all.
	OverloadMinutes int      `json:"overload_minutes"`
	OverloadTokens  float64  `json:"overload_tokens"`
	OverloadShare   *float64 `json:"overload_share"`
	// ForwardedTokens is the number of prompt tokens served by other regions than their own.
	ForwardedTokens float64 `json:"forwarded_tokens"`
	// Started and Stopped count replicas.
	Started int `json:"started"`
	Stopped int `json:"stopped"`
}

// MarshalJSON adds the former keys, and the former name of the rule.
func (o RuleOutcome) MarshalJSON() ([]byte, error) {
	type plain RuleOutcome
	rule := o.Name
	if former, ok := formerRules[rule]; ok {
		rule = former
	}
	return json.Marshal(struct {
		plain
		OldRule            string   `json:"rule"`
		OldMaxReplicas     int      `json:"most_replicas"`
		OldOverloadMinutes int      `json:"minutes_above"`
		OldOverloadTokens  float64  `json:"tokens_above"`
		OldOverloadShare   *float64 `json:"share_above"`
		OldForwardedTokens float64  `json:"tokens_sent"`
	}{plain(o), rule, o.MaxReplicas, o.OverloadMinutes, o.OverloadTokens, o.OverloadShare, o.ForwardedTokens})
}

// minutes returns the length of the trace.
func (p *LoadTrace) minutes() int { return len(p.Load[0][0]) }

// Replay replays target counts, sorted by minute, and returns their outcome. The first must be for
// minute 0; its replicas count as ready. Replay fails when the target counts are not sorted.
func (p *LoadTrace) Replay(rule string, targets []TargetCounts) (RuleOutcome, error) {
	if len(targets) == 0 || targets[0].Minute != 0 {
		return RuleOutcome{}, fmt.Errorf("replaying %s: the first target counts must be for minute 0", rule)
	}
	rp := newReplay(p, rule, targets[0].Counts)
	next := 1
	for m := range p.minutes() {
		rp.now = m
		for next < len(targets) && targets[next].Minute <= m {
			if targets[next].Minute < m {
				return RuleOutcome{}, fmt.Errorf("replaying %s: target counts must be sorted by minute: %d follows %d", rule, targets[next].Minute, m)
			}
			rp.setTargets(targets[next].Counts)
			next++
		}
		rp.stopDue()
		rp.advance()
	}
	return rp.replayResult(), nil
}

// groupState is the replicas of one model in one region on one GPU: the ready ones, and the starting ones
// by the minute they become ready.
type groupState struct {
	ready    int
	starting []startingGroup
}

// startingGroup is n replicas that become ready in minute at.
type startingGroup struct{ at, n int }

func (c *groupState) count() int {
	n := c.ready
	for _, b := range c.starting {
		n += b.n
	}
	return n
}

// scale starts d replicas that become ready in minute at, or stops -d of them: first those that would
// be ready last.
func (c *groupState) scale(d, at int) {
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
func (c *groupState) advance(minute int) {
	for len(c.starting) > 0 && c.starting[0].at <= minute {
		c.ready, c.starting = c.ready+c.starting[0].n, c.starting[1:]
	}
}

// replay is the state of a replay: the replicas at a minute, and the outcome so far.
type replay struct {
	*LoadTrace
	now    int
	groups [][][]groupState
	stops  []pendingStop
	out    RuleOutcome
	tokens float64
}

func newReplay(p *LoadTrace, rule string, want [][][]int) *replay {
	rp := &replay{LoadTrace: p, out: RuleOutcome{Name: rule}, groups: make([][][]groupState, len(want))}
	for i := range want {
		rp.groups[i] = make([][]groupState, len(want[i]))
		for j := range want[i] {
			rp.groups[i][j] = make([]groupState, len(want[i][j]))
			for k, n := range want[i][j] {
				rp.groups[i][j][k].ready = n
			}
		}
	}
	return rp
}

// setTargets starts and stops replicas to reach the desired counts. A model's replicas stop only when
// the replicas that replace them are ready.
func (rp *replay) setTargets(want [][][]int) {
	rp.stops = rp.stops[:0]
	for i := range want {
		wait := 0
		for j := range want[i] {
			for k, n := range want[i][j] {
				if d := n - rp.groups[i][j][k].count(); d > 0 {
					rp.scale(i, j, k, d)
					wait = max(wait, rp.StartUp[j])
				}
			}
		}
		for j := range want[i] {
			for k, n := range want[i][j] {
				if d := n - rp.groups[i][j][k].count(); d < 0 {
					rp.stops = append(rp.stops, pendingStop{rp.now + wait, i, j, k, d})
				}
			}
		}
	}
}

// pendingStop is the replicas to stop in a minute; n is negative.
type pendingStop struct{ at, i, j, k, n int }

// stopDue stops the replicas that are due.
func (rp *replay) stopDue() {
	later := rp.stops[:0]
	for _, s := range rp.stops {
		if s.at > rp.now {
			later = append(later, s)
		} else {
			rp.scale(s.i, s.j, s.k, s.n)
		}
	}
	rp.stops = later
}

// scale starts d replicas, or stops -d of them.
func (rp *replay) scale(i, j, k, d int) {
	if d > 0 {
		rp.out.Started += d
	} else {
		rp.out.Stopped -= d
	}
	rp.groups[i][j][k].scale(d, rp.now+rp.StartUp[j])
}

// advance advances the replay by a minute.
func (rp *replay) advance() {
	all := 0
	for j := range rp.Problem.Regions {
		for k := range rp.Problem.GPUs {
			count := 0
			for i := range rp.groups {
				c := &rp.groups[i][j][k]
				c.advance(rp.now)
				count += c.count()
			}
			all += count
			if rp.Problem.Reserved(k) {
				count = limitOr(rp.Problem.Capacity, j, k, count)
			}
			rp.out.CostUSD += rp.Price[j][k] * float64(count) / 60
		}
	}
	rp.out.ReplicaHours += float64(all) / 60
	rp.out.MaxReplicas = max(rp.out.MaxReplicas, all)
	rp.addOverload()
}

// addOverload compares the minute's load with the ready capacity.
func (rp *replay) addOverload() {
	above := false
	for i := range rp.groups {
		var load, capacity, own float64
		known := false
		for j := range rp.groups[i] {
			has := rp.readyCapacity(i, j)
			capacity += has
			if v := rp.Load[i][j][rp.now]; !math.IsNaN(v) {
				known = true
				load += v
				own += math.Min(v, has)
			}
		}
		if !known {
			continue
		}
		rp.tokens += 60 * load
		rp.out.ForwardedTokens += 60 * (math.Min(load, capacity) - own)
		if !meetsNeed(capacity, load) {
			above = true
			rp.out.OverloadTokens += 60 * (load - capacity)
		}
	}
	if above {
		rp.out.OverloadMinutes++
	}
}

// readyCapacity returns the throughput of model i's ready replicas in region j.
func (rp *replay) readyCapacity(i, j int) float64 {
	var sum float64
	for k := range rp.groups[i][j] {
		sum += rp.Problem.ReplicaTPS[i][k] * float64(rp.groups[i][j][k].ready)
	}
	return sum
}

func (rp *replay) replayResult() RuleOutcome {
	if rp.tokens > 0 {
		share := rp.out.OverloadTokens / rp.tokens
		rp.out.OverloadShare = &share
	}
	return rp.out
}

// Backtest is the cost and overload of following plans over a past period, compared with other
// rules. Every and Horizon are durations as text, such as 1h. Assumed lists the assumptions.
type Backtest struct {
	Service    string         `json:"service"`
	From       time.Time      `json:"from"`
	To         time.Time      `json:"until"`
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
