package deploy

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"skyserve/internal/service"
	"skyserve/provision"
	"skyserve/provision/cloud"
)

// replicaDiff contains the changes that lead to the desired replicas, in the order in which they are
// applied: increases of capacity first.
type replicaDiff struct {
	reclaim []string                                     // donated replicas
	launch  map[cloud.ReplicaGroup]provision.ClassCounts // in addition to the existing replicas
	replace []ClassMismatch                              // with newly launched replicas
	excess  []provision.Object                           // replicas to donate or remove
}

// ClassMismatch is a replica whose class is not the desired one: a replica of the desired class replaces it.
type ClassMismatch struct {
	Replica provision.Object       // the replica that is to be replaced
	Class   provision.ReplicaClass // the desired class
}

// String formats it in columns for display.
func (s ClassMismatch) String() string {
	return fmt.Sprintf("%s\t%s\t%s -> %s", s.Replica.ID, s.Replica.Region, replicaClassOf(s.Replica), s.Class)
}

// diffReplicas returns the difference between the replicas of a service and the desired counts by
// group. It ignores replicas that are a fallback for another region. Drained replicas stay as they are: they serve
// nothing, so they do not count as existing, except towards the bounds. Counts outside the bounds of service.yaml
// are returned in outOfBounds, as *BoundsError.
func diffReplicas(spec *service.Spec, have []provision.Object, decided ReplicaDecisions, counts map[cloud.ReplicaGroup]provision.ClassCounts) (d replicaDiff, outOfBounds []error) {
	d.launch = map[cloud.ReplicaGroup]provision.ClassCounts{}
	groups := slices.SortedFunc(maps.Keys(counts), func(a, b cloud.ReplicaGroup) int {
		return cmp.Or(cmp.Compare(a.Region, b.Region), cmp.Compare(a.Model, b.Model))
	})
	for _, g := range groups {
		if err := d.addGroup(g, counts[g], spec.BoundsFor(g.Model, g.Region), have, decided); err != nil {
			outOfBounds = append(outOfBounds, err)
		}
	}
	return d, outOfBounds
}

// addGroup adds the difference of one group.
func (d *replicaDiff) addGroup(g cloud.ReplicaGroup, counts provision.ClassCounts, b service.Bounds, have []provision.Object, decided ReplicaDecisions) error {
	wanted := counts.Total()
	all := replicasIn(have, g)
	serving, drained := servingAndDrained(all, decided)
	if belowMin := wanted < b.Min && wanted < len(serving); belowMin || wanted > b.Max {
		return &BoundsError{Model: g.Model, Region: g.Region, Count: wanted, Bounds: b}
	}
	replaced := withReplacement(have)
	slices.SortStableFunc(serving, func(a, b provision.Object) int { // already replaced ones last, so that they are excess
		switch {
		case replaced[a.ID] == replaced[b.ID]:
			return 0
		case replaced[b.ID]:
			return -1
		}
		return 1
	})
	matched, missing := counts.Match(serving)
	serve := len(serving)
	donated := latestDonated(all, decided)
	missing = slices.DeleteFunc(missing, func(class provision.ReplicaClass) bool {
		i := slices.IndexFunc(donated, func(o provision.Object) bool { return fits(class, o) })
		if i < 0 {
			return false
		}
		d.reclaim = append(d.reclaim, donated[i].ID)
		donated, serve = slices.Delete(donated, i, i+1), serve+1
		return true
	})
	more := max(0, wanted-serve)
	capacity := min(more, max(0, b.Max-len(all)))
	for _, class := range missing[:capacity] {
		if d.launch[g] == nil {
			d.launch[g] = provision.ClassCounts{}
		}
		d.launch[g][class]++
	}
	others := unmatched(serving, matched)
	for _, class := range missing[more:] {
		d.replace = append(d.replace, ClassMismatch{others[0], class})
		others = others[1:]
	}
	d.excess = append(d.excess, others...)
	if capacity < more { // donated and drained replicas count towards replicas.max
		return &BoundsError{Model: g.Model, Region: g.Region, Count: len(all) + more, Drained: drained, Bounds: b}
	}
	return nil
}

// servingAndDrained returns the replicas that are neither donated nor drained, and the IDs of those that are drained.
func servingAndDrained(replicas []provision.Object, decided ReplicaDecisions) (serving []provision.Object, drained []string) {
	for _, o := range replicas {
		switch {
		case decided.Donation(o.ID) != nil:
		case decided.IsDrained(o.ID):
			drained = append(drained, o.ID)
		default:
			serving = append(serving, o)
		}
	}
	return serving, drained
}

// replicasIn returns the replicas of a model in a region, by number, without those that are a fallback for
// another region or overprovisioned.
func replicasIn(have []provision.Object, g cloud.ReplicaGroup) []provision.Object {
	replicas := slices.DeleteFunc(slices.Clone(have), func(o provision.Object) bool {
		return o.Kind != provision.KindReplica || o.TerminatedReason != "" || cloud.FallbackFor(o) != "" || cloud.IsOverprovisioned(o) || o.Region != g.Region || o.Labels["model"] != g.Model
	})
	slices.SortFunc(replicas, func(a, b provision.Object) int {
		return cmp.Or(cmp.Compare(len(a.ID), len(b.ID)), cmp.Compare(a.ID, b.ID))
	})
	return replicas
}

// unmatched returns the replicas whose class is not desired.
func unmatched(serving []provision.Object, matched map[int]provision.ReplicaClass) []provision.Object {
	var others []provision.Object
	for i, o := range serving {
		if _, fits := matched[i]; !fits {
			others = append(others, o)
		}
	}
	return others
}

// latestDonated returns the donated replicas, the most recently donated first, because their caches
// are the freshest.
func latestDonated(replicas []provision.Object, decided ReplicaDecisions) []provision.Object {
	donated := slices.DeleteFunc(slices.Clone(replicas), func(o provision.Object) bool { return decided.Donation(o.ID) == nil })
	slices.SortStableFunc(donated, func(a, b provision.Object) int {
		return decided.Donation(b.ID).Since.Compare(decided.Donation(a.ID).Since)
	})
	return donated
}

// fits reports whether a replica has a class. A replica of unknown class matches only the zero class.
func fits(class provision.ReplicaClass, o provision.Object) bool {
	return class == provision.ReplicaClass{} || o.Offering != nil && class.Matches(*o.Offering)
}

// replicaClassOf returns the class of a replica; the zero class where it is unknown.
func replicaClassOf(o provision.Object) provision.ReplicaClass {
	if o.Offering == nil {
		return provision.ReplicaClass{}
	}
	return provision.ReplicaClassOf(*o.Offering)
}

// subtract returns the elements of set that are not in less.
func subtract(set, less map[string]bool) map[string]bool {
	rest := maps.Clone(set)
	maps.DeleteFunc(rest, func(id string, _ bool) bool { return less[id] })
	return rest
}
