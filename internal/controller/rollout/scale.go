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
	at := func(removed int) local.Wanted {
		w := local.Wanted{Drained: to.Drained}
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

// step makes one decision hold.
func (r *Running) step(ctx context.Context, to local.Wanted, s Scaling) (changed bool, err error) {
	p, err := newPlan(r.svc, r.Spec, r.text, to, false)
	if err != nil {
		return false, err
	}
	drained := slices.DeleteFunc(slices.Clone(p.Layout.Wanted.Drained), func(id string) bool { return slices.Contains(r.Wanted.Drained, id) })
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
	return true, r.settle(ctx, p, s)
}

// settle waits until what a step launched serves.
func (r *Running) settle(ctx context.Context, p *Plan, s Scaling) error {
	waiting := map[string]bool{}
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

// Follow is the decision that a proposal comes to: the counts of local regions,
// and which machines of static ones are drained. undone says in words what of the
// proposal cannot be done on a running service.
func (r *Running) Follow(p plan.Proposal) (to local.Wanted, undone []string) {
	to = r.Wanted
	for _, region := range r.Spec.Regions {
		for i := range r.Spec.Models {
			var err error
			m := &r.Spec.Models[i]
			switch region.Name.Cloud() {
			case service.CloudLocal:
				to, err = r.followLocal(to, m, region, p)
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
func (r *Running) followLocal(to local.Wanted, m *service.Model, region service.RegionSpec, p plan.Proposal) (local.Wanted, error) {
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
	return next, errors.Join(other, err)
}

// gpuName is a GPU as plans call it.
func gpuName(g service.GPU) string {
	if g.Count > 1 {
		return fmt.Sprintf("%dx%s", g.Count, g.Type)
	}
	return g.Type
}

// followStatic drains machines that are too many, the last of the list first, and
// uses drained ones again.
func (r *Running) followStatic(to local.Wanted, m *service.Model, region service.RegionSpec, p plan.Proposal) (local.Wanted, error) {
	delta := 0
	for _, c := range rowsOf(p, m, region.Name) {
		delta += c.Delta
	}
	replicas := attached(r.Spec)[region.Name]
	slices.Reverse(replicas)
	for _, c := range replicas {
		idle := slices.Contains(to.Drained, c.ID)
		switch {
		case c.Model != m.Name:
		case delta < 0 && !idle:
			to = to.WithDrained(c.ID, true)
			delta++
		case delta > 0 && idle:
			to = to.WithDrained(c.ID, false)
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
