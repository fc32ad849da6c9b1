package cloud

import (
	"maps"
	"slices"
	"strconv"
	"strings"

	"skyserve/internal/service"
	"skyserve/provision"
)

// addReplicas adds the desired replicas of a model in every managed region: at least replicas.min; above
// that the existing replicas, or Counts, up to replicas.max. Terminating replicas stay until they have
// terminated. They count towards max, unless they are Ending, not towards min. The same holds for extra replicas.
//
// If a region has no capacity for some replicas, they are placed in fallback regions until the region has
// capacity again. Fallback regions are the next regions in the order of the file that have capacity.
func (l *layout) addReplicas(model int) error {
	m := &l.Spec.Models[model]
	numbers := map[service.Region][]int{}
	shortfall := map[service.Region]int{}
	labels := extraLabels{}
	classes := map[service.Region]map[int]provision.ReplicaClass{} // the class of each new replica
	for _, r := range ManagedRegions(l.Spec) {
		if r.Cloud() == service.CloudStatic {
			continue // its machines already exist
		}
		b := l.Spec.BoundsFor(m.Name, r)
		existing := l.replicaNumbers(m, r, isRegular)
		serve, terminating, unreplaced := l.splitTerminating(model, r, existing)
		want := len(serve) + len(unreplaced)
		var missing []provision.ReplicaClass
		if counts, counted := l.Counts[ReplicaGroup{m.Name, r}]; counted {
			want = counts.Total()
			serve, missing = l.matchClasses(model, r, serve, counts)
		}
		want = min(max(want, b.Min), b.Max)
		extras := l.replicaNumbers(m, r, IsOverprovisioned)
		want = min(want, max(b.Max-l.countWithinMax(model, r, terminating)-l.countWithinMax(model, r, extras), len(serve)))
		shortfall[r] = min(l.Shortfall[ReplicaGroup{m.Name, r}], max(0, want-len(serve))) // existing replicas stay
		others := l.replicaNumbers(m, r, func(o provision.Object) bool { return !isRegular(o) })
		numbers[r] = fillNumbers(serve, terminating, others, want-shortfall[r])
		classes[r] = map[int]provision.ReplicaClass{}
		for _, n := range numbers[r] {
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
		l.addExtras(model, r, numbers, labels)
	}
	for i, r := range l.Spec.Regions {
		for range shortfall[r.Name] {
			if !l.placeFallback(model, i, numbers, labels) {
				l.result.Unplaced[ReplicaGroup{m.Name, r.Name}]++
			}
		}
	}
	for _, r := range l.Spec.Regions {
		for _, n := range numbers[r.Name] {
			if err := l.addReplica(model, r, n, classes[r.Name][n], labels[r.Name][n]); err != nil {
				return err
			}
		}
	}
	return nil
}

// extraLabels are additional labels of replicas, by region and number.
type extraLabels map[service.Region]map[int]map[string]string

func (m extraLabels) set(r service.Region, number int, label, value string) {
	if m[r] == nil {
		m[r] = map[int]map[string]string{}
	}
	m[r][number] = map[string]string{label: value}
}

// splitTerminating divides the numbers of existing replicas into serving and terminating replicas.
// unreplaced contains the handles of the terminating replicas without a replacement. A terminating replica
// requires no replacement if it replaces a machine that is not terminating any more.
func (l *layout) splitTerminating(model int, region service.Region, numbers []int) (serve, terminating []int, unreplaced []string) {
	for _, n := range numbers {
		id := provision.ReplicaID(l.Spec, model, region, n)
		if !l.NeedReplacement[id] {
			serve = append(serve, n)
			continue
		}
		terminating = append(terminating, n)
		replica := l.runningObject(id) // not nil: numbers are those of existing replicas
		replaces := func(o provision.Object) bool {
			stays := !l.NeedReplacement[o.ID] && ReplacesHandle(*replica) != "" && o.Handle == ReplacesHandle(*replica)
			return o.TerminatedReason == "" && (stays || ReplacesHandle(o) == replica.Handle)
		}
		if !slices.ContainsFunc(l.Have, replaces) {
			unreplaced = append(unreplaced, replica.Handle)
		}
	}
	return serve, terminating, unreplaced
}

// countWithinMax returns how many of the replicas with these numbers count towards replicas.max.
func (l *layout) countWithinMax(model int, region service.Region, numbers []int) (n int) {
	for _, number := range numbers {
		if !l.Ending[provision.ReplicaID(l.Spec, model, region, number)] {
			n++
		}
	}
	return n
}

// placeFallback places one replica of the region with index from in a fallback region; false when no region
// has capacity. It prefers an existing fallback replica of that region to launching another one.
func (l *layout) placeFallback(model, from int, numbers map[service.Region][]int, labels extraLabels) bool {
	m, regions := &l.Spec.Models[model], l.Spec.Regions
	home := regions[from].Name
	var free []service.Region
	for step := 1; step < len(regions); step++ {
		r := regions[(from+step)%len(regions)].Name
		if r.Cloud() == service.CloudStatic || l.Shortfall[ReplicaGroup{m.Name, r}] > 0 || l.countWithinMax(model, r, numbers[r]) >= l.Spec.BoundsFor(m.Name, r).Max {
			continue
		}
		free = append(free, r)
	}
	place := func(r service.Region, n int) bool {
		at, _ := slices.BinarySearch(numbers[r], n)
		numbers[r] = slices.Insert(numbers[r], at, n)
		labels.set(r, n, labelFallbackFor, string(home))
		return true
	}
	for _, r := range free {
		for _, n := range l.replicaNumbers(m, r, func(o provision.Object) bool { return FallbackFor(o) == home }) {
			if !slices.Contains(numbers[r], n) {
				return place(r, n)
			}
		}
	}
	if len(free) == 0 {
		return false
	}
	r := free[0]
	taken := slices.Concat(numbers[r], l.replicaNumbers(m, r, func(provision.Object) bool { return true }))
	return place(r, lowestFree(taken))
}

// replicaNumbers returns the numbers of a model's running replicas in a region, ascending. which filters them.
func (l *layout) replicaNumbers(m *service.Model, region service.Region, which func(provision.Object) bool) []int {
	found := map[int]bool{}
	for _, o := range l.Have {
		if o.Kind != provision.KindReplica || o.Region != region || o.TerminatedReason != "" || o.Labels[labelModel] != m.Name || !which(o) {
			continue
		}
		if n, err := strconv.Atoi(o.ID[strings.LastIndexByte(o.ID, '-')+1:]); err == nil && n >= 0 {
			found[n] = true
		}
	}
	return slices.Sorted(maps.Keys(found))
}

// fillNumbers returns n numbers: the first n of numbers, and the lowest free ones if there are fewer. The
// numbers of terminating replicas are added. taken are numbers of other replicas.
func fillNumbers(numbers, terminating, taken []int, n int) []int {
	out := slices.Clone(numbers)
	out = out[:min(len(out), n)]
	slices.Sort(out)
	for len(out) < n {
		free := lowestFree(slices.Concat(out, terminating, taken))
		at, _ := slices.BinarySearch(out, free)
		out = slices.Insert(out, at, free)
	}
	out = append(out, terminating...)
	slices.Sort(out)
	return out
}

// FallbackFor returns the region for which a fallback replica runs in another region; empty for other
// replicas.
func FallbackFor(o provision.Object) service.Region {
	return service.Region(o.Labels[labelFallbackFor])
}

// ReplacesHandle returns the handle of the terminating machine that a replica replaces; empty for any other
// replica.
func ReplacesHandle(o provision.Object) string { return o.Labels[labelReplaces] }

func lowestFree(taken []int) int {
	n := 0
	for slices.Contains(taken, n) {
		n++
	}
	return n
}
