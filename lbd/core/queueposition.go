package core

import (
	"time"

	"skyserve/internal/service"
)

// QueuePosition is the position of a waiting request in an order, for queues other than a balancer's,
// such as the queue of a simulated engine.
type QueuePosition struct {
	stage        int
	due, arrived time.Duration
}

// QueuePositionOf returns the position of a request with a tier and an arrival time. severeAfter and urgentBefore are those of
// Config and are used only for OrderDPA.
func QueuePositionOf(order QueueOrder, deadlines TierDeadlines, severeAfter, urgentBefore time.Duration, tier service.Tier, arrived, now time.Duration) QueuePosition {
	o := ordering{order: order, deadlines: deadlines, severeAfter: severeAfter, urgentBefore: urgentBefore}
	s := o.position(tier, arrived, deadlines.For(tier), now)
	return QueuePosition{stage: s.Stage, due: s.Due, arrived: arrived}
}

// Before reports whether p is before o: by stage (for OrderDPA the classes that it lists, for
// OrderPF the tiers), then by deadline if the order uses it, then by arrival.
func (p QueuePosition) Before(o QueuePosition) bool {
	switch {
	case p.stage != o.stage:
		return p.stage < o.stage
	case p.due != o.due:
		return p.due < o.due
	}
	return p.arrived < o.arrived
}
