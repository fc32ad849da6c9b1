package core

import (
	"fmt"
	"time"

	"skyserve/internal/service"
	"skyserve/lbd/core/fair"
)

// Order names the order in which the waiting requests of a model go (SageServe
// section 6.5). Whatever it is, tenants share it fairly: see queue.
type Order string

// The orders. Below each of them, requests that it does not tell apart go by
// arrival (or, for a policy that holds, by when their session began).
const (
	// OrderFCFS is first come, first served; it knows no tiers.
	OrderFCFS Order = "fcfs"
	// OrderEDF is earliest deadline first: arrival plus the tier's target.
	OrderEDF Order = "edf"
	// OrderPF is priority first: all IW-F, then IW-N, then NIW.
	OrderPF Order = "pf"
	// OrderDPA is deadline and priority aware. With d what is left until the
	// deadline, negative when it has passed, a request is severely expired (d <
	// -tau_n), recently expired (-tau_n <= d < 0), urgent (0 <= d <= tau_p) or not
	// urgent (d > tau_p), and the order is: severely expired, urgent IW-F, urgent
	// IW-N, other IW-F, other IW-N, recently expired.
	//
	// The symbols and signs are lost in the text of the paper; d, tau_n, tau_p,
	// "<=" and the minus were read from its bytes, which are UTF-8 taken for Mac
	// Roman. The paper gives neither values for tau_n and tau_p nor an order
	// inside the classes; the values are DefaultConfig's.
	OrderDPA Order = "dpa"
)

// ParseOrder reads an order as users write it; empty is fcfs.
func ParseOrder(s string) (Order, error) {
	switch o := Order(s); o {
	case "":
		return OrderFCFS, nil
	case OrderFCFS, OrderEDF, OrderPF, OrderDPA:
		return o, nil
	}
	return "", fmt.Errorf("unknown order %q: want fcfs, edf, pf or dpa", s)
}

// Targets is when a request of each tier is due after its arrival here; zero is
// the default of DefaultTargets.
type Targets struct {
	// Fast and Normal are times to the first token.
	Fast   time.Duration `json:"fast_ns"`
	Normal time.Duration `json:"normal_ns"`
	// Deferred is the time until the answer.
	Deferred time.Duration `json:"deferred_ns"`
}

// DefaultTargets is the one table of default targets.
func DefaultTargets() Targets {
	return Targets{
		Fast:     time.Second,      // what the tier means (SageServe section 3)
		Normal:   60 * time.Second, // the same
		Deferred: 24 * time.Hour,   // the deadline that SageServe gives batch work (section 6.2)
	}
}

// numberFor is the target of a tier.
func (t Targets) of(tier service.Tier) time.Duration {
	d := DefaultTargets()
	switch tier {
	case service.TierNormal:
		return positiveOr(t.Normal, d.Normal)
	case service.TierDeferred:
		return positiveOr(t.Deferred, d.Deferred)
	}
	return positiveOr(t.Fast, d.Fast)
}

// Of is the target of a tier.
func (t Targets) Of(tier service.Tier) time.Duration { return t.of(tier) }

func positiveOr(d, fallback time.Duration) time.Duration {
	if d > 0 {
		return d
	}
	return fallback
}

// urgentAfter is the share of its deadline after which deferred work goes on a
// par with interactive work: 10 of 24 hours (SageServe section 6.2).
const urgentAfter = 10.0 / 24

// The levels of a queue: the tiers, which fairness keeps apart, the most urgent
// first.
const (
	levelFast     = iota // IW-F; in fcfs, everything
	levelNormal          // IW-N
	levelDeferred        // NIW
	// There are fair.Levels of them.
)

// The stages of a request, the first to go first. Deferred work is behind
// everything until it is urgent, then on a par with IW-N.
const (
	stageSevere       = iota // dpa only, as the next five
	stageUrgentFast          // also pf's IW-F
	stageUrgentNormal        // also pf's IW-N
	stageFast
	stageNormal
	stageRecent
	stageDeferred
)

// ordering is an order with its figures for one model.
type ordering struct {
	order      Order
	targets    Targets
	tauN, tauP time.Duration
}

func (c *Config) ordering(model string) ordering {
	o := ordering{order: c.Order, targets: c.Targets, tauN: c.TauN, tauP: c.TauP}
	if t, ok := c.ModelTargets[model]; ok {
		o.targets = t
	}
	return o
}

// placeRequest says where a request of a tier that arrived at a time stands now.
func (o *ordering) position(tier service.Tier, arrived, now time.Duration) fair.Position {
	if o.order == OrderFCFS || o.order == "" {
		return fair.Position{ChangesAt: fair.Never}
	}
	target := o.targets.of(tier)
	s := fair.Position{Level: levelOf(tier), ChangesAt: fair.Never}
	if o.order == OrderEDF {
		s.Due = arrived + target
	}
	if s.Level == levelDeferred {
		if urgent := arrived + time.Duration(urgentAfter*float64(target)); now < urgent {
			s.Stage, s.ChangesAt = stageDeferred, urgent
			return s
		}
	}
	as := min(s.Level, levelNormal)
	switch o.order {
	case OrderPF:
		s.Stage = stageUrgentFast + as
	case OrderDPA:
		s.Stage, s.ChangesAt = o.dpaCategory(as, arrived+target, now)
	}
	return s
}

func levelOf(tier service.Tier) int {
	switch tier {
	case service.TierNormal:
		return levelNormal
	case service.TierDeferred:
		return levelDeferred
	}
	return levelFast
}

// dpaCategory is dpa's for a level, and when the next one begins.
func (o *ordering) dpaCategory(level int, due, now time.Duration) (stage int, turns time.Duration) {
	switch left := due - now; {
	case left < -o.tauN:
		return stageSevere, fair.Never
	case left < 0:
		return stageRecent, due + o.tauN + 1
	case left <= o.tauP:
		return stageUrgentFast + level, due + 1
	}
	return stageFast + level, due - o.tauP
}
