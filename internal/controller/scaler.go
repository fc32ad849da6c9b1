package controller

import (
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

// settleAfter is how long a place is left alone after another controller changed it:
// SageServe's cooldown (section 4), which a new strategy does not remember.
const settleAfter = 15 * time.Second

// scaler lets the service's strategy decide on what is observed, and carries out
// what it decides. A strategy's memory ends with a term of leadership; what exists and the
// plan in force do not.
type scaler struct {
	service string
	state   state
	act     Actuator
	force   *inForce
	log     *slog.Logger
	logged  errorOnce

	strategy plan.Strategy // nil = manual
	by       service.Autoscale
	begun    time.Time // the term; strategies count from it
	took     bool      // over what the controller before told of
	before   map[place]time.Time
	events   []telemetry.ScalingEvent
	shown    telemetry.Scaling // what the store has
	loads    map[place]float64
}

// newScaler makes a scaler of a service.
func newScaler(config service.ControllerConfig, st state, act Actuator, force *inForce, log *slog.Logger) *scaler {
	return &scaler{service: config.Service, state: st, act: act, force: force, log: log}
}

// begin begins a term.
func (s *scaler) begin() {
	s.strategy, s.by, s.loads, s.took = nil, service.Autoscale{}, nil, false
	s.begun = time.Now()
}

// tell logs an error once for as long as it stays the same.
func (s *scaler) tell(err error) {
	if s.logged.changed(err) {
		s.log.Warn("scaling", "err", err)
	}
}

// takeOver goes on from what the controller before told of.
func (s *scaler) takeOver(ctx context.Context) error {
	data, _, err := s.state.Get(ctx, telemetry.ScalingKey(s.service))
	s.shown, s.events, s.before = telemetry.Scaling{}, nil, map[place]time.Time{}
	switch {
	case isGone(err):
		return nil
	case err == nil:
		err = json.Unmarshal(data, &s.shown)
	}
	if err != nil {
		return fmt.Errorf("reading what was scaled before: %w", err)
	}
	s.events = s.shown.Events
	for _, e := range s.events {
		s.before[place{e.Model, e.Region}] = e.At
	}
	return nil
}

// step acts on an observation.
func (s *scaler) step(ctx context.Context, l lease, now time.Time, o observation) error {
	if !s.took {
		if err := s.takeOver(ctx); err != nil {
			return err
		}
		s.took = true
	}
	current, err := s.act.Current()
	if err != nil {
		return err
	}
	if err := s.choose(current.Spec.Autoscale); err != nil {
		return err
	}
	if o.err != nil {
		return errors.Join(o.err, s.publish(ctx, l, current))
	}
	if o.history != nil {
		s.loads = observedLoads(o.history, now)
	}
	at := &scalingInputs{now: now, current: current, snapshot: o.Snapshot, loads: s.loads, targets: targetsAt(s.force.get(), now, s.begun), review: s.force.get()}
	if moves := s.decide(at, o.Silent); len(moves) > 0 {
		err = s.carryAll(ctx, l, moves)
		after, failed := s.act.Current()
		if failed != nil {
			return errors.Join(err, failed)
		}
		current = after
	}
	return errors.Join(err, s.publish(ctx, l, current))
}

// choose makes the strategy that service.yaml names, unless it is the one at work.
func (s *scaler) choose(by service.Autoscale) error {
	if by.Strategy == s.by.Strategy && by.Donate == s.by.Donate && by.Late == s.by.Late {
		s.by = by
		return nil
	}
	var next plan.Strategy
	if paced(by.Strategy) {
		var err error
		if next, err = plan.NewStrategy(by.Strategy, plan.StrategyOptions{Keep: !by.Donate, Late: by.Late}); err != nil {
			return fmt.Errorf("scaling %s: %w", s.service, err)
		}
	}
	s.by, s.strategy = by, next
	s.log.Info("scaling", "strategy", by.Strategy, "donate", by.Donate)
	return nil
}

// decide is what is to be done about what was seen, with so many balancers that did
// not answer. What is needed again is taken back before it is removed.
func (s *scaler) decide(at *scalingInputs, silent int) (moves []move) {
	groups := at.groups()
	at.taken = map[string]bool{}
	if s.strategy != nil {
		moves = s.scalings(at, groups)
	}
	if silent == 0 { // else a replica that nobody knows may well be at work
		moves = append(moves, at.sweep(groups)...)
	}
	return moves
}

// scalings are what the strategy wants, and what was left undone.
func (s *scaler) scalings(at *scalingInputs, groups []scaled) (moves []move) {
	if at.current.Unfinished {
		moves = append(moves, move{})
	}
	changed := map[place]bool{}
	for _, c := range s.strategy.Step(at.now.Sub(s.begun), at.fleet(groups)) {
		if at.now.Sub(s.before[groups[c.Endpoint].place]) < settleAfter {
			continue
		}
		m := at.move(groups, c, s.by)
		if !reflect.DeepEqual(m.change, Change{}) {
			moves, changed[groups[c.Endpoint].place] = append(moves, m), true
		}
	}
	return append(moves, at.exchange(groups, changed)...)
}

// carryAll carries moves out one after the other, for as long as the lease is held;
// one that fails does not keep the others from being tried.
func (s *scaler) carryAll(ctx context.Context, l lease, moves []move) (err error) {
	may := mayAct(ctx, l)
	for _, m := range moves {
		launched, failed := s.act.Apply(ctx, m.change, may)
		if errors.Is(failed, errLeaseLost) || errors.Is(failed, ErrBusy) || ctx.Err() != nil {
			return errors.Join(err, failed)
		}
		if failed != nil {
			err = errors.Join(err, failed)
			s.note(s.failed(m, failed))
			continue
		}
		events := m.told(launched)
		for _, e := range events {
			s.log.Info("scaled", "strategy", e.Strategy, "action", e.Action, "region", e.Region, "model", e.Model, "replicas", strings.Join(e.Replicas, ","), "why", e.Reason)
		}
		s.note(events)
	}
	return err
}

// note adds to the events that are told.
func (s *scaler) note(events []telemetry.ScalingEvent) {
	s.events = append(slices.Clone(s.events), events...)
	s.events = s.events[max(0, len(s.events)-telemetry.MaxScalingEvents):]
}

// told are the events of a move that was carried out. What was launched belongs to
// the redeployments first, which only name what was given up for it.
func (m move) told(launched []string) []telemetry.ScalingEvent {
	events := slices.Clone(m.events)
	for i := range events {
		e := &events[i]
		switch e.Action {
		case telemetry.ScalingRedeployed:
			n := min(len(e.Replicas), len(launched))
			e.Reason += "; in the place of " + strings.Join(e.Replicas, ", ")
			e.Replicas, launched = launched[:n], launched[n:]
		case telemetry.ScalingLaunched, telemetry.ScalingReplaced:
			e.Replicas, launched = append(e.Replicas, launched...), nil
		}
	}
	return events
}

// failed tells of a move that could not be carried out, once for as long as it fails
// in the same way.
func (s *scaler) failed(m move, err error) []telemetry.ScalingEvent {
	if len(m.events) == 0 {
		return nil
	}
	e := m.events[0]
	e.Reason = fmt.Sprintf("%s (%s): %v", e.Action, e.Reason, err)
	e.Action = telemetry.ScalingFailed
	for _, old := range slices.Backward(s.events) {
		if old.Model == e.Model && old.Region == e.Region {
			if old.Action == telemetry.ScalingFailed && strings.HasSuffix(old.Reason, err.Error()) {
				return nil
			}
			break
		}
	}
	return []telemetry.ScalingEvent{e}
}

// publish keeps what is donated and what was done in the store, where balancers hear
// of it.
func (s *scaler) publish(ctx context.Context, l lease, current CurrentState) error {
	next := telemetry.Scaling{
		Token: l.Token(), Strategy: current.Spec.Autoscale.Strategy, Donations: current.donations(),
		Events: append([]telemetry.ScalingEvent{}, s.events...),
	}
	if reflect.DeepEqual(next, s.shown) {
		return nil
	}
	if err := keep(ctx, l, s.state, telemetry.ScalingKey(s.service), next); err != nil {
		return fmt.Errorf("publishing what was scaled: %w", err)
	}
	s.shown = next
	return nil
}
