package core

import (
	"fmt"
	"time"

	"skyserve/internal/service"
	"skyserve/lbd/core/fair"
)

// QueueOrder is the order of a model's waiting requests (SageServe section 6.5). In every order,
// tenants share the queue fairly: see package fair. In all but OrderFCFS, a deferred request (NIW) is last until 10/24 of
// the time to its deadline have passed; from then on it counts as IW-N.
type QueueOrder string

// The queue orders. Requests that are equal in an order are sorted by arrival or, for a policy that holds
// requests, by the start of their session.
const (
	// OrderFCFS is first come, first served. It ignores tiers.
	OrderFCFS QueueOrder = "fcfs"
	// OrderEDF is earliest deadline first: arrival plus TierDeadlines.For the tier.
	OrderEDF QueueOrder = "edf"
	// OrderPF is priority first: all interactive fast requests (IW-F in SageServe), then interactive normal (IW-N),
	// then deferred (NIW).
	OrderPF QueueOrder = "pf"
	// OrderDPA is deadline and priority aware. A request is severely expired if its deadline passed more than
	// Config.SevereAfter ago (tau_n in the paper), recently expired if it passed at most that long ago, urgent if the
	// deadline is at most Config.UrgentBefore ahead (tau_p), and otherwise not urgent. The order is: severely expired,
	// urgent IW-F, urgent IW-N, other IW-F, other IW-N, recently expired, deferred.
	//
	// The paper contains neither values for the two thresholds nor an order inside the classes. The default
	// values are in DefaultConfig.
	OrderDPA QueueOrder = "dpa"
)

// ParseOrder parses an order in the user's notation; empty is fcfs.
func ParseOrder(s string) (QueueOrder, error) {
	switch o := QueueOrder(s); o {
	case "":
		return OrderFCFS, nil
	case OrderFCFS, OrderEDF, OrderPF, OrderDPA:
		return o, nil
	}
	return "", fmt.Errorf("unknown order %q: must be fcfs, edf, pf or dpa", s)
}

// TierDeadlines contains the deadline of each tier, relative to the arrival; zero means the value of
// DefaultDeadlines.
type TierDeadlines struct {
	// Fast and Normal are deadlines for the first token.
	Fast   time.Duration `json:"fast_ns"`
	Normal time.Duration `json:"normal_ns"`
	// Deferred is the deadline for the complete answer.
	Deferred time.Duration `json:"deferred_ns"`
}

// DefaultDeadlines returns the default deadlines. They are defined only here.
func DefaultDeadlines() TierDeadlines {
	return TierDeadlines{
		Fast:     time.Second,      // the definition of the tier (SageServe section 3)
		Normal:   60 * time.Second, // the same
		Deferred: 24 * time.Hour,   // the deadline of batch work in SageServe (section 6.2)
	}
}

// For returns the deadline of a tier.
func (t TierDeadlines) For(tier service.Tier) time.Duration {
	d := DefaultDeadlines()
	switch tier {
	case service.TierNormal:
		return positiveOr(t.Normal, d.Normal)
	case service.TierDeferred:
		return positiveOr(t.Deferred, d.Deferred)
	}
	return positiveOr(t.Fast, d.Fast)
}

func positiveOr(d, fallback time.Duration) time.Duration {
	if d > 0 {
		return d
	}
	return fallback
}

// urgentAfter is the share of the time to its deadline after which a deferred request has the
// priority of an interactive one: 10 of 24 hours (SageServe section 6.2).
const urgentAfter = 10.0 / 24

// Levels of a queue, the most urgent first. Fairness between tenants applies within a level, not between
// levels.
const (
	levelFast     = iota // IW-F; in fcfs, everything
	levelNormal          // IW-N
	levelDeferred        // NIW
	// fair.Levels is their number.
)

// Stages of a request, in the order of sending. Deferred requests are last until urgentAfter of the
// time to their deadline has passed, then equal to IW-N.
const (
	stageFirst        = iota // dpa: severely expired; fcfs: every request; edf: every request except deferred ones
	stageUrgentFast          // dpa, and IW-F in pf
	stageUrgentNormal        // dpa, and IW-N in pf
	stageFast                // dpa
	stageNormal              // dpa
	stageRecent              // dpa
	stageDeferred            // edf, pf and dpa
)

// ordering is a QueueOrder with the configuration of one model.
type ordering struct {
	order                     QueueOrder
	deadlines                 TierDeadlines
	severeAfter, urgentBefore time.Duration
}

func (c *Config) ordering(model string) ordering {
	o := ordering{order: c.Order, deadlines: c.Deadlines, severeAfter: c.SevereAfter, urgentBefore: c.UrgentBefore}
	if t, ok := c.ModelDeadlines[model]; ok {
		o.deadlines = t
	}
	return o
}

// position returns the queue position, at now, of a request with a tier and an arrival time. timeToDeadline is the
// time from arrived to the deadline.
func (o *ordering) position(tier service.Tier, arrived, timeToDeadline, now time.Duration) fair.Position {
	if o.order == OrderFCFS || o.order == "" {
		return fair.Position{ChangesAt: fair.Never}
	}
	s := fair.Position{Level: tierLevel(tier), ChangesAt: fair.Never}
	if o.order == OrderEDF {
		s.Due = arrived + timeToDeadline
	}
	if s.Level == levelDeferred {
		if urgent := arrived + time.Duration(urgentAfter*float64(timeToDeadline)); now < urgent {
			s.Stage, s.ChangesAt = stageDeferred, urgent
			return s
		}
	}
	level := min(s.Level, levelNormal)
	switch o.order {
	case OrderPF:
		s.Stage = stageUrgentFast + level
	case OrderDPA:
		s.Stage, s.ChangesAt = o.dpaStage(level, arrived+timeToDeadline, now)
	}
	return s
}

func tierLevel(tier service.Tier) int {
	switch tier {
	case service.TierNormal:
		return levelNormal
	case service.TierDeferred:
		return levelDeferred
	}
	return levelFast
}

// dpaStage returns the DPA stage of a level, and the time at which the next stage begins.
func (o *ordering) dpaStage(level int, due, now time.Duration) (stage int, changesAt time.Duration) {
	switch remaining := due - now; {
	case remaining < -o.severeAfter:
		return stageFirst, fair.Never
	case remaining < 0:
		return stageRecent, due + o.severeAfter + 1
	case remaining <= o.urgentBefore:
		return stageUrgentFast + level, due + 1
	}
	return stageFast + level, due - o.urgentBefore
}

// sortTime returns the time by which r is sorted among requests that are equal in the order
// (Item.SortTime): its arrival or, for a policy that holds requests, the start of its session. An
// active session is then finished before new ones begin, while its prefix is still cached.
//
// The benefit is smaller if the engines' hit rate is low. Therefore a session's lead is at most SessionLead times the
// square of the hit rate if several requests continue the same prefix, as in a tree of thoughts, and times its sixth power
// otherwise. A later turn of a single conversation gains little from going first: no other request uses its prefix, and its
// long prompt takes the memory of several new sessions. If it always had the full lead, new sessions would reach max_wait
// in an overload without being started.
func (b *Balancer) sortTime(r *request) time.Duration {
	if r.sessionStart = r.receivedAt; !b.traits.Holds {
		return r.receivedAt
	}
	start, known, branches := b.caches.session(r.Prompt)
	switch {
	case r.SessionAge > 0:
		r.sessionStart = r.receivedAt - r.SessionAge
	case known:
		r.sessionStart = start
	}
	hits := b.hitRate.Or(1)
	lead := hits * hits * float64(b.cfg.SessionLead)
	if !branches {
		hits = b.hitRate.Or(0) // engines that report no hits do not show whether a lead pays
		lead *= hits * hits * hits * hits
	}
	return max(r.sessionStart, r.receivedAt-time.Duration(lead))
}
