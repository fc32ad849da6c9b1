package fleet

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"skyserve/internal/service"
	"skyserve/plan"
	"skyserve/provision"
	"skyserve/provision/cloud"
	"skyserve/provision/static"
)

// Scaling changes the replicas of a service that runs, wherever its machines are: those of a
// plan at once, or one that an operator names. Each method returns once what it decides holds.
// Running one again is safe at any time, also after a crash.
type Scaling struct {
	*Fleet
	// Decided is what was decided of replicas before.
	Decided Decisions
	// Keep keeps decisions, before what they decide is begun.
	Keep func(Decisions) error
	// Use has balancers use what a plan came to, less the replicas that are idle, and returns
	// once they do. fresh are the replicas that are new to them.
	Use func(ctx context.Context, p *Plan, idle, fresh map[string]bool) error
	// Progress is told of machines that are launched and removed; nil = nobody is.
	Progress provision.Progress
	// Drained is told of replicas that have finished what they had and stay; nil = nobody is.
	Drained func(id string)
	// Changed says whether anything was changed.
	Changed bool
}

// Wanted is how many replicas are wanted where.
type Wanted struct {
	// Counts are those of regions whose machines are the service's own.
	Counts map[cloud.Group]provision.Counts
	// More is how many more machines of static regions are to serve; fewer where it is below 0.
	More map[cloud.Group]int
}

// WantedBy is what a proposal comes to.
func WantedBy(spec *service.Spec, p plan.Proposal) Wanted {
	w := Wanted{Counts: map[cloud.Group]provision.Counts{}, More: map[cloud.Group]int{}}
	for _, c := range p.Changes {
		g := cloud.Group{Model: c.Model, Region: service.Region(c.Region)}
		if g.Region.Cloud() == service.CloudStatic {
			w.More[g] += c.Delta
			continue
		}
		if w.Counts[g] == nil {
			w.Counts[g] = provision.Counts{}
		}
		w.Counts[g][classOf(spec, c)] += c.Then
	}
	return w
}

// classOf is the class that a row of a plan asks for. A simulated engine of a model without
// GPUs runs on any machine, whatever a plan calls it, and on this computer nothing is paid for.
func classOf(spec *service.Spec, c plan.Change) provision.Class {
	gpus, capacity := c.GPU, ""
	if m := spec.ModelByName(c.Model); m != nil && len(m.GPUs) == 0 {
		gpus = ""
	}
	if c.Capacity != nil && !cloud.IsHere(service.Region(c.Region)) {
		capacity = *c.Capacity
	}
	return provision.ClassNamed(gpus, capacity)
}

// Preview says what Follow would change: the machines that are launched and removed, and the
// replicas in whose place others are launched.
func (s *Scaling) Preview(ctx context.Context, w Wanted) (*Plan, []Swap, error) {
	have, err := s.look(ctx)
	if err != nil {
		return nil, nil, err
	}
	d, _ := differenceOf(s.Spec, have, s.Decided, w.Counts)
	p := &Plan{Have: have}
	if len(d.launch) > 0 {
		defer func() { s.Counts = nil }()
		if p, err = s.planMore(have, d.launch); err != nil {
			return nil, nil, err
		}
	}
	_, gone := s.parted(have, d.excess)
	p.Changes = append(p.Changes, removal(gone, removeExcess)...)
	return p, d.replace, nil
}

// Follow makes the replicas those that are wanted: it drains machines of static regions, or has
// them serve again; takes donated replicas back; launches what is missing; launches others in the place of
// replicas on another GPU or capacity type; and gives up what is too much, once the others
// serve. Where some of it cannot be done the rest is, and the error is an *UndoneError.
func (s *Scaling) Follow(ctx context.Context, w Wanted) error {
	undone, err := s.followStatic(ctx, w.More)
	if err != nil {
		return err
	}
	have, err := s.look(ctx)
	if err != nil {
		return err
	}
	d, short := differenceOf(s.Spec, have, s.Decided, w.Counts)
	undone = append(undone, short...)
	to := s.Decided
	for _, id := range d.reclaim {
		to = to.Reclaimed(id)
	}
	if err := s.decide(ctx, to); err != nil {
		return err
	}
	if err := s.launch(ctx, d.launch); err != nil {
		return err
	}
	for {
		refused, replaced, err := s.replace(ctx, w.Counts)
		if err != nil {
			return err
		}
		gaveUp, err := s.giveUp(ctx, w.Counts)
		if err != nil {
			return err
		}
		if len(refused) > 0 && (replaced || gaveUp) {
			continue // what went left room for others
		}
		if undone = append(undone, refused...); len(undone) > 0 {
			return &UndoneError{undone}
		}
		return nil
	}
}

// UndoneError is what cannot be done of what is wanted: *BoundsError, *RefusedError, and errors
// about static regions.
type UndoneError struct{ Errs []error }

// Error lists all of it.
func (e *UndoneError) Error() string {
	var all []string
	for _, err := range e.Errs {
		all = append(all, err.Error())
	}
	return "not all of it can be done: " + strings.Join(all, "; ")
}

// Unwrap gives all of it.
func (e *UndoneError) Unwrap() []error { return e.Errs }

// Adding is what is wanted where a model in a region gets n more replicas, on a class.
func (s *Scaling) Adding(ctx context.Context, g cloud.Group, n int, on provision.Class) (Wanted, error) {
	if g.Region.Cloud() == service.CloudStatic {
		return Wanted{}, fmt.Errorf("%s: %w", g.Region, ErrNotOurs)
	}
	have, err := s.look(ctx)
	if err != nil {
		return Wanted{}, err
	}
	counts := provision.Counts{}
	for _, o := range own(have, g) {
		if s.Decided.Donation(o.ID) == nil {
			counts[runsOn(o)]++
		}
	}
	counts[on] += n
	if b, n := s.Spec.BoundsFor(g.Model, g.Region), counts.Total(); n > b.Max {
		return Wanted{}, &BoundsError{Model: g.Model, Region: g.Region, Count: n, Bounds: b}
	}
	return Wanted{Counts: map[cloud.Group]provision.Counts{g: counts}}, nil
}

// Removing is the plan of removing one replica, which Remove carries out.
func (s *Scaling) Removing(ctx context.Context, id string) (*Plan, error) {
	if isAttached(s.Spec, id) {
		return nil, fmt.Errorf("%s: %w", id, ErrNotOurs)
	}
	have, err := s.look(ctx)
	if err != nil {
		return nil, err
	}
	if err := s.spares(have, id); err != nil {
		return nil, err
	}
	gone := slices.DeleteFunc(slices.Clone(have), func(o provision.Object) bool { return o.ID != id || o.Kind != provision.KindReplica })
	return &Plan{Have: have, Changes: removal(gone, "removed by hand")}, nil
}

// Remove drains a replica and removes its machine, as Removing planned it.
func (s *Scaling) Remove(ctx context.Context, p *Plan, id string) error {
	if err := s.carryOut(ctx, p); err != nil {
		return err
	}
	next := s.Decided.WithDrained(id, false).Reclaimed(id) // another may get its id
	if next.equal(s.Decided) {
		return nil
	}
	s.Decided = next
	return s.Keep(next)
}

// Drain lets a replica finish what it has and get nothing more, or serve again.
func (s *Scaling) Drain(ctx context.Context, id string, drained bool) error {
	if err := s.keeps(ctx, id); err != nil {
		return err
	}
	return s.decide(ctx, s.Decided.WithDrained(id, drained))
}

// Donate donates a replica from now on. A machine of a static region stays donated, another one
// is removed after autoscale.donate_for.
func (s *Scaling) Donate(ctx context.Context, id string) error {
	if err := s.keeps(ctx, id); err != nil {
		return err
	}
	have, err := s.list(ctx)
	if err != nil {
		return err
	}
	if err := s.spares(have, id); err != nil {
		return err
	}
	return s.decide(ctx, s.donated(s.Decided, id))
}

// Reclaim takes a donated replica back.
func (s *Scaling) Reclaim(ctx context.Context, id string) error {
	if err := s.keeps(ctx, id); err != nil {
		return err
	}
	return s.decide(ctx, s.Decided.Reclaimed(id))
}

// donated is what is decided once a replica is donated from now on.
func (s *Scaling) donated(d Decisions, id string) Decisions {
	now := time.Now().UTC().Round(0)
	how := service.Donation{Since: now, Until: now.Add(s.Spec.Autoscale.DonateFor)}
	if isAttached(s.Spec, id) {
		how.Until = time.Time{}
	}
	return d.WithDonated(id, how)
}

// parted parts replicas that are not needed into those that are donated and those that are
// removed. Machines in clouds go back, since there is nobody to donate them to, and so do those
// in whose place another was launched.
func (s *Scaling) parted(have, excess []provision.Object) (donated, removed []provision.Object) {
	replaced := succeeded(have)
	for _, o := range excess {
		if s.Spec.Autoscale.Donate && cloud.IsHere(o.Region) && !replaced[o.ID] {
			donated = append(donated, o)
		} else {
			removed = append(removed, o)
		}
	}
	return donated, removed
}

// keeps is an error where the service has no such replica, or nobody would keep what is decided
// of it.
func (s *Scaling) keeps(ctx context.Context, id string) error {
	have, err := s.look(ctx)
	switch {
	case err != nil:
		return err
	case !isAttached(s.Spec, id) && !runs(have, id):
		return &NoReplicaError{ID: id}
	case cloud.Rents(s.Spec):
		return fmt.Errorf("%s: %w", id, ErrNotKept)
	}
	return nil
}

// spares is an error where a replica cannot be spared.
func (s *Scaling) spares(have []provision.Object, id string) error {
	g, ids, err := groupOf(s.Spec, have, id)
	if err != nil || s.Decided.Donation(id) != nil {
		return err
	}
	others := slices.DeleteFunc(ids, func(other string) bool { return other == id || s.Decided.Donation(other) != nil })
	if b, n := s.Spec.BoundsFor(g.Model, g.Region), len(others); n < b.Min {
		return &BoundsError{Model: g.Model, Region: g.Region, Count: n, Bounds: b}
	}
	return nil
}

// groupOf is the model and region of a replica, and the ids of all of both.
func groupOf(spec *service.Spec, have []provision.Object, id string) (g cloud.Group, ids []string, err error) {
	for _, o := range have {
		if o.ID == id && o.Kind == provision.KindReplica && o.Gone == "" {
			g = cloud.Group{Model: o.Labels["model"], Region: o.Region}
			for _, other := range own(have, g) {
				ids = append(ids, other.ID)
			}
			return g, ids, nil
		}
	}
	attached := attachedOf(spec)
	i := slices.IndexFunc(attached, func(c service.ReplicaConfig) bool { return c.ID == id })
	switch {
	case i < 0:
		return g, nil, &NoReplicaError{ID: id}
	case attached[i].Model == "":
		return g, nil, &ModelUnknownError{ID: id}
	}
	g = cloud.Group{Model: attached[i].Model, Region: attached[i].Region}
	for _, c := range attached {
		if c.Model == g.Model && c.Region == g.Region {
			ids = append(ids, c.ID)
		}
	}
	return g, ids, nil
}

// look lists what there is. The first time it asks the regions what they offer, too.
func (s *Scaling) look(ctx context.Context) ([]provision.Object, error) {
	if s.offers == nil {
		if err := s.lookAtPrices(ctx); err != nil {
			return nil, err
		}
	}
	return s.list(ctx)
}

// decide makes decisions hold, and returns once what is emptied has finished what it had, and what
// is used again serves.
func (s *Scaling) decide(ctx context.Context, to Decisions) error {
	if to.equal(s.Decided) {
		return nil
	}
	if err := s.Keep(to); err != nil {
		return err
	}
	before, after := s.Decided.Idle(), to.Idle()
	s.Decided, s.Changed = to, true
	have, err := s.list(ctx)
	if err != nil {
		return err
	}
	if err := s.Use(ctx, &Plan{Have: have}, after, minus(before, after)); err != nil {
		return err
	}
	for _, id := range slices.Sorted(maps.Keys(minus(after, before))) {
		if s.Fleet.Drain != nil {
			s.Fleet.Drain(ctx, provision.Object{ID: id, Kind: provision.KindReplica})
		}
		if s.Drained != nil {
			s.Drained(id)
		}
	}
	return nil
}

// carryOut makes the changes of a plan of replicas, and has balancers use what there is then.
func (s *Scaling) carryOut(ctx context.Context, p *Plan) error {
	if len(p.Changes) == 0 {
		return nil
	}
	s.Changed = true
	_, err := provision.Apply(ctx, p.Changes, s.launcher(), s.options(p, s.Progress))
	if err != nil {
		return err
	}
	return s.use(ctx, p)
}

// use has balancers use what there is once a plan was carried out.
func (s *Scaling) use(ctx context.Context, p *Plan) error {
	fresh := map[string]bool{}
	for _, c := range p.Changes {
		if c.Action == provision.ActionLaunch {
			fresh[c.ID()] = true
		}
	}
	return s.Use(ctx, p, s.Decided.Idle(), fresh)
}

// launch launches more replicas.
func (s *Scaling) launch(ctx context.Context, more map[cloud.Group]provision.Counts) error {
	have, err := s.list(ctx)
	if err != nil || len(more) == 0 {
		return err
	}
	s.Changed = true
	p, err := s.launchMore(ctx, have, more, s.Progress)
	if err != nil {
		return err
	}
	return s.use(ctx, p)
}

// replace launches others in the place of replicas that run on something else than is wanted.
// Those that they take the place of are too many then. refused are *RefusedError.
func (s *Scaling) replace(ctx context.Context, counts map[cloud.Group]provision.Counts) (refused []error, replaced bool, err error) {
	have, err := s.list(ctx)
	if err != nil {
		return nil, false, err
	}
	d, _ := differenceOf(s.Spec, have, s.Decided, counts)
	p := &Plan{Have: have}
	for _, swap := range d.replace {
		c, err := s.Exchange(ctx, p.Have, swap.Of, swap.On, s.Progress)
		var stays *RefusedError
		if errors.As(err, &stays) {
			refused = append(refused, stays)
			continue
		}
		if err != nil {
			return refused, replaced, err
		}
		s.Changed, replaced = true, true
		p.Wants, p.Changes = append(p.Wants, c.Want), append(p.Changes, c)
		if p.Have, err = s.list(ctx); err != nil {
			return refused, replaced, err
		}
	}
	if !replaced {
		return refused, false, nil
	}
	return refused, true, s.use(ctx, p)
}

// giveUp donates or removes the replicas that are too many.
func (s *Scaling) giveUp(ctx context.Context, counts map[cloud.Group]provision.Counts) (gaveUp bool, err error) {
	have, err := s.list(ctx)
	if err != nil {
		return false, err
	}
	d, _ := differenceOf(s.Spec, have, s.Decided, counts)
	to := s.Decided
	donated, gone := s.parted(have, d.excess)
	for _, o := range donated {
		to = s.donated(to, o.ID)
	}
	if err := s.decide(ctx, to); err != nil {
		return false, err
	}
	return len(d.excess) > 0, s.carryOut(ctx, &Plan{Have: have, Changes: removal(gone, removeExcess)})
}

// followStatic drains machines of static regions that are too many, the last of the list first,
// and uses drained and donated ones again.
func (s *Scaling) followStatic(ctx context.Context, more map[cloud.Group]int) (undone []error, err error) {
	to := s.Decided
	for _, r := range s.Spec.Regions {
		for i := range s.Spec.Models {
			g := cloud.Group{Model: s.Spec.Models[i].Name, Region: r.Name}
			left := more[g]
			if left < 0 && cloud.Rents(s.Spec) {
				undone = append(undone, fmt.Errorf("%s in %s: %d fewer are proposed: %w", g.Model, g.Region, -left, ErrNotKept))
				continue
			}
			replicas := static.Replicas(s.Spec, r)
			slices.Reverse(replicas)
			for _, c := range replicas {
				idle := to.Idle()[c.ID]
				switch {
				case c.Model != g.Model:
				case left < 0 && !idle:
					to, left = to.WithDrained(c.ID, true), left+1
				case left > 0 && idle:
					to, left = to.WithDrained(c.ID, false).Reclaimed(c.ID), left-1
				}
			}
			switch {
			case left > 0:
				undone = append(undone, fmt.Errorf("%s in %s: machines cannot be added here: list %d more under endpoints in service.yaml", g.Model, g.Region, left))
			case left < 0:
				undone = append(undone, fmt.Errorf("%s in %s: %d fewer are proposed, and which of its machines serve %s is not known here: drain them by hand", g.Model, g.Region, -left, g.Model))
			}
		}
	}
	return undone, s.decide(ctx, to)
}

// removeExcess is why replicas are removed that are too many.
const removeExcess = "more than the plan wants"

// removal is the end of machines, and why.
func removal(gone []provision.Object, why string) provision.Changes {
	changes := provision.Diff(nil, gone)
	for i := range changes {
		changes[i].Reason = why
	}
	return changes
}

// remove ends machines at once; why is told to progress.
func (f *Fleet) remove(ctx context.Context, gone []provision.Object, why string, progress provision.Progress) error {
	_, err := provision.Apply(ctx, removal(gone, why), f.Provider, provision.Options{Parallel: parallel, Progress: progress})
	return err
}

// launchMore launches so many more replicas of classes beside those that are there, and returns
// the plan that it ended with.
func (f *Fleet) launchMore(ctx context.Context, have []provision.Object, more map[cloud.Group]provision.Counts, progress provision.Progress) (*Plan, error) {
	defer func() { f.Counts = nil }() // Up plans again where there is no capacity
	p, err := f.planMore(have, more)
	if err != nil {
		return p, err
	}
	return f.Up(ctx, p, progress)
}

// planMore is the plan of launchMore. Counts say the same from then on.
func (f *Fleet) planMore(have []provision.Object, more map[cloud.Group]provision.Counts) (*Plan, error) {
	f.Counts = map[cloud.Group]provision.Counts{}
	for g, counts := range more {
		f.Counts[g] = maps.Clone(counts)
		for _, o := range own(have, g) {
			if !f.Going[o.ID] {
				f.Counts[g][runsOn(o)]++
			}
		}
	}
	f.Only = func(_ *Plan, c provision.Change) bool {
		return c.Kind() == provision.KindReplica && c.Action == provision.ActionLaunch
	}
	return f.planFor(have, nil)
}
