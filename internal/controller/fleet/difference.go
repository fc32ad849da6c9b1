package fleet

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"skyserve/internal/service"
	"skyserve/provision"
	"skyserve/provision/cloud"
)

// difference is what has to be done for replicas to be those that are wanted, in the order in
// which it is done: what serves more comes first.
type difference struct {
	reclaim []string                         // donated ones
	launch  map[cloud.Group]provision.Counts // beside those that are there
	replace []Swap                           // by others that are launched
	excess  []provision.Object               // that are given up
}

// Swap is a replica that runs on something else than is wanted.
type Swap struct {
	Of provision.Object
	On provision.Class
}

// String is a line of columns for people.
func (s Swap) String() string {
	return fmt.Sprintf("%s\t%s\t%s -> %s", s.Of.ID, s.Of.Region, runsOn(s.Of), s.On)
}

// differenceOf is the difference between the replicas of a service and counts of them by group.
// Replicas that stand in for another region are left as they are. Counts that service.yaml does
// not allow, or leaves no room for, are told as *BoundsError.
func differenceOf(spec *service.Spec, have []provision.Object, decided Decisions, counts map[cloud.Group]provision.Counts) (d difference, short []error) {
	d.launch = map[cloud.Group]provision.Counts{}
	groups := slices.SortedFunc(maps.Keys(counts), func(a, b cloud.Group) int {
		return cmp.Or(cmp.Compare(a.Region, b.Region), cmp.Compare(a.Model, b.Model))
	})
	for _, g := range groups {
		if err := d.add(g, counts[g], spec.BoundsFor(g.Model, g.Region), have, decided); err != nil {
			short = append(short, err)
		}
	}
	return d, short
}

// add adds the difference of one group.
func (d *difference) add(g cloud.Group, counts provision.Counts, b service.Bounds, have []provision.Object, decided Decisions) error {
	wanted := counts.Total()
	if wanted < b.Min || wanted > b.Max {
		return &BoundsError{Model: g.Model, Region: g.Region, Count: wanted, Bounds: b}
	}
	all := own(have, g)
	serving := slices.DeleteFunc(slices.Clone(all), func(o provision.Object) bool { return decided.Donation(o.ID) != nil })
	replaced := succeeded(have)
	slices.SortStableFunc(serving, func(a, b provision.Object) int { // those go first in whose place another was launched
		switch {
		case replaced[a.ID] == replaced[b.ID]:
			return 0
		case replaced[b.ID]:
			return -1
		}
		return 1
	})
	matched, missing := counts.Fit(serving)
	serve := len(serving)
	donated := latestDonated(all, decided)
	missing = slices.DeleteFunc(missing, func(on provision.Class) bool {
		i := slices.IndexFunc(donated, func(o provision.Object) bool { return fits(on, o) })
		if i < 0 {
			return false
		}
		d.reclaim = append(d.reclaim, donated[i].ID)
		donated, serve = slices.Delete(donated, i, i+1), serve+1
		return true
	})
	more := max(0, wanted-serve)
	room := min(more, max(0, b.Max-len(all)))
	for _, on := range missing[:room] {
		if d.launch[g] == nil {
			d.launch[g] = provision.Counts{}
		}
		d.launch[g][on]++
	}
	others := unmatched(serving, matched)
	for _, on := range missing[more:] {
		d.replace = append(d.replace, Swap{others[0], on})
		others = others[1:]
	}
	d.excess = append(d.excess, others...)
	if room < more { // donated ones take it up
		return &BoundsError{Model: g.Model, Region: g.Region, Count: len(all) + more, Bounds: b}
	}
	return nil
}

// own are the replicas of a model in a region, by their numbers, less those that stand in for
// another region.
func own(have []provision.Object, g cloud.Group) []provision.Object {
	replicas := slices.DeleteFunc(slices.Clone(have), func(o provision.Object) bool {
		return o.Kind != provision.KindReplica || o.Gone != "" || cloud.StandsIn(o) != "" || o.Region != g.Region || o.Labels["model"] != g.Model
	})
	slices.SortFunc(replicas, func(a, b provision.Object) int {
		return cmp.Or(cmp.Compare(len(a.ID), len(b.ID)), cmp.Compare(a.ID, b.ID))
	})
	return replicas
}

// unmatched are the replicas that are of no class that is wanted.
func unmatched(serving []provision.Object, matched map[int]provision.Class) []provision.Object {
	var others []provision.Object
	for i, o := range serving {
		if _, fits := matched[i]; !fits {
			others = append(others, o)
		}
	}
	return others
}

// latestDonated are the donated ones of some replicas, those that were donated last first: what
// they hold is the freshest.
func latestDonated(replicas []provision.Object, decided Decisions) []provision.Object {
	donated := slices.DeleteFunc(slices.Clone(replicas), func(o provision.Object) bool { return decided.Donation(o.ID) == nil })
	slices.SortStableFunc(donated, func(a, b provision.Object) int {
		return decided.Donation(b.ID).Since.Compare(decided.Donation(a.ID).Since)
	})
	return donated
}

// fits says whether a replica is of a class. One of which it is not known what it runs on is of
// the zero class alone.
func fits(on provision.Class, o provision.Object) bool {
	return on == provision.Class{} || o.Offering != nil && on.Takes(*o.Offering)
}

// runsOn is the class of a replica; the zero class where that is not known.
func runsOn(o provision.Object) provision.Class {
	if o.Offering == nil {
		return provision.Class{}
	}
	return provision.ClassOf(*o.Offering)
}

// minus is a set less another.
func minus(set, less map[string]bool) map[string]bool {
	left := maps.Clone(set)
	maps.DeleteFunc(left, func(id string, _ bool) bool { return less[id] })
	return left
}
