package plan

import (
	"cmp"
	"fmt"
	"math"
	"time"
)

// How auto works; chosen on Monday to Wednesday of a generated week and of the
// published one.
const (
	// autoPool is what replicas that share their load gain over single ones, at most.
	autoPool = 0.3
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
	// autoQueue is how many requests may be without a first token for each ready
	// replica; where there are more, the endpoint grows by autoRescue of itself.
	autoQueue  = 4
	autoRescue = 0.5
	// autoCooldown is for how long fewer replicas must have been enough before any
	// is given up: about what it takes to have one back.
	autoCooldown = 90 * time.Second
	// autoSmooth is the time constant that smooths the load. What is over sooner than a
	// replica starts need not be followed.
	autoSmooth = 2 * time.Minute
)

// auto follows the interactive load itself, every few seconds and over all regions
// of a model together, and uses the forecast where it helps. It differs from LT-UA
// in seven ways:
//
//   - it counts what interactive load needs (tokens a second over what a replica
//     carries), not the memory that deferred work fills up, and adds all that is
//     missing at once;
//   - a large pool is filled further than a small one, since chance evens out in it;
//   - how far it is filled is corrected by what came of it, until as many first tokens
//     are late as may be: see filling;
//   - each region has replicas for autoLocal of its load, and the rest stand where
//     most is missing, so that three regions do not round up three times;
//   - the forecast says how much more is expected within autoLead; one that differs
//     from the load by more than autoDrift is left out of account at once, not in
//     the last 20 minutes of the hour only;
//   - where requests queue, load came that was not carried and has to be worked off
//     beside what comes: half as many replicas again are asked for, once those
//     asked for before have started;
//   - replicas are given up after autoCooldown in which they were not needed.
//
// Memory is its safety net: above autoFull more are added in any case. Without a
// plan it goes by memory and queues alone.
type auto struct {
	options StrategyOptions
	seen    map[key]*autoState
	fills   map[key]*filling // by model and pool
}

// autoState is what is remembered of an endpoint.
type autoState struct {
	at     time.Duration
	load   float64 // in replicas, smoothed
	known  bool    // load is
	enough time.Duration
	spare  int          // the least that was too much since enough
	firsts *FirstTokens // as of the look before that told them
}

func newAuto(o StrategyOptions) *auto {
	o.Late = cmp.Or(o.Late, DefaultLate)
	return &auto{o, map[key]*autoState{}, map[key]*filling{}}
}

func (*auto) Name() string { return "auto" }

func (s *auto) Step(now time.Duration, f *Fleet) []Scaling {
	loads := make([]float64, len(f.Endpoints))
	needs := make([]int, len(f.Endpoints))
	s.learn(now, f)
	for i := range f.Endpoints {
		e := &f.Endpoints[i]
		st := s.observe(now, e)
		loads[i] = pooled(st.load*e.growth(now)) / s.fills[e.sharing()].factor()
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
		need, why := e.guard(needs[i], loads[i])
		if n := s.seen[e.key()].change(now, e.count()-need); n != 0 {
			g.want(i, n, fmt.Sprintf("%s: want %d, have %d", why, need, e.count()))
		}
	}
	return g.out
}

// sharing names the endpoints that share a load: those of a model in all regions.
func (e *Endpoint) sharing() key { return key{model: e.Model, pool: e.Pool} }

// learn takes in the first tokens that came since the look before, over all regions:
// requests go where there is room.
func (s *auto) learn(now time.Duration, f *Fleet) {
	came := map[key]FirstTokens{}
	for i := range f.Endpoints {
		e := &f.Endpoints[i]
		k, st := e.sharing(), s.state(now, e)
		if s.fills[k] == nil {
			s.fills[k] = &filling{late: s.options.Late, at: now}
		}
		if e.Fast == nil {
			continue
		}
		if st.firsts != nil {
			n, sum := e.Fast.since(*st.firsts), came[k]
			came[k] = FirstTokens{sum.All + n.All, sum.Late + n.Late}
		}
		firsts := *e.Fast
		st.firsts = &firsts
	}
	for k, n := range came {
		s.fills[k].learn(now, n)
	}
}

// state is what is remembered of an endpoint.
func (s *auto) state(now time.Duration, e *Endpoint) *autoState {
	st := s.seen[e.key()]
	if st == nil {
		st = &autoState{at: now, enough: now, spare: math.MaxInt}
		s.seen[e.key()] = st
	}
	return st
}

// observe takes in an endpoint's load.
func (s *auto) observe(now time.Duration, e *Endpoint) *autoState {
	st := s.state(now, e)
	if e.Observed != nil && e.Target != nil && e.Target.ReplicaTPS > 0 {
		load := *e.Observed / e.Target.ReplicaTPS
		if !st.known {
			st.load, st.known = load, true
		}
		st.load += (load - st.load) * -math.Expm1(-float64(now-st.at)/float64(autoSmooth))
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

// pooled is how many replicas carry a load, given in replicas of one alone: n that
// share what comes carry more than n times one, since chance evens out between
// them.
func pooled(load float64) float64 {
	return load / (1 + autoPool*(1-1/math.Sqrt(math.Max(load, 1))))
}

// spread adds replicas until those of each model carry its load over all regions,
// each where most is missing.
func spread(f *Fleet, loads []float64, needs []int) {
	done := map[key]bool{}
	for first := range f.Endpoints {
		of := f.Endpoints[first].sharing()
		if done[of] {
			continue
		}
		done[of] = true
		var same []int
		load, have := 0.0, 0
		for i := first; i < len(f.Endpoints); i++ {
			if f.Endpoints[i].sharing() == of {
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

// guard bounds a need by queues, memory and the endpoint's limits, and says what
// decides.
func (e *Endpoint) guard(need int, load float64) (int, string) {
	have, why := e.count(), fmt.Sprintf("load of %.1f replicas", load)
	if rescue := have + int(math.Ceil(autoRescue*float64(have))); e.queued() && rescue > need {
		need, why = rescue, fmt.Sprintf("%d requests without a first token", *e.Waiting)
	}
	switch {
	case e.Utilisation == nil:
		return min(max(need, have, e.Min), e.Max), why
	case e.byMemory(autoFull) > max(have, need):
		need, why = e.byMemory(autoFull), memoryUsed(*e.Utilisation)
	case min(have, e.byMemory(autoRoom)) > need:
		need, why = min(have, e.byMemory(autoRoom)), memoryUsed(*e.Utilisation)
	}
	return min(max(need, e.Min), e.Max), why
}

// queued says whether more requests wait than replicas that are starting explain.
func (e *Endpoint) queued() bool {
	return e.Waiting != nil && e.Starting == 0 && *e.Waiting > autoQueue*e.Ready
}

// change is by how much to change, with so many replicas too many (or, negative,
// missing).
func (st *autoState) change(now time.Duration, tooMany int) int {
	if tooMany <= 0 {
		st.enough, st.spare = now, math.MaxInt
		return -tooMany
	}
	st.spare = min(st.spare, tooMany)
	if now-st.enough < autoCooldown {
		return 0
	}
	n := st.spare
	st.enough, st.spare = now, math.MaxInt
	return -n
}
