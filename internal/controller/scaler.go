package controller

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"slices"
	"strings"
	"time"

	"skyserve/internal/service"
	"skyserve/internal/telemetry"
	"skyserve/plan"
)

// cooldown is the time after a change of a model in a region in which the model is not changed there again
// (SageServe section 4). A strategy has the same cooldown for its own changes, but forgets them when a term of
// leadership ends. The scaler therefore applies it to the changes of the previous leader, and to first replicas.
const cooldown = 15 * time.Second

// scaler runs the service's strategy on observations and applies its decisions. The state of a
// strategy is discarded when a term of leadership ends; the replicas and the plan in force are kept.
type scaler struct {
	service  string
	kv       kvStore
	actuator Actuator
	review   *reviewInForce
	log      *slog.Logger
	logged   errorOnce

	strategy        plan.Strategy // nil = manual
	autoscale       service.Autoscale
	termStart       time.Time                 // start of the term; the strategy's clock starts here
	loaded          bool                      // the previous leader's events are loaded
	previousEvents  map[modelRegion]time.Time // the time of the last event that the previous leader published
	decidedAt       map[modelRegion]time.Time // the time of the strategy's last decision, whether it was applied or not
	startedFromZero bool                      // the last step started the first replica of a model
	servingChanged  bool                      // the last step changed which existing replicas serve
	events          []telemetry.Event
	recordEvent     func(telemetry.Event)   // records an event of the service
	published       telemetry.Scaling       // the stored scaling state
	loads           map[modelRegion]float64 // see scalingInputs
	lastMinute      map[modelRegion]float64 // the loads of the last complete minute
	// lastStarts and lastFailedStarts are when the first replica of a model was last launched, and when launching
	// it last failed.
	lastStarts, lastFailedStarts map[modelRegion]time.Time
}

// newScaler returns the scaler of a service.
func newScaler(config service.ControllerConfig, st kvStore, act Actuator, review *reviewInForce, log *slog.Logger) *scaler {
	return &scaler{
		service: config.Service, kv: st, actuator: act, review: review, log: log, recordEvent: func(telemetry.Event) {},
		lastStarts: map[modelRegion]time.Time{}, lastFailedStarts: map[modelRegion]time.Time{}, decidedAt: map[modelRegion]time.Time{},
	}
}

// startTerm starts a term.
func (s *scaler) startTerm() {
	s.strategy, s.autoscale, s.loads, s.lastMinute, s.loaded = nil, service.Autoscale{}, nil, nil, false
	clear(s.lastStarts)
	clear(s.lastFailedStarts)
	clear(s.decidedAt)
	s.termStart = time.Now()
}

// untilCooldownEnds returns the time until the next end of a cooldown, when the strategy may change a model again;
// loopInterval where none ends before.
func (s *scaler) untilCooldownEnds(now time.Time) time.Duration {
	next := loopInterval
	for _, at := range s.decidedAt {
		if left := at.Add(cooldown).Sub(now); left > 0 {
			next = min(next, left)
		}
	}
	return next
}

// logError logs an error once until it changes.
func (s *scaler) logError(err error) {
	if s.logged.shouldLog(err) {
		s.log.Warn("scaling failed", "err", err)
	}
}

// loadEvents loads the scaling events that the previous leader published.
func (s *scaler) loadEvents(ctx context.Context) error {
	data, _, err := s.kv.Get(ctx, telemetry.ScalingKey(s.service))
	s.published, s.events, s.previousEvents = telemetry.Scaling{}, nil, map[modelRegion]time.Time{}
	switch {
	case isNotFound(err):
		return nil
	case err == nil:
		err = json.Unmarshal(data, &s.published)
	}
	if err != nil {
		return fmt.Errorf("reading the scaling events of the previous leader: %w", err)
	}
	s.events = s.published.Events
	for _, e := range s.events {
		s.previousEvents[modelRegion{e.Model, e.Region}] = e.At
	}
	return nil
}

// stepScaler computes the changes for an observation and applies them.
func (s *scaler) stepScaler(ctx context.Context, l lease, now time.Time, o observation) error {
	s.startedFromZero, s.servingChanged = false, false
	if !s.loaded {
		if err := s.loadEvents(ctx); err != nil {
			return err
		}
		s.loaded = true
	}
	current, err := s.actuator.Current()
	if err != nil {
		return err
	}
	if err := s.selectStrategy(current.Spec.Autoscale); err != nil {
		return err
	}
	if o.err != nil {
		return errors.Join(o.err, s.publish(ctx, l, current, &telemetry.Snapshot{}))
	}
	if o.history != nil {
		s.loads, s.lastMinute = observedLoads(o.history, o.from, now, plan.ObservedMinutes), observedLoads(o.history, o.from, now, 1)
	}
	in := &scalingInputs{now: now, current: current, snapshot: o.Snapshot, failedBalancers: o.Failed, loads: s.loads, lastMinute: s.lastMinute, targets: hourlyTargets(s.review.get(), now, s.termStart), review: s.review.get()}
	if changes := s.decideChanges(in); len(changes) > 0 {
		err = s.applyChanges(ctx, l, changes)
		after, failed := s.actuator.Current()
		if failed != nil {
			return errors.Join(err, failed)
		}
		current = after
	}
	return errors.Join(err, s.publish(ctx, l, current, o.Snapshot))
}

// selectStrategy creates the strategy of service.yaml, unless it is already running with the same options.
func (s *scaler) selectStrategy(autoscale service.Autoscale) error {
	if autoscale.Strategy == s.autoscale.Strategy && autoscale.Donate == s.autoscale.Donate && autoscale.TTFTMissTarget == s.autoscale.TTFTMissTarget {
		s.autoscale = autoscale
		return nil
	}
	var next plan.Strategy
	if scalesAutomatically(autoscale.Strategy) {
		var err error
		if next, err = plan.NewStrategy(autoscale.Strategy, plan.StrategyOptions{NoDonation: !autoscale.Donate, MaxLateShare: autoscale.TTFTMissTarget}); err != nil {
			return fmt.Errorf("selecting the scaling strategy of %s: %w", s.service, err)
		}
	}
	s.autoscale, s.strategy = autoscale, next
	s.log.Info("scaling strategy selected", "strategy", autoscale.Strategy, "donate", autoscale.Donate)
	return nil
}

// decideChanges returns the changes for an observation. Donated replicas are reclaimed before those whose donation has
// ended are removed.
func (s *scaler) decideChanges(in *scalingInputs) (changes []scalingChange) {
	groups := in.groups()
	in.claimed = map[string]bool{}
	if s.strategy != nil {
		var handled map[string]bool
		changes, handled = s.scaleToZeroChanges(in, groups)
		changes = append(changes, s.strategyChanges(in, groups, handled)...)
	}
	return append(changes, in.buildRemovals(groups)...)
}

// strategyChanges returns the strategy's changes and completes unfinished ones. It omits changes of
// the models that scaleToZeroChanges has handled.
func (s *scaler) strategyChanges(in *scalingInputs, groups []replicaGroup, handled map[string]bool) (changes []scalingChange) {
	if in.current.Unfinished {
		changes = append(changes, scalingChange{}) // Apply completes the recorded change
	}
	changed := map[modelRegion]bool{}
	for _, g := range groups {
		changed[g.modelRegion] = handled[g.model]
	}
	for _, c := range s.strategy.Step(in.now.Sub(s.termStart), in.strategyInput(groups)) {
		s.decidedAt[groups[c.Endpoint].modelRegion] = in.now
		if in.now.Sub(s.previousEvents[groups[c.Endpoint].modelRegion]) < cooldown || handled[groups[c.Endpoint].model] {
			continue
		}
		change := in.buildChange(groups, c, s.autoscale)
		if !reflect.DeepEqual(change.capacity, CapacityChange{}) {
			changes, changed[groups[c.Endpoint].modelRegion] = append(changes, change), true
		}
	}
	return append(changes, in.buildReplacements(groups, changed)...)
}

// applyChanges applies changes in sequence while the lease is held. A failed one does not prevent the
// others, except when another process is changing the service (ErrBusy).
func (s *scaler) applyChanges(ctx context.Context, l lease, changes []scalingChange) (err error) {
	checkLeadership := leadershipCheck(ctx, l)
	for _, c := range changes {
		launched, failed := s.actuator.Apply(ctx, c.capacity, checkLeadership)
		if failed == nil || len(launched) > 0 {
			s.recordStart(c, nil)
			s.recordActions(c.actionsAfter(launched), failed != nil)
		}
		if errors.Is(failed, errLeaseLost) || errors.Is(failed, ErrBusy) || ctx.Err() != nil {
			return errors.Join(err, failed)
		}
		s.servingChanged = s.servingChanged || len(c.capacity.Drain)+len(c.capacity.Reclaim) > 0 // also if a later part has failed
		if failed != nil {
			if len(launched) == 0 {
				s.recordStart(c, failed)
			}
			err = errors.Join(err, failed)
			s.addEvents(s.failureEvents(c, failed))
		}
	}
	return err
}

// recordActions records the actions of a change. Of one that is incomplete, only launches are known to have been made.
func (s *scaler) recordActions(actions []scalingAction, incomplete bool) {
	for _, a := range actions {
		if incomplete && (!a.launches() || len(a.replicas) == 0) {
			continue
		}
		s.log.Info("replicas scaled", "strategy", s.autoscale.Strategy, "action", a.kind, "region", a.region, "model", a.model, "replicas", strings.Join(a.replicas, ","), "reason", a.reason)
		s.addEvents(a.events())
	}
}

// addEvents records events and appends them to the published ones.
func (s *scaler) addEvents(events []telemetry.Event) {
	for _, e := range events {
		s.recordEvent(e)
	}
	s.events = append(slices.Clone(s.events), events...)
	s.events = s.events[max(0, len(s.events)-telemetry.MaxScalingEvents):]
}

// publish writes the scaling state (telemetry.Scaling) to the store, from which balancers read it.
func (s *scaler) publish(ctx context.Context, l lease, current CurrentState, observed *telemetry.Snapshot) error {
	next := telemetry.Scaling{
		Token: l.Token(), Strategy: current.Spec.Autoscale.Strategy, Donations: current.donations(),
		Events: append([]telemetry.Event{}, s.events...), Launches: current.Launches, Starts: current.Starts,
		Machines: current.Machines, States: publishedStates(current, observed),
	}
	if reflect.DeepEqual(next, s.published) {
		return nil
	}
	if err := storeValue(ctx, l, s.kv, telemetry.ScalingKey(s.service), next); err != nil {
		return fmt.Errorf("publishing the scaling events: %w", err)
	}
	s.published = next
	return nil
}

// publishedStates returns the states of machines, and those of replicas that serve again but that no balancer has yet,
// as right after 'replica drain --undo'. Balancers would not list them until one of them has the replica.
func publishedStates(current CurrentState, observed *telemetry.Snapshot) []telemetry.MachineState {
	states := slices.Clone(current.States)
	for _, region := range observed.Regions {
		for _, r := range region.Replicas {
			at := slices.IndexFunc(current.Replicas, func(c CurrentReplica) bool { return c.ID == r.ID })
			isKnown := func(m telemetry.MachineState) bool { return m.ID == r.ID }
			if r.IsAttached() || at < 0 || current.Replicas[at].Donation != nil || len(states) >= telemetry.MaxStates || slices.ContainsFunc(states, isKnown) {
				continue
			}
			c := current.Replicas[at]
			states = append(states, telemetry.MachineState{
				ID: c.ID, Region: c.Region, Model: c.Model, GPU: c.GPU, URL: c.URL,
				Machine: stateUnattached(r.State),
			})
		}
	}
	slices.SortStableFunc(states, func(a, b telemetry.MachineState) int { return cmp.Compare(a.ID, b.ID) })
	return states
}

// stateUnattached returns the state of a serving replica that no balancer has, from its state before. The engine of
// one that drained may be ready, but receives no requests.
func stateUnattached(before service.ReplicaState) service.StateReason {
	switch before {
	case service.StatePending, service.StateProvisioning, service.StateStarting:
		return service.StateReason{State: service.StateStarting, Reason: "no balancer has it yet"}
	}
	return service.StateReason{State: service.StateNotReady, Reason: "no balancer has it at the moment"}
}
