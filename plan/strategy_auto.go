package plan

import (
	"cmp"
	"fmt"
	"math"
	"time"
)

// Parameters of auto, tuned on Monday to Wednesday of a generated week and of the published one.
const (
	// autoPool is the maximum efficiency gain of replicas that share load, relative to single ones.
	autoPool = 0.3
	// autoLocal is the share of a region's load that its own replicas serve; the remainder may be
	// served by any replica with free capacity.
	autoLocal = 0.7
	// autoLead is the forecast's lead time: replicas requested now are ready by then, from the spot
	// pool or redeployed.
	autoLead = 10 * time.Minute
	// autoGrowth bounds the growth that the forecast may add to the current load.
	autoGrowth = 1.5
	// autoDrift is the ratio of load and forecast, in either direction, from which the forecast is
	// ignored.
	autoDrift = 1.5
	// autoFull is the memory utilisation, counting starting replicas, above which replicas are
	// added whatever the load. No replica is removed when that would raise it above autoRoom.
	autoFull = 0.90
	autoRoom = 0.85
	// autoQueue is the number of requests without a first token allowed per ready replica. Above
	// it, the endpoint grows by the factor autoRescue.
	autoQueue  = 4
	autoRescue = 0.5
	// autoCooldown is how long fewer replicas must have sufficed before any is removed: about the
	// time to get one back.
	autoCooldown = 90 * time.Second
	// autoSmooth is the time constant of load smoothing. Changes shorter than a replica's start-up
	// need no reaction.
	autoSmooth = 2 * time.Minute
)

// auto follows the interactive load, every few seconds and over all regions of a model together,
// and uses the forecast where it helps. It differs from LT-UA in seven ways:
//
//   - it sizes for the interactive load (tokens a second over a replica's throughput), not for
//     memory, which deferred work fills up, and adds all missing replicas at once;
//   - a large pool is filled further than a small one, because random variation averages out in it;
//   - the fill level is corrected by results, until the allowed share of first tokens is late: see
//     filling;
//   - each region has replicas for autoLocal of its load, and the remainder run where the shortfall
//     is highest, so that three regions do not round up three times;
//   - the forecast contributes the growth expected within autoLead; a forecast that differs from
//     the load by more than autoDrift is ignored immediately, not only in the last 20 minutes of the
//     hour;
//   - queued requests mean that past load was not served and has to be worked off in addition to
//     new load: the count grows by half, once the previously requested replicas have started;
//   - replicas are removed after autoCooldown in which they were not needed.
//
// Memory is the safety net: above autoFull replicas are added in any case. Without a plan it uses
// only memory and queues.
type auto struct {
	options StrategyOptions
	seen    map[key]*autoState
	fills   map[key]*filling // by model and pool
}

// autoState is the state kept per endpoint.
type autoState struct {
	at     time.Duration
	load   float64 // in replicas, smoothed
	known  bool    // load has a value
	enough time.Duration
	spare  int          // the smallest excess since enough
	firsts *FirstTokens // at the previous step that reported them
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

// sharing returns the key of the endpoints that share a load: those of a model in all regions.
func (e *Endpoint) sharing() key { return key{model: e.Model, pool: e.Pool} }

// learn processes the first tokens since the previous step, over all regions: requests go where
// there is capacity.
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

// state returns the state of an endpoint.
func (s *auto) state(now time.Duration, e *Endpoint) *autoState {
	st := s.seen[e.key()]
	if st == nil {
		st = &autoState{at: now, enough: now, spare: math.MaxInt}
		s.seen[e.key()] = st
	}
	return st
}

// observe updates the smoothed load of an endpoint.
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

// growth returns the factor by which the load is expected to rise within autoLead: 1 where the
// forecast does not match the load.
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

// pooled returns the number of replicas that serve a load given in single replicas: n replicas that
// share load serve more than n times one, because random variation averages out.
func pooled(load float64) float64 {
	return load / (1 + autoPool*(1-1/math.Sqrt(math.Max(load, 1))))
}

// spread adds replicas until those of each model serve its load over all regions, each where the
// shortfall is highest.
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

// byMemory returns the number of replicas that brings memory utilisation to a share; the current
// count where utilisation is unknown.
func (e *Endpoint) byMemory(share float64) int {
	if e.Utilisation == nil {
		return e.count()
	}
	return int(math.Ceil(*e.Utilisation * float64(e.Ready) / share))
}

// guard bounds a need by queues, memory and the endpoint's limits, and returns the deciding reason.
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

// queued reports whether more requests wait than starting replicas explain.
func (e *Endpoint) queued() bool {
	return e.Waiting != nil && e.Starting == 0 && *e.Waiting > autoQueue*e.Ready
}

// change returns the number of replicas to add, given the current excess (or, when negative,
// shortfall).
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
