package controller

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	"skyserve/internal/telemetry"
)

// EventSource is an optional interface of Machines that records events of the service.
type EventSource interface {
	// RecordWith sets the function that records an event; it never blocks. It is called before the
	// first Reconcile.
	RecordWith(record func(telemetry.Event))
}

// eventSource identifies this process in the IDs of its events.
func eventSource(started time.Time) string {
	return holderName() + "-" + strconv.FormatInt(started.UnixNano(), 36)
}

// record records an event of the service. It never blocks.
func (c *Controller) record(e telemetry.Event) {
	if c.events != nil {
		c.events.Record(e)
	}
}

// recordLeader records that this controller is the leader.
func (c *Controller) recordLeader(l lease) {
	c.record(telemetry.Event{
		ID: fmt.Sprintf("leader-%d", l.Token()), Actor: telemetry.ActorController, Kind: telemetry.EventLeader, Object: c.name(),
		Message: fmt.Sprintf("controller %s is the leader", c.name()), Reason: fmt.Sprintf("it acquired the lease with token %d", l.Token()),
	})
}

// recordBalancer records the state of a balancer, which the next leader observes again.
func (c *Controller) recordBalancer(w *trackedBalancer, kind telemetry.EventKind, message, reason string) {
	if c.events != nil {
		c.events.RecordState(telemetry.Event{Actor: telemetry.ActorController, Kind: kind, Region: w.Region, Object: w.ID, Message: message, Reason: reason})
	}
}

// recordMoves records the replicas that a published assignment moves to another balancer. The IDs of
// the events contain the epoch: two controllers never record one move twice.
func (c *Controller) recordMoves(before, after Assignment) {
	primaries := map[string]string{}
	for _, r := range c.config.Replicas {
		primaries[r.ID] = r.Primary
	}
	for _, id := range slices.Sorted(maps.Keys(after.Owners)) {
		from, to, primary := before.Owners[id], after.Owners[id], primaries[id]
		e := telemetry.Event{ID: fmt.Sprintf("assignment-%d-%s", after.Epoch(), id), Actor: telemetry.ActorController, Object: id}
		switch {
		case from == to, from == "" && to == primary:
			continue
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
		c.record(e)
	}
}

// planEvent returns the event of a computed plan.
func planEvent(p *telemetry.PlanSummary, minutes int) telemetry.Event {
	traffic := fmt.Sprintf("%d minutes", minutes)
	if minutes == 1 {
		traffic = "1 minute"
	}
	return telemetry.Event{
		ID: "plan-" + p.At.Format(time.RFC3339Nano), Actor: telemetry.ActorController, Kind: telemetry.EventPlan,
		Object: p.At.Format(time.RFC3339), Plan: &p.At,
		Message: fmt.Sprintf("plan computed: %d changes, %s -> %s", len(p.Changes), costText(p.CostPerHour.Current), costText(p.CostPerHour.Planned)),
		Reason:  fmt.Sprintf("forecast from %s of traffic, status %s", traffic, p.Status),
	}
}

// costText formats a cost in USD per hour; nil is unknown.
func costText(usd *float64) string {
	if usd == nil {
		return "unknown cost"
	}
	return fmt.Sprintf("$%.2f/h", *usd)
}
