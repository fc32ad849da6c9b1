package rollout

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"skyserve/internal/service"
	"skyserve/plan"
	"skyserve/provision"
	"skyserve/provision/local"
)

// readyPatience is how long replicas that were added may take until they serve: a
// simulated engine takes a second, the rest is for a machine with much to do.
const readyPatience = time.Minute

// Running is a service that was brought up, with what is wanted of its replicas.
// The caller holds the lock of the service for as long as it changes it.
type Running struct {
	Spec   *service.Spec
	Wanted local.Wanted

	svc  local.Service
	text []byte
}

// Open reads what a service was brought up with. Errors are of its state directory,
// or *provision.SpecError.
func Open(svc local.Service) (*Running, error) {
	text, err := os.ReadFile(svc.SpecFile())
	if err != nil {
		return nil, fmt.Errorf("reading the service.yaml of %s: %w", svc.Name(), err)
	}
	r := &Running{svc: svc, text: text}
	if r.Spec, err = Read(svc.SpecFile(), text); err != nil {
		return nil, err
	}
	r.Wanted, err = svc.Wanted()
	return r, err
}

// Attached are the ids of the replicas that are no processes of this machine: those
// of static regions.
func (r *Running) Attached() []string {
	var out []string
	for _, replicas := range attached(r.Spec) {
		for _, c := range replicas {
			out = append(out, c.ID)
		}
	}
	slices.Sort(out)
	return out
}

// Scaling tells of a change of replicas as it proceeds; either may be nil.
type Scaling struct {
	Progress provision.Progress
	// Ready is told of a replica that has come to work or, with drained, has finished
	// what it had.
	Ready func(id string, drained bool)
}

// Carry makes the service run the replicas that to asks for: it keeps that
// decision, adds what is missing and waits until it serves, and then drains and
// stops what is too much, one of a model and region at a time. Each step is kept
// before it is begun, so that after a crash between any two the same call, or `up`,
// goes on. changed tells whether there was anything to do. Errors are those of
// Plan.Apply and Plan.Wait.
func (r *Running) Carry(ctx context.Context, to local.Wanted, s Scaling) (changed bool, err error) {
	for _, step := range r.steps(to) {
		did, err := r.step(ctx, step, s)
		changed = changed || did
		if err != nil {
			return changed, err
		}
	}
	return changed, nil
}

// steps leads from what is wanted to another decision: first everything that is
// added, then one replica less of each group at a time, the highest number first.
func (r *Running) steps(to local.Wanted) []local.Wanted {
	more := 0
	lent := r.stayLent(to)
	at := func(removed int) local.Wanted {
		w := local.Wanted{Drained: to.Drained, Donated: lent}
		for _, region := range r.Spec.Regions {
			for _, m := range r.Spec.Models {
				if region.Name.Cloud() != service.CloudLocal {
					continue
				}
				end := to.Numbers(r.Spec, m.Name, region.Name)
				going := slices.DeleteFunc(r.Wanted.Numbers(r.Spec, m.Name, region.Name), func(n int) bool { return slices.Contains(end, n) })
				slices.Reverse(going)
				more = max(more, len(going))
				stay := slices.Concat(end, going[min(removed, len(going)):])
				w.Groups = append(w.Groups, local.Group{Model: m.Name, Region: region.Name, Numbers: stay})
			}
		}
		return w
	}
	steps := []local.Wanted{at(0)}
	for n := range more {
		steps = append(steps, at(n+1))
	}
	return steps
}

// stayLent are the donations of a decision, and those of replicas that it removes,
// which serve nobody until they are gone.
func (r *Running) stayLent(to local.Wanted) []local.Donated {
	lent, stay := slices.Clone(to.Donated), to.IDs(r.Spec)
	for _, d := range r.Wanted.Donated {
		if !slices.Contains(stay, d.ID) && !slices.Contains(r.Attached(), d.ID) {
			lent = append(lent, d)
		}
	}
	return lent
}

// step makes one decision hold.
func (r *Running) step(ctx context.Context, to local.Wanted, s Scaling) (changed bool, err error) {
	p, err := newPlan(r.svc, r.Spec, r.text, to, false)
	if err != nil {
		return false, err
	}
	before, after := emptied(r.Wanted), emptied(p.Layout.Wanted)
	drained := slices.DeleteFunc(slices.Clone(after), func(id string) bool { return slices.Contains(before, id) })
	back := slices.DeleteFunc(before, func(id string) bool { return slices.Contains(after, id) || !r.Wanted.IsDonated(id) })
	if len(p.Changes) == 0 && len(drained) == 0 {
		return false, nil
	}
	if _, err := p.Apply(ctx, s.Progress); err != nil {
		return true, err
	}
	r.Wanted = p.Layout.Wanted
	for _, id := range drained {
		p.drain(ctx, provision.Object{ID: id, Kind: provision.KindReplica})
		if s.Ready != nil {
			s.Ready(id, true)
		}
	}
	return true, r.settle(ctx, p, back, s)
}

// emptied are the replicas that are sent nothing: drained or donated.
func emptied(w local.Wanted) []string {
	ids := slices.Clone(w.Drained)
	for _, d := range w.Donated {
		ids = append(ids, d.ID)
	}
	return ids
}

// settle waits until what a step launched, or took back, serves.
func (r *Running) settle(ctx context.Context, p *Plan, back []string, s Scaling) error {
	waiting := map[string]bool{}
	for _, id := range back {
		if slices.ContainsFunc(p.Layout.Controller.Replicas, func(c service.ControlledReplica) bool { return c.ID == id }) {
			waiting[id] = true // else it is removed, or drained
		}
	}
	for _, c := range p.Changes {
		if c.Action == provision.ActionLaunch {
			waiting[c.ID()] = true
		}
	}
	ctx, cancel := context.WithTimeoutCause(ctx, readyPatience, errors.New("not ready within "+readyPatience.String()))
	defer cancel()
	return p.wait(ctx, waiting, func(id string) {
		if s.Ready != nil {
			s.Ready(id, false)
		}
	})
}

// Donate is a decision with a replica lent from a time on, for as long as the
// service keeps what is lent. Errors are those of local.Wanted.WithDonated.
func (r *Running) Donate(to local.Wanted, id string, at time.Time) (local.Wanted, error) {
	d := service.Donation{Since: at.UTC().Round(0), Until: at.UTC().Round(0).Add(r.Spec.Autoscale.DonateFor)}
	if slices.Contains(r.Attached(), id) {
		d.Until = time.Time{}
	}
	return to.WithDonated(r.Spec, attached(r.Spec), id, d)
}

// Follow is the decision that a proposal comes to at a time: the counts of local
// regions, and which machines of static ones are drained. undone says in words what
// of the proposal cannot be done on a running service.
func (r *Running) Follow(p plan.Proposal, at time.Time) (to local.Wanted, undone []string) {
	to = r.Wanted
	for _, region := range r.Spec.Regions {
		for i := range r.Spec.Models {
			var err error
			m := &r.Spec.Models[i]
			switch region.Name.Cloud() {
			case service.CloudLocal:
				to, err = r.followLocal(to, m, region, p, at)
			case service.CloudStatic:
				to, err = r.followStatic(to, m, region, p)
			}
			if err != nil {
				undone = append(undone, strings.Split(err.Error(), "\n")...)
			}
		}
	}
	return to, undone
}

// rowsOf are the changes of one model in one region.
func rowsOf(p plan.Proposal, m *service.Model, region service.Region) []plan.Change {
	return slices.DeleteFunc(slices.Clone(p.Changes), func(c plan.Change) bool {
		return c.Model != m.Name || c.Region != string(region)
	})
}

// followLocal sets the count of a local region. Its replicas stand for the first
// GPU that the model lists; no more of another can be had.
func (r *Running) followLocal(to local.Wanted, m *service.Model, region service.RegionSpec, p plan.Proposal, at time.Time) (local.Wanted, error) {
	count := 0
	var other error
	for _, c := range rowsOf(p, m, region.Name) {
		if c.Delta > 0 && len(m.GPUs) > 0 && c.GPU != gpuName(m.GPUs[0]) {
			other = fmt.Errorf("%s in %s: replicas there run on %s, the first of models[].gpus: %d more on %s cannot be added", m.Name, region.Name, gpuName(m.GPUs[0]), c.Delta, c.GPU)
			count += c.Now
			continue
		}
		count += c.Then
	}
	next, err := to.WithCount(r.Spec, m.Name, region.Name, count)
	if err == nil && r.Spec.Autoscale.Donate {
		next, err = r.lendDown(to, next, m.Name, region.Name, at)
	}
	return next, errors.Join(other, err)
}

// lendDown is next, with those lent that it removes from a decision.
func (r *Running) lendDown(from, next local.Wanted, model string, region service.Region, at time.Time) (local.Wanted, error) {
	stay := next.IDsOf(r.Spec, model, region)
	going := slices.DeleteFunc(from.Serving(from.IDsOf(r.Spec, model, region)), func(id string) bool { return slices.Contains(stay, id) })
	if len(going) == 0 {
		return next, nil
	}
	var err error
	for _, id := range going {
		if from, err = r.Donate(from, id, at); err != nil {
			return next, err
		}
	}
	return from, nil
}

// gpuName is a GPU as plans call it.
func gpuName(g service.GPU) string {
	if g.Count > 1 {
		return fmt.Sprintf("%dx%s", g.Count, g.Type)
	}
	return g.Type
}

// followStatic drains machines that are too many, the last of the list first, and
// uses drained and donated ones again.
func (r *Running) followStatic(to local.Wanted, m *service.Model, region service.RegionSpec, p plan.Proposal) (local.Wanted, error) {
	delta := 0
	for _, c := range rowsOf(p, m, region.Name) {
		delta += c.Delta
	}
	replicas := attached(r.Spec)[region.Name]
	slices.Reverse(replicas)
	for _, c := range replicas {
		idle := slices.Contains(to.Drained, c.ID) || to.IsDonated(c.ID)
		switch {
		case c.Model != m.Name:
		case delta < 0 && !idle:
			to = to.WithDrained(c.ID, true)
			delta++
		case delta > 0 && idle:
			to = to.WithDrained(c.ID, false).Reclaimed(c.ID)
			delta--
		}
	}
	switch {
	case delta > 0:
		return to, fmt.Errorf("%s in %s: machines cannot be added here: list %d more under endpoints in service.yaml", m.Name, region.Name, delta)
	case delta < 0:
		return to, fmt.Errorf("%s in %s: %d fewer are proposed, and which of its machines serve %s is not known here: drain them by hand", m.Name, region.Name, -delta, m.Name)
	}
	return to, nil
}
