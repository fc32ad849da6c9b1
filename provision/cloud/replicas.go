package cloud

import (
	"maps"
	"slices"
	"strconv"
	"strings"

	"skyserve/internal/service"
	"skyserve/provision"
)

// addReplicas adds the desired replicas of a model in every managed region except static ones. Their number is that of
// Counts or, without Counts, of the existing replicas, but at least that of DesiredCounts and replicas.min, and at most
// replicas.max. Terminating and overprovisioned replicas are added too. They do not count towards replicas.min. They count
// towards replicas.max, except those in Ending.
//
// If a region has no capacity for some replicas, they are placed in fallback regions until the region has capacity
// again. Fallback regions are the next regions with capacity in service.yaml; after the last region comes the first.
//
// A replica is identified by its model, its region and its ordinal among the replicas of this model in this region. Ordinals
// are like those of a StatefulSet.
func (l *layout) addReplicas(model int) error {
	m := &l.Spec.Models[model]
	ordinals := map[service.Region][]int{}
	shortfall := map[service.Region]int{}
	labels := replicaLabels{}
	classes := map[service.Region]map[int]provision.ReplicaClass{} // the class of each new replica
	for _, r := range ManagedRegions(l.Spec) {
		if r.Cloud() == service.CloudStatic {
			continue // its machines are not launched by skyserve
		}
		b := l.Spec.BoundsFor(m.Name, r)
		existing := l.replicaOrdinals(m, r, isRegular)
		serving, terminating, unreplaced := l.splitTerminating(model, r, existing)
		want := max(len(serving)+len(unreplaced), l.DesiredCounts[ReplicaGroup{m.Name, r}])
		var missing []provision.ReplicaClass
		if counts, counted := l.Counts[ReplicaGroup{m.Name, r}]; counted {
			want = counts.Total()
			serving, missing = l.matchClasses(model, r, serving, counts)
		}
		want = min(max(want, b.Min), b.Max)
		overprovisioned := l.replicaOrdinals(m, r, IsOverprovisioned)
		// Terminating and overprovisioned replicas count towards replicas.max too, but serving replicas stay.
		want = min(want, max(b.Max-l.countWithinMax(model, r, terminating)-l.countWithinMax(model, r, overprovisioned), len(serving)))
		shortfall[r] = min(l.Shortfall[ReplicaGroup{m.Name, r}], max(0, want-len(serving))) // existing replicas stay
		others := l.replicaOrdinals(m, r, func(o provision.Object) bool { return !isRegular(o) })
		ordinals[r] = fillOrdinals(serving, terminating, others, l.endedHere(m, r), want-shortfall[r])
		classes[r] = map[int]provision.ReplicaClass{}
		for _, n := range ordinals[r] {
			if len(missing) > 0 && !slices.Contains(existing, n) {
				classes[r][n], missing = missing[0], missing[1:]
			}
			if len(unreplaced) > 0 && !slices.Contains(existing, n) {
				labels.set(r, n, labelReplaces, unreplaced[0])
				unreplaced = unreplaced[1:]
			}
		}
	}
	for _, r := range l.Spec.Regions {
		l.addOverprovisioned(model, r, ordinals, labels)
	}
	for i, r := range l.Spec.Regions {
		for range shortfall[r.Name] {
			if !l.placeFallback(model, i, ordinals, labels) {
				l.result.Unplaced[ReplicaGroup{m.Name, r.Name}]++
			}
		}
	}
	for _, r := range l.Spec.Regions {
		for _, n := range ordinals[r.Name] {
			if err := l.addReplica(model, r, n, classes[r.Name][n], labels[r.Name][n]); err != nil {
				return err
			}
		}
	}
	return nil
}

// replicaLabels are additional labels of replicas, by region and ordinal.
type replicaLabels map[service.Region]map[int]map[string]string

// set makes a label the only additional label of a replica.
func (m replicaLabels) set(r service.Region, ordinal int, label, value string) {
	if m[r] == nil {
		m[r] = map[int]map[string]string{}
	}
	m[r][ordinal] = map[string]string{label: value}
}

// splitTerminating divides existing replicas into serving and terminating ones, by ordinal. Terminating replicas are
// those in NeedReplacement: they terminate, or are terminated once a replacement is ready. unreplaced contains the
// handles of the terminating replicas that still require a replacement. A terminating replica requires none if it was
// launched to replace a machine that no longer needs replacement.
func (l *layout) splitTerminating(model int, region service.Region, ordinals []int) (serving, terminating []int, unreplaced []string) {
	for _, n := range ordinals {
		id := l.replicaID(model, region, n)
		if !l.NeedReplacement[id] {
			serving = append(serving, n)
			continue
		}
		terminating = append(terminating, n)
		replica := l.runningObject(id) // not nil: ordinals contains existing replicas
		// o is the replacement of the replica, or a machine that the replica was to replace and that stays.
		replaced := func(o provision.Object) bool {
			stays := !l.NeedReplacement[o.ID] && ReplacesHandle(*replica) != "" && o.Handle == ReplacesHandle(*replica)
			return o.TerminatedReason == "" && (stays || ReplacesHandle(o) == replica.Handle)
		}
		if !slices.ContainsFunc(l.Have, replaced) {
			unreplaced = append(unreplaced, replica.Handle)
		}
	}
	return serving, terminating, unreplaced
}

// CountedReplicas returns the replicas that count towards the desired number of each model and region, by handle: the
// existing regular ones without static machines. A terminating one counts until it has a replacement, which then counts.
func CountedReplicas(spec *service.Spec, have []provision.Object, needReplacement map[string]bool) map[ReplicaGroup][]string {
	l := &layout{LayoutInput: LayoutInput{Spec: spec, Have: have, NeedReplacement: needReplacement}}
	counted := map[ReplicaGroup][]string{}
	for i := range spec.Models {
		for _, r := range ManagedRegions(spec) {
			if r.Cloud() == service.CloudStatic {
				continue
			}
			m := &spec.Models[i]
			serving, _, unreplaced := l.splitTerminating(i, r, l.replicaOrdinals(m, r, isRegular))
			for _, n := range serving {
				unreplaced = append(unreplaced, l.runningObject(l.replicaID(i, r, n)).Handle) // not nil: it exists
			}
			counted[ReplicaGroup{m.Name, r}] = unreplaced
		}
	}
	return counted
}

// countWithinMax returns how many of the replicas with these ordinals count towards replicas.max.
func (l *layout) countWithinMax(model int, region service.Region, ordinals []int) (n int) {
	for _, ordinal := range ordinals {
		if !l.Ending[l.replicaID(model, region, ordinal)] {
			n++
		}
	}
	return n
}

// placeFallback places one replica of a region, spec.regions[from], in a fallback region. It prefers an existing
// fallback replica to launching another one. It returns false if no other region has capacity and fewer replicas than its
// replicas.max.
func (l *layout) placeFallback(model, from int, ordinals map[service.Region][]int, labels replicaLabels) bool {
	m, regions := &l.Spec.Models[model], l.Spec.Regions
	home := regions[from].Name
	var candidates []service.Region
	for step := 1; step < len(regions); step++ {
		r := regions[(from+step)%len(regions)].Name
		if r.Cloud() == service.CloudStatic || l.Shortfall[ReplicaGroup{m.Name, r}] > 0 || l.countWithinMax(model, r, ordinals[r]) >= l.Spec.BoundsFor(m.Name, r).Max {
			continue
		}
		candidates = append(candidates, r)
	}
	add := func(r service.Region, n int) bool {
		at, _ := slices.BinarySearch(ordinals[r], n)
		ordinals[r] = slices.Insert(ordinals[r], at, n)
		labels.set(r, n, labelFallbackFor, string(home))
		return true
	}
	for _, r := range candidates {
		for _, n := range l.replicaOrdinals(m, r, func(o provision.Object) bool { return FallbackFor(o) == home }) {
			if !slices.Contains(ordinals[r], n) {
				return add(r, n)
			}
		}
	}
	if len(candidates) == 0 {
		return false
	}
	r := candidates[0]
	taken := slices.Concat(ordinals[r], l.replicaOrdinals(m, r, func(provision.Object) bool { return true }))
	return add(r, lowestFreeOrdinal(taken))
}

// replicaOrdinals returns the ordinals of a model's running replicas in a region, ascending. It omits replicas for which
// filter is false.
func (l *layout) replicaOrdinals(m *service.Model, region service.Region, filter func(provision.Object) bool) []int {
	found := map[int]bool{}
	for _, o := range l.Have {
		if o.Kind != provision.KindReplica || o.Region != region || o.TerminatedReason != "" || o.Labels[labelModel] != m.Name || !filter(o) {
			continue
		}
		if n, ok := replicaOrdinal(&o); ok {
			found[n] = true
		}
	}
	return slices.Sorted(maps.Keys(found))
}

// replicaOrdinal returns the ordinal in the id of a replica; ok is false for other ids.
func replicaOrdinal(o *provision.Object) (n int, ok bool) {
	n, err := strconv.Atoi(o.ID[strings.LastIndexByte(o.ID, '-')+1:])
	return n, err == nil && n >= 0
}

// endedHere returns the ordinals of the regular replicas of a model that have ended in a region on this computer, ascending.
// Their disks exist: they are started again before others are created.
func (l *layout) endedHere(m *service.Model, region service.Region) (ended []int) {
	for _, o := range l.Have {
		if o.Kind != provision.KindReplica || o.Region != region || o.TerminatedReason == "" || !RunsOnThisComputer(region) || o.Labels[labelModel] != m.Name || !isRegular(o) {
			continue
		}
		if n, ok := replicaOrdinal(&o); ok {
			ended = append(ended, n)
		}
	}
	slices.Sort(ended)
	return ended
}

// fillOrdinals returns the first n of ordinals and, if there are fewer than n, free ones: first of preferred, then the
// lowest. It also returns all terminating ones. taken contains the ordinals of other replicas. The result is sorted.
func fillOrdinals(ordinals, terminating, taken, preferred []int, n int) []int {
	out := slices.Clone(ordinals)
	out = out[:min(len(out), n)]
	slices.Sort(out)
	for len(out) < n {
		used := slices.Concat(out, terminating, taken)
		free := lowestFreeOrdinal(used)
		if i := slices.IndexFunc(preferred, func(p int) bool { return !slices.Contains(used, p) }); i >= 0 {
			free = preferred[i]
		}
		at, _ := slices.BinarySearch(out, free)
		out = slices.Insert(out, at, free)
	}
	out = append(out, terminating...)
	slices.Sort(out)
	return out
}

// FallbackFor returns the region without capacity for which a fallback replica runs in another region; empty for other
// replicas.
func FallbackFor(o provision.Object) service.Region {
	return service.Region(o.Labels[labelFallbackFor])
}

// ReplacesHandle returns the handle of the terminating machine that a replica replaces; empty for any other
// replica.
func ReplacesHandle(o provision.Object) string { return o.Labels[labelReplaces] }

func lowestFreeOrdinal(taken []int) int {
	n := 0
	for slices.Contains(taken, n) {
		n++
	}
	return n
}
