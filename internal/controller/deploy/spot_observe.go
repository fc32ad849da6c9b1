package deploy

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"skyserve/internal/service"
	"skyserve/provision"
	"skyserve/provision/cloud"
)

// Intervals of what clouds report about spot machines, with their reasons.
const (
	// scoresTTL is how long placement scores are cached. AWS updates them irregularly, and limits the number
	// of different requests per 24 hours: the controller repeats the same request, which does not count
	// again.
	scoresTTL = time.Hour
	// interruptionsTTL is the interval of listing interrupted machines while none has vanished. Clouds list
	// one for about an hour.
	interruptionsTTL = 10 * time.Minute
)

// spotKey identifies a spot offering.
type spotKey struct {
	region            service.Region
	zone, machineType string
}

// spotScores are the clouds' estimates for spot offerings: provision.CapacityAdvice.Score.
type spotScores map[spotKey]float64

// scoreOf returns the score of an offering; nil = unknown.
func (s spotScores) scoreOf(o provision.Offering) *float64 {
	if score, known := s[spotKey{o.Region, o.Zone, o.Type}]; known && o.Capacity == service.CapacitySpot {
		return &score
	}
	return nil
}

// spotState is the reconciler's state about the spot machines of a region.
type spotState struct {
	scoresReadAt, interruptionsReadAt time.Time
	running                           map[string]bool // handles at the last observation
}

// observeSpot reads, in every region that uses spot, the interrupted machines that the list omits, and the
// placement scores. Interrupted machines are listed at once when a spot machine has vanished, so that its
// replacement avoids the zone. Failures are returned; the earlier observations stay in force.
func (rc *Reconciler) observeSpot(ctx context.Context, bs *bundleState, s *observation) error {
	ctx, cancel := context.WithTimeoutCause(ctx, listTimeout, fmt.Errorf("no response within %s", listTimeout))
	defer cancel()
	var mu sync.Mutex
	var wg sync.WaitGroup
	var errs []error
	report := func(apply func(), err error) {
		mu.Lock()
		defer mu.Unlock()
		if apply(); err != nil {
			errs = append(errs, err)
		}
	}
	now := time.Now()
	for _, r := range s.spec.Regions {
		if !slices.Contains(r.Capacity, service.CapacitySpot) || s.unresponsive[r.Name] != nil || r.Name.Cloud() == service.CloudStatic {
			continue
		}
		state := bs.spotStateOf(r.Name)
		if state.updateRunning(s.have, r.Name) || now.Sub(state.interruptionsReadAt) > interruptionsTTL {
			state.interruptionsReadAt = now
			wg.Go(func() {
				ended, err := bs.deployer.interruptions(ctx, r.Name)
				report(func() { bs.deployer.recordEnded(ended) }, err)
			})
		}
		offers := spotOffers(s.spec, bs.deployer.offers[r.Name])
		if len(offers) > 0 && now.Sub(state.scoresReadAt) > scoresTTL {
			state.scoresReadAt = now
			wg.Go(func() {
				advice, err := bs.deployer.capacityAdvice(ctx, r.Name, offers)
				report(func() { bs.deployer.applyAdvice(r.Name, advice) }, err)
			})
		}
	}
	wg.Wait()
	return errors.Join(errs...)
}

// spotStateOf returns the state of a region.
func (bs *bundleState) spotStateOf(r service.Region) *spotState {
	if bs.spot == nil {
		bs.spot = map[service.Region]*spotState{}
	}
	if bs.spot[r] == nil {
		bs.spot[r] = &spotState{}
	}
	return bs.spot[r]
}

// updateRunning updates the running spot machines of a region and reports whether one has vanished.
func (s *spotState) updateRunning(have []provision.Object, r service.Region) (vanished bool) {
	running := map[string]bool{}
	for _, o := range have {
		if o.Region == r && o.Kind == provision.KindReplica && o.TerminatedReason == "" && o.Offering != nil && o.Offering.Capacity == service.CapacitySpot {
			running[o.Handle] = true
		}
	}
	for handle := range s.running {
		vanished = vanished || !running[handle]
	}
	s.running = running
	return vanished
}

// spotOffers returns the spot offerings of a region on which a model of the service can run.
func spotOffers(spec *service.Spec, offers provision.Offerings) provision.Offerings {
	return slices.DeleteFunc(slices.Clone(offers), func(o provision.Offering) bool {
		return o.Capacity != service.CapacitySpot || !slices.ContainsFunc(spec.Models, func(m service.Model) bool {
			return slices.ContainsFunc(m.GPUs, func(g service.GPU) bool { return g.Type == o.GPU && max(1, g.Count) == o.GPUs })
		})
	})
}

// interruptions returns the interrupted machines of a region that its cloud's list omits.
func (dp *Deployer) interruptions(ctx context.Context, r service.Region) ([]provision.Object, error) {
	reporter, ok := dp.Provider.(provision.InterruptionReporter)
	if !ok {
		return nil, nil
	}
	ended, err := reporter.Interruptions(ctx, r, dp.Spec.Name)
	return slices.DeleteFunc(ended, func(o provision.Object) bool { return o.Owner != dp.Owner || o.Kind != provision.KindReplica }), err
}

// recordEnded records interrupted machines.
func (dp *Deployer) recordEnded(ended []provision.Object) {
	for _, o := range ended {
		dp.spotHistory().AddInterrupted(o, dp.clock()())
	}
}

// capacityAdvice returns the cloud's advice for one machine of each offering: a fixed number, so that the requests
// are the same every time. A region whose cloud gives no more advice for now keeps its last advice.
func (dp *Deployer) capacityAdvice(ctx context.Context, r service.Region, offers provision.Offerings) ([]provision.CapacityAdvice, error) {
	advisor, ok := dp.Provider.(provision.CapacityAdvisor)
	if !ok || cloud.RunsOnThisComputer(r) {
		return nil, nil
	}
	advice, err := advisor.CapacityAdvice(ctx, r, offers, 1)
	if err != nil {
		err = fmt.Errorf("reading the spot placement scores of %s, which only order zones: %w", r, err)
	}
	return advice, err
}

// applyAdvice applies the advice about a region.
func (dp *Deployer) applyAdvice(r service.Region, advice []provision.CapacityAdvice) {
	if dp.scores == nil {
		dp.scores = spotScores{}
	}
	for _, a := range advice {
		if a.Score != nil {
			dp.scores[spotKey{r, a.Zone, a.Type}] = *a.Score
		}
	}
}

// logSpotError logs an error of observeSpot once until it changes. It never prevents a launch.
func (rc *Reconciler) logSpotError(bs *bundleState, err error) {
	text := ""
	if err != nil {
		text = err.Error()
	}
	if err != nil && withoutIDs(text) != withoutIDs(bs.spotError) {
		rc.log().Warn("reading interruptions and placement scores of spot machines failed", "err", err)
	}
	if err != nil {
		bs.spotError = text
	}
}
