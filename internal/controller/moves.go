package controller

import (
	"fmt"
	"slices"
	"time"

	"skyserve/internal/service"
	"skyserve/internal/telemetry"
	"skyserve/plan"
)

// move is one change with what is told of it.
type move struct {
	change Change
	events []telemetry.ScalingEvent
}

// terms are how replicas are given up.
type terms struct {
	donate bool
	keep   time.Duration // of what is lent; 0 = for good
}

// termsIn are those of a region. The machines of a static one stay, and rented ones go
// back to their cloud, whatever was asked for.
func termsIn(region service.Region, by service.Autoscale) terms {
	switch region.Cloud() {
	case service.CloudStatic:
		return terms{donate: true}
	case service.CloudLocal:
		return terms{by.Donate, by.DonateFor}
	}
	return terms{}
}

// donation is that of a replica that is given up at a time.
func (t terms) donation(now time.Time) service.Donation {
	d := service.Donation{Since: now.UTC()}
	switch {
	case !t.donate:
		d.Until = d.Since
	case t.keep > 0:
		d.Until = d.Since.Add(t.keep)
	}
	return d
}

// move puts a strategy's scaling into a change: which replicas, and what is told.
func (s *scalingInputs) move(groups []scaled, c plan.Scaling, by service.Autoscale) move {
	g := groups[c.Endpoint]
	m := &mover{scalingInputs: s, group: g, strategy: by.Strategy, reason: c.Reason}
	m.giveUp(c, termsIn(g.region, by))
	launch := c.Launch
	for _, r := range c.Redeploy {
		launch += r.Count - m.redeploy(groups[r.From], r.Count)
	}
	// A strategy does not know of GPUs: what it meant for another model may be left.
	launch += c.Reclaim
	if ids := s.take(g, launch, false); len(ids) > 0 {
		launch -= len(ids)
		m.change.Reclaim = ids
		m.tell(telemetry.ScalingReclaimed, ids)
	}
	if launch > 0 {
		m.launch(launch)
		m.tell(telemetry.ScalingLaunched, nil)
	}
	return m.move
}

// take are up to n donated replicas that nobody took in this turn, those that were
// lent last first: what they hold is the freshest. With idle, only those that have
// finished what they had.
func (s *scalingInputs) take(g scaled, n int, idle bool) []string {
	lent := slices.DeleteFunc(slices.Clone(g.members), func(m member) bool {
		return !m.lent() || idle && !m.idle() || s.taken[m.ID]
	})
	slices.SortStableFunc(lent, func(a, b member) int { return b.Donation.Since.Compare(a.Donation.Since) })
	ids := idsOf(lent[:min(n, len(lent))])
	for _, id := range ids {
		s.taken[id] = true
	}
	return ids
}

// mover makes a move.
type mover struct {
	*scalingInputs
	move
	group    scaled
	strategy string
	reason   string
}

func (m *mover) tell(what telemetry.ScalingAction, ids []string) {
	m.events = append(m.events, telemetry.ScalingEvent{
		At: m.now.UTC(), Strategy: m.strategy, Action: what, Model: m.group.model, Region: m.group.region,
		Replicas: append([]string{}, ids...), Serving: m.group.serving(), Reason: m.reason,
	})
}

// giveUp lends replicas, or lets them go.
func (m *mover) giveUp(c plan.Scaling, t terms) {
	ids := m.group.least(m.group.differs.expendable(c.GivenUp()))
	for _, id := range ids {
		m.change.Donate = append(m.change.Donate, Donating{id, t.donation(m.now)})
	}
	switch {
	case len(ids) == 0:
	case t.donate:
		m.tell(telemetry.ScalingDonated, ids)
	default:
		m.tell(telemetry.ScalingRemoved, ids)
	}
}

// redeploy starts this group's model in the place of another's donated replicas,
// and returns how many it can be: those on the same GPU that have finished.
func (m *mover) redeploy(from scaled, n int) int {
	if from.gpu != m.group.gpu {
		return 0
	}
	ids := m.take(from, n, true)
	if len(ids) == 0 {
		return 0
	}
	m.change.Remove = append(m.change.Remove, ids...)
	m.launch(len(ids))
	m.tell(telemetry.ScalingRedeployed, ids)
	return len(ids)
}

func (m *mover) launch(n int) {
	m.change.Launch = append(m.change.Launch, m.group.differs.launch(m.group.place, n)...)
}

// exchange has one replica of each group that runs on something else than the plan wants
// replaced, where nothing else changes there in this turn.
func (s *scalingInputs) exchange(groups []scaled, changed map[place]bool) []move {
	var out []move
	for _, g := range groups {
		orders := g.exchange()
		if len(orders) == 0 || changed[g.place] {
			continue
		}
		m := &mover{scalingInputs: s, group: g, strategy: s.current.Spec.Autoscale.Strategy}
		m.reason = fmt.Sprintf("the plan wants %s in the place of %s", orders[0].On, orders[0].ID)
		m.change.Replace = orders
		m.tell(telemetry.ScalingReplaced, nil)
		out = append(out, m.move)
	}
	return out
}

// sweep removes the donated replicas whose time is over, once they have finished
// what they had; nil where there are none.
func (s *scalingInputs) sweep(groups []scaled) []move {
	var out []move
	for _, g := range groups {
		over := slices.DeleteFunc(slices.Clone(g.members), func(m member) bool {
			return m.Donation == nil || !m.Donation.Over(s.now) || !m.idle() || s.taken[m.ID]
		})
		if len(over) == 0 {
			continue
		}
		m := &mover{scalingInputs: s, group: g, strategy: s.current.Spec.Autoscale.Strategy}
		m.change.Remove = idsOf(over)
		lent := idsOf(slices.DeleteFunc(slices.Clone(over), func(o member) bool { return o.Donation.Leaving() }))
		if len(lent) > 0 { // the others were told of when they began to leave
			m.reason = fmt.Sprintf("donated for %s and not needed", s.current.Spec.Autoscale.DonateFor)
			m.tell(telemetry.ScalingRemoved, lent)
		}
		out = append(out, m.move)
	}
	return out
}

// donations are what is lent, as it is told.
func (s CurrentState) donations() []telemetry.Donation {
	out := []telemetry.Donation{}
	for _, r := range s.Replicas {
		if !r.lent() {
			continue
		}
		d := telemetry.Donation{
			Replica: r.ID, Model: r.Model, GPU: r.GPU, URL: r.URL, Region: r.Region, Since: r.Donation.Since, EarnsPerHour: s.Spec.Autoscale.DonatePrice,
		}
		if !r.Donation.Until.IsZero() {
			until := r.Donation.Until
			d.Until = &until
		}
		out = append(out, d)
	}
	return out
}
