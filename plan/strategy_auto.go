package plan

import (
	"fmt"
	"math"
	"time"
)

// How auto works; chosen on the Tuesday and Wednesday of a generated week.
const (
	// autoFill is the interactive load to have on a replica, by what it carries: a
	// little more than the plan puts there, because auto looks every few seconds.
	autoFill = 1.15
	// autoLocal is the share of a region's load that its own replicas carry; the rest
	// may be carried where a replica has room.
	autoLocal = 0.7
	// autoLead is how far ahead the forecast is read: what is asked for now serves
	// by then, from the spot pool or redeployed.
	autoLead = 10 * time.Minute
	// autoGrowth bounds what the forecast may add to the load that is there.
	autoGrowth = 1.5
	// autoDrift is from which ratio of load and forecast, either way, on the
	// forecast is not believed.
	autoDrift = 1.5
	// autoFull is the memory utilisation, replicas that are starting counted, above
	// which more are added whatever the load says; none is given up that would bring
	// it above autoRoom.
	autoFull = 0.90
	autoRoom = 0.85
	// autoPatience is for how long fewer replicas must have been enough before any
	// is given up.
	autoPatience = 4 * time.Minute
	// autoRise smooths the load upwards, autoFall downwards: time constants.
	autoRise = 20 * time.Second
	autoFall = 2 * time.Minute
)

// auto follows the interactive load itself, every few seconds and over all regions
// of a model together, and uses the forecast where it helps. It differs from LT-UA
// in four ways:
//
//   - it counts what interactive load needs (tokens a second over what a replica
//     carries), not the memory that deferred work fills up, and adds all that is
//     missing at once;
//   - each region has replicas for autoLocal of its load, and the rest stand where
//     most is missing, so that three regions do not round up three times;
//   - the forecast says how much more is expected within autoLead; one that differs
//     from the load by more than autoDrift is left out of account at once, not in
//     the last 20 minutes of the hour only;
//   - replicas are given up after autoPatience in which they were not needed.
//
// Memory is its safety net: above autoFull more are added in any case. Without a
// plan it goes by memory alone.
type auto struct {
	options StrategyOptions
	seen    map[key]*autoState
}

// autoState is what is remembered of an endpoint.
type autoState struct {
	at     time.Duration
	load   float64 // in replicas, smoothed
	known  bool    // load is
	enough time.Duration
	spare  int // the least that was too much since enough
}

func newAuto(o StrategyOptions) *auto { return &auto{o, map[key]*autoState{}} }

func (*auto) Name() string { return "auto" }

func (s *auto) Step(now time.Duration, f *Fleet) []Scaling {
	loads := make([]float64, len(f.Endpoints))
	needs := make([]int, len(f.Endpoints))
	for i := range f.Endpoints {
		e := &f.Endpoints[i]
		st := s.observe(now, e)
		loads[i] = st.load * e.growth(now) / autoFill
		needs[i] = max(int(math.Ceil(autoLocal*loads[i])), e.Min)
		if !st.known {
			needs[i] = e.byMemory(autoRoom)
			loads[i] = float64(needs[i])
		}
	}
	spread(f, loads, needs)
	g := newGrants(f, s.options)
	for i := range f.Endpoints {
		e := &f.Endpoints[i]
		need := e.guard(needs[i])
		if n := s.seen[e.key()].change(now, e.count()-need); n != 0 {
			g.want(i, n, fmt.Sprintf("load of %.1f replicas: want %d, have %d", loads[i], need, e.count()))
		}
	}
	return g.out
}

// observe takes in an endpoint's load: rising soon, falling late.
func (s *auto) observe(now time.Duration, e *Endpoint) *autoState {
	st := s.seen[e.key()]
	if st == nil {
		st = &autoState{at: now, enough: now, spare: math.MaxInt}
		s.seen[e.key()] = st
	}
	if e.Observed != nil && e.Target != nil && e.Target.ReplicaTPS > 0 {
		load := *e.Observed / e.Target.ReplicaTPS
		over := autoRise
		if load < st.load {
			over = autoFall
		}
		if !st.known {
			st.load, st.known = load, true
		}
		st.load += (load - st.load) * -math.Expm1(-float64(now-st.at)/float64(over))
	}
	st.at = now
	return st
}

// growth is by what factor the load is expected to rise within autoLead: 1 where
// the forecast is not in line with the load.
func (e *Endpoint) growth(now time.Duration) float64 {
	here, ok := e.Target.at(now)
	ahead, _ := e.Target.at(now + autoLead)
	if !ok || e.Observed == nil || here <= 0 || *e.Observed <= 0 {
		return 1
	}
	if drift := *e.Observed / here; drift > autoDrift || drift < 1/autoDrift {
		return 1
	}
	return min(max(ahead/here, 1), autoGrowth)
}

// spread adds replicas until those of each model carry its load over all regions,
// each where most is missing.
func spread(f *Fleet, loads []float64, needs []int) {
	done := map[key]bool{}
	for first := range f.Endpoints {
		of := key{model: f.Endpoints[first].Model, pool: f.Endpoints[first].Pool}
		if done[of] {
			continue
		}
		done[of] = true
		var same []int
		load, have := 0.0, 0
		for i := first; i < len(f.Endpoints); i++ {
			if e := &f.Endpoints[i]; e.Model == of.model && e.Pool == of.pool {
				same, load, have = append(same, i), load+loads[i], have+needs[i]
			}
		}
		for ; float64(have) < load; have++ {
			short := same[0]
			for _, i := range same {
				if loads[i]-float64(needs[i]) > loads[short]-float64(needs[short]) {
					short = i
				}
			}
			needs[short]++
		}
	}
}

// byMemory is how many replicas bring memory utilisation to a share; as many as
// there are where it is not known.
func (e *Endpoint) byMemory(share float64) int {
	if e.Utilisation == nil {
		return e.count()
	}
	return int(math.Ceil(*e.Utilisation * float64(e.Ready) / share))
}

// guard bounds a need by memory, and by the endpoint's limits.
func (e *Endpoint) guard(need int) int {
	have := e.count()
	if full := e.byMemory(autoFull); full > have {
		need = max(need, full)
	} else if need < have {
		need = max(need, min(have, e.byMemory(autoRoom)))
	}
	return min(max(need, e.Min), e.Max)
}

// change is by how much to change, with so many replicas too many (or, negative,
// missing).
func (st *autoState) change(now time.Duration, tooMany int) int {
	if tooMany <= 0 {
		st.enough, st.spare = now, math.MaxInt
		return -tooMany
	}
	st.spare = min(st.spare, tooMany)
	if now-st.enough < autoPatience {
		return 0
	}
	n := st.spare
	st.enough, st.spare = now, math.MaxInt
	return -n
}
