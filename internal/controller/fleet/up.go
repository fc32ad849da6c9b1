package fleet

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"skyserve/provision"
	"skyserve/provision/cloud"
)

// Up carries a plan out, telling progress. Where a region has no capacity left for
// replicas it plans again with them in other regions, until everything stands
// somewhere or nobody has room; then the error joins the refusals, and what could be
// had stands. The plan it ends with is returned. Running it again is safe at any
// time, also after a crash.
func (f *Fleet) Up(ctx context.Context, p *Plan, progress provision.Progress) (*Plan, error) {
	short := map[cloud.Group]int{}
	for {
		_, failure := provision.Apply(ctx, p.Changes, f.launcher(), f.options(p, progress))
		if failure == nil {
			return p, f.lacking(p, nil)
		}
		if ctx.Err() != nil {
			return p, failure
		}
		refused, only := refusals(failure)
		if !only {
			return p, failure
		}
		for _, r := range refused {
			if !f.addShort(short, p, r) {
				return p, failure // a balancer, which no other region can stand in for
			}
		}
		next, err := f.plan(ctx, short)
		if err != nil {
			return p, errors.Join(failure, err)
		}
		if p = next; len(p.Changes) == 0 {
			return p, f.lacking(p, failure)
		}
	}
}

// launcher is what launches machines.
func (f *Fleet) launcher() provision.Provider {
	if f.Enrolments == nil {
		return f.Provider
	}
	return noting{f.Provider, f.Enrolments}
}

// lacking is the error of a plan that was carried out and leaves replicas missing.
func (f *Fleet) lacking(p *Plan, failure error) error {
	for _, n := range p.Missing {
		if n > 0 {
			return &ShortError{Missing: p.Missing, Err: failure}
		}
	}
	return nil
}

// addShort notes that a replica cannot be had in its region; false for anything else.
func (f *Fleet) addShort(short map[cloud.Group]int, p *Plan, r *provision.NoCapacityError) bool {
	for _, w := range p.Wants {
		if w.ID == r.ID && w.Region == r.Region && w.Kind == provision.KindReplica {
			short[cloud.Group{Model: w.Labels["model"], Region: w.Region}]++
			return true
		}
	}
	return false
}

// refusals are the refusals of capacity in an error, and whether there is nothing
// else in it.
func refusals(err error) (refused []*provision.NoCapacityError, only bool) {
	joined, ok := err.(interface{ Unwrap() []error })
	if !ok {
		var r *provision.NoCapacityError
		if errors.As(err, &r) {
			return []*provision.NoCapacityError{r}, true
		}
		return nil, false
	}
	only = true
	for _, e := range joined.Unwrap() {
		more, all := refusals(e)
		refused, only = append(refused, more...), only && all
	}
	return refused, only
}

// options are those of carrying a plan out.
func (f *Fleet) options(p *Plan, progress provision.Progress) provision.Options {
	count := map[cloud.Group]int{}
	for _, o := range p.Have {
		if o.Kind == provision.KindReplica && o.Gone == "" {
			count[cloud.Group{Model: o.Labels["model"], Region: o.Region}]++
		}
	}
	return provision.Options{
		Parallel: parallel, Progress: progress, Settle: f.Settle, Drain: f.Drain, Now: f.Now, Exhausted: &f.exhausted,
		// A balancer is replaced after another works: two of them do no harm.
		Surge: func(c provision.Change) bool {
			if _, is := f.replacement(c); is || cloud.IsHere(c.Region()) { // two of one id cannot stand side by side here
				return false
			}
			g := cloud.Group{Model: c.Have.Labels["model"], Region: c.Region()}
			return c.Kind() == provision.KindBalancer || count[g] < f.Spec.BoundsFor(g.Model, g.Region).Max
		},
	}
}

// parallel bounds the changes carried out at once. Each has one call in flight at
// a time, and each region no more than provision.CallsPerHost; this many let a
// service of a dozen regions come up at the speed of its slowest.
const parallel = 128

// ShortError is a service that lacks replicas for want of capacity anywhere.
type ShortError struct {
	Missing map[cloud.Group]int
	Err     error // what was refused; nil where it was refused before
}

// Error says how many of what are missing where.
func (e *ShortError) Error() string {
	groups := slices.SortedFunc(maps.Keys(e.Missing), func(a, b cloud.Group) int {
		return cmp.Or(cmp.Compare(a.Region, b.Region), cmp.Compare(a.Model, b.Model))
	})
	var parts []string
	for _, g := range groups {
		if n := e.Missing[g]; n > 0 {
			parts = append(parts, fmt.Sprintf("%d of %s in %s", n, g.Model, g.Region))
		}
	}
	text := "replicas without capacity anywhere: " + strings.Join(parts, ", ")
	if e.Err != nil {
		text += "\n" + e.Err.Error()
	}
	return text
}

// Unwrap gives the refusals.
func (e *ShortError) Unwrap() error { return e.Err }
