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

// The scaler's rhythm.
const (
	// scaleEvery is how often a strategy looks: a third of its cooldown.
	scaleEvery = 5 * time.Second
	// scaleLookTimeout bounds asking the balancers, so that what they say is of now.
	scaleLookTimeout = 3 * time.Second
	// handover is how long a place is left alone after another controller changed it:
	// SageServe's cooldown (section 4), which a new strategy does not remember.
	handover = 15 * time.Second
)

// scaler lets the service's strategy decide on what is observed, and carries out
// what it decides. It runs within a tenure; a strategy's memory ends with it, what
// exists and the plan in force do not.
type scaler struct {
	service string
	state   state
	act     Actuator
	observe func(ctx context.Context, sinceMinute int64, history bool) (*Observed, error)
	force   *inForce
	log     *slog.Logger
	kick    chan struct{}

	strategy plan.Strategy // nil = manual
	by       service.Autoscale
	begun    time.Time // the tenure; strategies count from it
	before   map[place]time.Time
	events   []telemetry.ScalingEvent
	shown    telemetry.Scaling // what the store has
	minute   int64             // that loads is of
	loads    map[place]float64
	said     string // the last error logged
}

// newScaler makes a scaler that asks balancers through admins.
func newScaler(config service.ControllerConfig, admins []*telemetry.Client, st state, act Actuator, force *inForce, log *slog.Logger) *scaler {
	return &scaler{
		service: config.Service, state: st, act: act, force: force, log: log, kick: make(chan struct{}, 1),
		observe: func(ctx context.Context, since int64, history bool) (*Observed, error) {
			return Observe(ctx, admins, since, history)
		},
	}
}

// soon asks for a look at once.
func (s *scaler) soon() { nudge(s.kick) }

// run looks and acts until ctx ends. Whatever fails is told and tried again.
func (s *scaler) run(ctx context.Context, l lease) {
	s.strategy, s.by, s.minute, s.loads = nil, service.Autoscale{}, 0, nil
	s.begun = time.Now()
	begun := false
	for {
		err := error(nil)
		if !begun {
			err = s.begin(ctx)
			begun = err == nil
		}
		if begun {
			err = s.turn(ctx, l)
		}
		s.tell(err)
		timer := time.NewTimer(scaleEvery)
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-s.kick:
			timer.Stop()
		case <-timer.C:
		}
	}
}

// tell logs an error once for as long as it stays the same.
func (s *scaler) tell(err error) {
	text := ""
	if err != nil && !errors.Is(err, context.Canceled) && !errors.Is(err, ErrBusy) {
		text = err.Error()
	}
	if text != "" && text != s.said {
		s.log.Warn("scaling", "err", err)
	}
	s.said = text
}

// begin takes over what the controller before told of.
func (s *scaler) begin(ctx context.Context) error {
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

// turn looks once and acts.
func (s *scaler) turn(ctx context.Context, l lease) error {
	standing, err := s.act.Standing()
	if err != nil {
		return err
	}
	if err := s.choose(standing.Spec.Autoscale); err != nil {
		return err
	}
	now := time.Now()
	seen, err := s.look(ctx, now)
	if err != nil {
		return errors.Join(err, s.publish(ctx, l, standing))
	}
	at := &sight{now: now, standing: standing, snapshot: seen.Snapshot, loads: s.loads, targets: targetsAt(s.force.get(), now, s.begun)}
	if moves := s.decide(at, seen.Silent); len(moves) > 0 {
		err = s.carryAll(ctx, l, moves)
		after, failed := s.act.Standing()
		if failed != nil {
			return errors.Join(err, failed)
		}
		standing = after
	}
	return errors.Join(err, s.publish(ctx, l, standing))
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

// look asks the balancers for their replicas, and once a minute for the load.
func (s *scaler) look(ctx context.Context, now time.Time) (*Observed, error) {
	ctx, cancel := context.WithTimeout(ctx, scaleLookTimeout)
	defer cancel()
	minute := now.Add(-minuteSettles).Unix() / 60
	history := s.strategy != nil && minute != s.minute
	o, err := s.observe(ctx, minute-observedMinutes, history)
	if err != nil || !history {
		return o, err
	}
	h, err := telemetry.NewHistory(o.Points)
	if err != nil {
		return nil, err
	}
	s.minute, s.loads = minute, observedLoads(h, now)
	return o, nil
}

// decide is what is to be done about what was seen, with so many balancers that did
// not answer. What is needed again is taken back before it is removed.
func (s *scaler) decide(at *sight, silent int) (moves []move) {
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
func (s *scaler) scalings(at *sight, groups []scaled) (moves []move) {
	if at.standing.Unfinished {
		moves = append(moves, move{})
	}
	for _, c := range s.strategy.Step(at.now.Sub(s.begun), at.fleet(groups)) {
		if at.now.Sub(s.before[groups[c.Endpoint].place]) < handover {
			continue
		}
		m := at.move(groups, c, s.by)
		if !reflect.DeepEqual(m.order, Order{}) {
			moves = append(moves, m)
		}
	}
	return moves
}

// carryAll carries moves out one after the other, for as long as the lease is held;
// one that fails does not keep the others from being tried.
func (s *scaler) carryAll(ctx context.Context, l lease, moves []move) (err error) {
	may := mayAct(ctx, l)
	for _, m := range moves {
		launched, failed := s.act.Carry(ctx, m.order, may)
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
		case telemetry.ScalingLaunched:
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
func (s *scaler) publish(ctx context.Context, l lease, standing Standing) error {
	next := telemetry.Scaling{
		Token: l.Token(), Strategy: standing.Spec.Autoscale.Strategy, Donations: standing.donations(),
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
