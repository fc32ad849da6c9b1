package core

import (
	"time"

	"skyserve/internal/service"
)

// QueuePosition is the position of a waiting request in an order, for queues other than a balancer's,
// such as the queue of a simulated engine. It is unrelated to the ranks of an engine.
type QueuePosition struct {
	stage        int
	due, arrived time.Duration
}

// QueuePositionOf returns the position of a request with a tier and an arrival time. tauN and tauP are those of
// Config and are used only for OrderDPA.
func QueuePositionOf(order QueueOrder, targets TierTargets, tauN, tauP time.Duration, tier service.Tier, arrived, now time.Duration) QueuePosition {
	o := ordering{order: order, targets: targets, tauN: tauN, tauP: tauP}
	s := o.position(tier, arrived, now)
	return QueuePosition{stage: s.Stage, due: s.Due, arrived: arrived}
}

// Before reports whether r is before o: by stage, then by deadline if the order uses it, then by
// arrival.
func (r QueuePosition) Before(o QueuePosition) bool {
	switch {
	case r.stage != o.stage:
		return r.stage < o.stage
	case r.due != o.due:
		return r.due < o.due
	}
	return r.arrived < o.arrived
}
