package controller

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"skyserve/internal/printable"
	"skyserve/internal/store"
	"skyserve/internal/telemetry"
	"skyserve/plan"
)

// EventRecording is an optional interface of a MachineReconciler that records events of the service.
type EventRecording interface {
	// RecordEventsWith sets the function that records an event; the function never blocks. RecordEventsWith is
	// called before the first Reconcile.
	RecordEventsWith(record func(telemetry.Event))
}

// eventIDPrefix returns the prefix of the IDs of this process's events, which differs between processes.
func eventIDPrefix(started time.Time) string {
	return holderName() + "-" + strconv.FormatInt(started.UnixNano(), 36)
}

// recordEvent records an event of the service. It never blocks.
func (c *Controller) recordEvent(e telemetry.Event) {
	if c.events != nil {
		c.events.Record(e)
	}
}

// reportPending calls send each telemetry.PendingInterval with the newest events that wait for the store, if any do, until
// ctx ends: balancers read the store, which may accept reads before it accepts writes.
func reportPending(ctx context.Context, q *store.EventQueue, send func(context.Context, []telemetry.Event)) {
	tick := time.NewTicker(telemetry.PendingInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if events := q.Pending(); len(events) > 0 {
			send(ctx, events[max(0, len(events)-telemetry.MaxPendingEvents):])
		}
	}
}

// sendPending sends the events that wait for the store to all balancers, and returns when all have responded, at most
// telemetry.PendingInterval later. The next report replaces one that is lost, so errors are ignored.
func (c *Controller) sendPending(ctx context.Context, events []telemetry.Event) {
	ctx, cancel := context.WithTimeout(ctx, telemetry.PendingInterval)
	defer cancel()
	var wg sync.WaitGroup
	for _, b := range *c.loop.balancers.Load() {
		wg.Go(func() { _ = b.ReportPendingEvents(ctx, telemetry.PendingEvents{Source: c.name(), Events: events}) })
	}
	wg.Wait()
}

// recordLeader records that this controller is the leader.
func (c *Controller) recordLeader(l lease) {
	c.recordEvent(telemetry.Event{
		ID: fmt.Sprintf("leader-%d", l.Token()), Actor: telemetry.ActorController, Kind: telemetry.EventLeader, Object: c.name(),
		Message: fmt.Sprintf("controller %s is the leader", c.name()), Reason: "it acquired the lease",
	})
}

// recordBalancer records that the state of a balancer has changed. The event is not stored if the last stored
// one says the same, because each new leader observes the state again: see store.EventQueue.RecordState.
func (c *Controller) recordBalancer(b *trackedBalancer, kind telemetry.EventKind, message, reason string) {
	if c.events != nil {
		c.events.RecordState(telemetry.Event{Actor: telemetry.ActorController, Kind: kind, Region: b.Region, Object: b.ID, Message: message, Reason: reason})
	}
}

// recordMoves records the replicas that a published assignment moves to another balancer. The IDs of
// the events contain the epoch: two controllers never record one move twice.
func (c *Controller) recordMoves(before, after Assignment) {
	primaries := primaryBalancers(c.config)
	for _, id := range slices.Sorted(maps.Keys(after.Owners)) {
		from, to, primary := before.Owners[id], after.Owners[id], primaries[id]
		e := telemetry.Event{ID: fmt.Sprintf("assignment-%d-%s", after.Epoch(), id), Actor: telemetry.ActorController, Object: id}
		switch {
		case from == to, from == "" && to == primary:
			continue
		case to == primary && c.reassigned[id]:
			delete(c.reassigned, id)
			e.Kind, e.Message, e.Reason = telemetry.EventAttach, fmt.Sprintf("%s moves from %s to %s", id, from, to), "the configuration names this balancer"
		case to == primary:
			e.Kind, e.Message, e.Reason = telemetry.EventReturn, fmt.Sprintf("%s returns to %s", id, to), primary+" responds again"
		default:
			e.Kind, e.Message, e.Reason = telemetry.EventAdoption, fmt.Sprintf("%s adopts %s", to, id), fmt.Sprintf("its balancer %s does not respond", primary)
		}
		for _, r := range c.config.Replicas {
			if r.ID == id {
				e.Region = r.Region
			}
		}
		c.recordEvent(e)
	}
}

// recordedReview returns a stored review if its plan has an event; else nil.
func recordedReview(r telemetry.Review) *telemetry.Review {
	if r.PlanEvent.IsZero() || r.Plan == nil || r.Plan.Error != "" {
		return nil
	}
	return &r
}

// sameCapacity reports whether the plan of r needs no event of its own: it has the same replicas by GPU and capacity type as
// the recorded one, and both or neither satisfy all constraints.
func sameCapacity(recorded, r *telemetry.Review) bool {
	infeasible := func(r *telemetry.Review) bool { return r.Plan.Status == string(plan.StatusInfeasible) }
	if recorded == nil || infeasible(recorded) != infeasible(r) {
		return false
	}
	return slices.EqualFunc(recorded.Targets, r.Targets, func(a, b telemetry.PlannedCapacity) bool {
		return a.Model == b.Model && a.Region == b.Region && slices.Equal(a.Replicas, b.Replicas)
	})
}

// planEvent returns the event of a computed plan. If no plan satisfies all constraints, the event names those that cannot
// be met.
func planEvent(p *telemetry.PlanSummary, minutes int) telemetry.Event {
	current, planned := p.CostPerHour.Current, p.CostPerHour.Planned
	message := "no plan found: the solver reached its limit of work; retry with 'skyserve plan --solver highs'"
	switch {
	case p.Status == string(plan.StatusInfeasible):
		message = "no plan satisfies all constraints"
	case current != nil && planned != nil:
		message = fmt.Sprintf("plan computed: %s, $%.2f/h -> $%.2f/h", printable.Count(len(p.Changes), "change"), *current, *planned)
	}
	if planned == nil && current != nil {
		message += fmt.Sprintf("; current cost $%.2f/h", *current)
	}
	basis := fmt.Sprintf("forecast from %s of traffic, status %s", printable.Count(minutes, "minute"), p.Status)
	return telemetry.Event{
		ID: "plan-" + p.At.Format(time.RFC3339Nano), Actor: telemetry.ActorController, Kind: telemetry.EventPlan,
		Object: p.At.Format(time.RFC3339), Plan: &p.At,
		Message: message, Reason: strings.Join(append(slices.Clone(p.Infeasible), basis), "; "),
	}
}
