package plan

import (
	"cmp"
	"fmt"
	"math"
	"time"

	"skyserve/internal/printable"
)

// Parameters of auto, tuned on Monday to Wednesday of a generated week and of SageServe's
// published week.
const (
	// poolGain is the maximum efficiency gain of replicas that share load, relative to single ones.
	poolGain = 0.3
	// localShare is the share of a region's load that its own replicas serve; the remainder may be
	// served by any replica with free capacity.
	localShare = 0.7
	// forecastLead is the forecast's lead time: the time in which a reclaimed or redeployed replica is ready.
	forecastLead = 10 * time.Minute
	// maxGrowthFactor bounds the growth that the forecast may add to the current load.
	maxGrowthFactor = 1.5
	// maxForecastRatio is the ratio of load and forecast, in either direction, from which the forecast is
	// ignored.
	maxForecastRatio = 1.5
	// maxMemoryUtilisation is the memory utilisation, counting starting replicas, above which replicas are
	// added whatever the load. No replica is removed when that would raise it above targetMemoryUtilisation.
	maxMemoryUtilisation    = 0.90
	targetMemoryUtilisation = 0.85
	// queuePerReplica is the number of requests without a first token allowed per ready replica. Above
	// it, the endpoint grows by the share queueGrowth of its replicas.
	queuePerReplica = 4
	queueGrowth     = 0.5
	// burstRatio is the ratio of a model's load and its forecast from which the load is a burst: more than the
	// noise of a minute.
	burstRatio = 2
	// burstUtilisation is the share of its throughput at which a replica is planned to run in a burst: the
	// remainder serves the requests that queued until replicas started.
	burstUtilisation = scaleOutThreshold
	// scaleInDelay is how long fewer replicas must have sufficed before any is removed: about the
	// time to get one back.
	scaleInDelay = 90 * time.Second
	// loadSmoothing is the time constant of load smoothing. Changes shorter than a replica's start-up
	// need no reaction.
	loadSmoothing = 2 * time.Minute
)

// auto follows the interactive load, every few seconds and over all regions of a model together,
// and uses the forecast where it helps. It differs from LT-UA in eight ways:
//
//   - it sizes for the interactive load (tokens per second over a replica's throughput), not for
//     memory, which deferred work fills up, and adds all missing replicas at once;
//   - many replicas are filled further than few, because random variation averages out (pooledReplicas);
//   - the fill level falls with each first token that is late and rises with each in time: see fillLevel;
//   - each region has replicas for localShare of its load, and the remainder run where the shortfall
//     is highest, so that three regions do not round up three times;
//   - the forecast contributes the growth expected within forecastLead; a forecast that differs from
//     the load by more than maxForecastRatio is ignored at any time, not only at the end of the planned period;
//   - a load of a model above burstRatio times its forecast is a burst: its last minute counts if it is above the mean of
//     several, and there are at least enough replicas to run at burstUtilisation;
//   - queued requests mean that past load was not served and has to be worked off in addition to
//     new load: the count grows by half, once the previously requested replicas have started;
//   - replicas are removed after scaleInDelay in which they were not needed.
//
// Memory is the safety net: above maxMemoryUtilisation replicas are added in any case. Until an endpoint has both a plan
// and a known load for the first time, only memory and queues determine its size. Later, while one of them is missing,
// its last load stays in use.
type auto struct {
	options    StrategyOptions
	states     map[endpointKey]*endpointState
	fillLevels map[endpointKey]*fillLevel // by model and silo
}

// endpointState is the state kept per endpoint.
type endpointState struct {
	at              time.Duration // when load was updated
	load            float64       // in replicas, smoothed
	known           bool          // load has a value; never reset
	sufficientSince time.Duration // since when fewer replicas suffice
	minExcess       int           // the smallest excess since sufficientSince
	lastFirstTokens *FirstTokens  // at the previous step that reported them
}

func newAuto(o StrategyOptions) *auto {
	o.MaxLateShare = cmp.Or(o.MaxLateShare, DefaultMaxLateShare)
	return &auto{o, map[endpointKey]*endpointState{}, map[endpointKey]*fillLevel{}}
}

func (*auto) Name() string { return "auto" }

func (s *auto) Step(now time.Duration, in *StrategyInput) []Scaling {
	loads := make([]float64, len(in.Endpoints))
	needs := make([]int, len(in.Endpoints))
	s.updateFillLevels(now, in)
	bursts := burstsOf(now, in)
	for i := range in.Endpoints {
		e := &in.Endpoints[i]
		st := s.updateLoad(now, e)
		loads[i] = pooledReplicas(st.load*e.expectedGrowth(now)) / s.fillLevels[e.loadKey()].factor()
		if load, ok := e.recentTPS(); ok && bursts[e.loadKey()] {
			loads[i] = max(loads[i], load/e.Target.ReplicaTPS/burstUtilisation)
		}
		needs[i] = max(int(math.Ceil(localShare*loads[i])), e.Min)
		if !st.known {
			needs[i] = e.countForMemory(targetMemoryUtilisation)
			loads[i] = float64(needs[i])
		}
	}
	spreadReplicas(in, loads, needs)
	al := newAllocator(in, s.options)
	for i := range in.Endpoints {
		e := &in.Endpoints[i]
		st := s.states[e.endpointKey()]
		need, why := e.clampNeed(needs[i], e.describeNeed(loads[i], st.known))
		if n := st.replicasToAdd(now, e.count()-need); n != 0 {
			al.request(i, n, fmt.Sprintf("%s: %d required, %d current", why, need, e.count()))
		}
	}
	return al.out
}

// loadKey returns the key of the endpoints that share a load: those of a model in all regions.
func (e *ScaledEndpoint) loadKey() endpointKey { return endpointKey{model: e.Model, silo: e.Silo} }

// updateFillLevels processes the first tokens since the previous step, over all regions: requests go where
// there is capacity.
func (s *auto) updateFillLevels(now time.Duration, in *StrategyInput) {
	arrived := map[endpointKey]FirstTokens{}
	for i := range in.Endpoints {
		e := &in.Endpoints[i]
		k, st := e.loadKey(), s.stateOf(now, e)
		if s.fillLevels[k] == nil {
			s.fillLevels[k] = &fillLevel{targetLateShare: lateAim * s.options.MaxLateShare, at: now}
		}
		if e.FastFirstTokens == nil {
			continue
		}
		if st.lastFirstTokens != nil {
			n, sum := e.FastFirstTokens.since(*st.lastFirstTokens), arrived[k]
			arrived[k] = FirstTokens{sum.Total + n.Total, sum.Late + n.Late}
		}
		firsts := *e.FastFirstTokens
		st.lastFirstTokens = &firsts
	}
	for k, n := range arrived {
		s.fillLevels[k].update(now, n)
	}
}

// stateOf returns the state of an endpoint.
func (s *auto) stateOf(now time.Duration, e *ScaledEndpoint) *endpointState {
	st := s.states[e.endpointKey()]
	if st == nil {
		st = &endpointState{at: now, sufficientSince: now, minExcess: math.MaxInt}
		s.states[e.endpointKey()] = st
	}
	return st
}

// updateLoad updates the smoothed load of an endpoint.
func (s *auto) updateLoad(now time.Duration, e *ScaledEndpoint) *endpointState {
	st := s.stateOf(now, e)
	if e.ObservedTPS != nil && e.Target != nil && e.Target.ReplicaTPS > 0 {
		load := *e.ObservedTPS / e.Target.ReplicaTPS
		if !st.known {
			st.load, st.known = load, true
		}
		st.load += (load - st.load) * -math.Expm1(-float64(now-st.at)/float64(loadSmoothing))
	}
	st.at = now
	return st
}

// expectedGrowth returns the factor by which the load is expected to rise within forecastLead: 1 where the
// forecast does not match the load.
func (e *ScaledEndpoint) expectedGrowth(now time.Duration) float64 {
	here, ok := e.Target.forecastAt(now)
	ahead, _ := e.Target.forecastAt(now + forecastLead)
	if !ok || e.ObservedTPS == nil || here <= 0 || *e.ObservedTPS <= 0 {
		return 1
	}
	if drift := *e.ObservedTPS / here; drift > maxForecastRatio || drift < 1/maxForecastRatio {
		return 1
	}
	return min(max(ahead/here, 1), maxGrowthFactor)
}

// burstsOf returns the models and silos whose load over all regions is a burst.
func burstsOf(now time.Duration, in *StrategyInput) map[endpointKey]bool {
	excess := map[endpointKey]float64{}
	for i := range in.Endpoints {
		e := &in.Endpoints[i]
		if load, ok := e.recentTPS(); ok {
			forecast, _ := e.Target.forecastAt(now)
			excess[e.loadKey()] += load - burstRatio*forecast
		}
	}
	out := map[endpointKey]bool{}
	for k, tps := range excess {
		out[k] = tps > 0
	}
	return out
}

// recentTPS returns the load of the last minute, or the observed one if that is higher. ok is false if the load or its
// forecast is unknown.
func (e *ScaledEndpoint) recentTPS() (tps float64, ok bool) {
	if _, planned := e.Target.forecastAt(0); !planned || e.ObservedTPS == nil || e.Target.ReplicaTPS <= 0 {
		return 0, false
	}
	tps = *e.ObservedTPS
	if e.LastMinuteTPS != nil {
		tps = max(tps, *e.LastMinuteTPS)
	}
	return tps, true
}

// pooledReplicas returns the number of replicas that serve a load given in single replicas: n replicas that
// share load serve more than n times one, because random variation averages out.
func pooledReplicas(load float64) float64 {
	return load / (1 + poolGain*(1-1/math.Sqrt(math.Max(load, 1))))
}

// spreadReplicas adds replicas until those of each model serve its load over all regions, each where the
// shortfall is highest.
func spreadReplicas(in *StrategyInput, loads []float64, needs []int) {
	done := map[endpointKey]bool{}
	for first := range in.Endpoints {
		of := in.Endpoints[first].loadKey()
		if done[of] {
			continue
		}
		done[of] = true
		var same []int
		load, have := 0.0, 0
		for i := first; i < len(in.Endpoints); i++ {
			if in.Endpoints[i].loadKey() == of {
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

// countForMemory returns the number of replicas that brings memory utilisation to a share; the current
// count where utilisation is unknown.
func (e *ScaledEndpoint) countForMemory(share float64) int {
	if e.Utilisation == nil {
		return e.count()
	}
	return int(math.Ceil(*e.Utilisation * float64(e.Ready) / share))
}

// describeNeed returns the reason of a need: the load in replicas, or what decides until a load is known.
func (e *ScaledEndpoint) describeNeed(load float64, known bool) string {
	switch {
	case known:
		return fmt.Sprintf("load needs %.1f replicas", load)
	case e.Utilisation != nil:
		return "plan or load unknown, " + describeMemory(*e.Utilisation)
	}
	return "plan or load unknown"
}

// clampNeed bounds a need by queues, memory and the endpoint's limits, and returns the deciding reason. While memory
// utilisation is unknown, no replica is removed.
func (e *ScaledEndpoint) clampNeed(need int, why string) (int, string) {
	have := e.count()
	if rescue := have + int(math.Ceil(queueGrowth*float64(have))); e.hasQueue() && rescue > need {
		need, why = rescue, printable.Count(*e.Waiting, "request")+" without a first token"
	}
	switch {
	case e.Utilisation == nil:
		return min(max(need, have, e.Min), e.Max), why
	case e.countForMemory(maxMemoryUtilisation) > max(have, need):
		need, why = e.countForMemory(maxMemoryUtilisation), describeMemory(*e.Utilisation)
	case min(have, e.countForMemory(targetMemoryUtilisation)) > need:
		need, why = min(have, e.countForMemory(targetMemoryUtilisation)), describeMemory(*e.Utilisation)
	}
	return min(max(need, e.Min), e.Max), why
}

// hasQueue reports whether too many requests wait for their first token, and no replica is starting.
func (e *ScaledEndpoint) hasQueue() bool {
	return e.Waiting != nil && e.Starting == 0 && *e.Waiting > queuePerReplica*e.Ready
}

// replicasToAdd returns the change of the number of replicas: above 0 to add, below 0 to remove. tooMany is the
// current excess; below 0 it is a shortfall.
func (st *endpointState) replicasToAdd(now time.Duration, tooMany int) int {
	if tooMany <= 0 {
		st.sufficientSince, st.minExcess = now, math.MaxInt
		return -tooMany
	}
	st.minExcess = min(st.minExcess, tooMany)
	if now-st.sufficientSince < scaleInDelay {
		return 0
	}
	n := st.minExcess
	st.sufficientSince, st.minExcess = now, math.MaxInt
	return -n
}
