package cloud

import (
	"maps"
	"slices"
	"strconv"
	"strings"

	"skyserve/internal/service"
	"skyserve/provision"
)

// addReplicas adds the desired replicas of a model in every rented region: at least replicas.min; above
// that the existing ones, or Counts, up to replicas.max. Terminating replicas stay until they have
// terminated; they count towards max, not towards min. Replicas that a region has no capacity for fall
// back to other regions of the service with free capacity, in the order of the file after it, until the
// region has capacity again.
func (l *layout) addReplicas(model int) error {
	m := &l.Spec.Models[model]
	numbers := map[service.Region][]int{}
	lacks := map[service.Region]int{}
	marks := marks{}
	on := map[service.Region]map[int]provision.Class{} // the class of each new replica
	for _, r := range Regions(l.Spec) {
		if r.Cloud() == service.CloudStatic {
			continue // its machines already exist
		}
		b := l.Spec.BoundsFor(m.Name, r)
		exist := l.numbers(m, r, func(other string) bool { return other == "" })
		serve, going, owed := l.going(model, r, exist)
		want := len(serve) + len(owed)
		var missing []provision.Class
		if counts, counted := l.Counts[Group{m.Name, r}]; counted {
			want = counts.Total()
			serve, missing = l.fitting(model, r, serve, counts)
		}
		want = min(max(want, b.Min), b.Max)
		want = min(want, max(b.Max-len(going), len(serve)))
		lacks[r] = min(l.Short[Group{m.Name, r}], max(0, want-len(serve))) // existing replicas stay
		numbers[r] = fill(serve, going, want-lacks[r])
		on[r] = map[int]provision.Class{}
		for _, n := range numbers[r] {
			if len(missing) > 0 && !slices.Contains(exist, n) {
				on[r][n], missing = missing[0], missing[1:]
			}
			if len(owed) > 0 && !slices.Contains(exist, n) {
				marks.set(r, n, labelInstead, owed[0])
				owed = owed[1:]
			}
		}
	}
	for i, r := range l.Spec.Regions {
		for range lacks[r.Name] {
			if !l.standIn(m, i, numbers, marks) {
				l.layout.Missing[Group{m.Name, r.Name}]++
			}
		}
	}
	for _, r := range l.Spec.Regions {
		for _, n := range numbers[r.Name] {
			if err := l.addReplica(model, r, n, on[r.Name][n], marks[r.Name][n]); err != nil {
				return err
			}
		}
	}
	return nil
}

// marks are additional labels of replicas, by region and number.
type marks map[service.Region]map[int]map[string]string

func (m marks) set(r service.Region, number int, label, value string) {
	if m[r] == nil {
		m[r] = map[int]map[string]string{}
	}
	m[r][number] = map[string]string{label: value}
}

// going divides the numbers of existing replicas into serving and terminating ones. owed lists the
// handles of the terminating ones that have no replacement yet. If a terminating replica replaces a
// machine that is no longer terminating, it needs no replacement.
func (l *layout) going(model int, region service.Region, numbers []int) (serve, going []int, owed []string) {
	for _, n := range numbers {
		id := provision.ReplicaID(l.Spec, model, region, n)
		if !l.Going[id] {
			serve = append(serve, n)
			continue
		}
		going = append(going, n)
		is := l.running(id) // numbers are those of existing replicas
		settled := func(o provision.Object) bool {
			stays := !l.Going[o.ID] && Instead(*is) != "" && o.Handle == Instead(*is)
			return o.Gone == "" && (stays || Instead(o) == is.Handle)
		}
		if !slices.ContainsFunc(l.Have, settled) {
			owed = append(owed, is.Handle)
		}
	}
	return serve, going, owed
}

// standIn places one replica of a region in a fallback region; false when none has capacity. It keeps
// an existing fallback replica of that region rather than launching another.
func (l *layout) standIn(m *service.Model, from int, numbers map[service.Region][]int, marks marks) bool {
	regions := l.Spec.Regions
	missing := regions[from].Name
	var room []service.Region
	for step := 1; step < len(regions); step++ {
		r := regions[(from+step)%len(regions)].Name
		if r.Cloud() == service.CloudStatic || l.Short[Group{m.Name, r}] > 0 || len(numbers[r]) >= l.Spec.BoundsFor(m.Name, r).Max {
			continue
		}
		room = append(room, r)
	}
	place := func(r service.Region, n int) bool {
		at, _ := slices.BinarySearch(numbers[r], n)
		numbers[r] = slices.Insert(numbers[r], at, n)
		marks.set(r, n, labelFor, string(missing))
		return true
	}
	for _, r := range room {
		for _, n := range l.numbers(m, r, func(other string) bool { return other == string(missing) }) {
			if !slices.Contains(numbers[r], n) {
				return place(r, n)
			}
		}
	}
	if len(room) == 0 {
		return false
	}
	r := room[0]
	taken := slices.Concat(numbers[r], l.numbers(m, r, func(string) bool { return true }))
	return place(r, lowestFree(taken))
}

// numbers returns the numbers of a model's running replicas in a region, ascending. which filters by
// the region that a replica is a fallback for.
func (l *layout) numbers(m *service.Model, region service.Region, which func(standsInFor string) bool) []int {
	found := map[int]bool{}
	for _, o := range l.Have {
		if o.Kind != provision.KindReplica || o.Region != region || o.Gone != "" || o.Labels[labelModel] != m.Name || !which(o.Labels[labelFor]) {
			continue
		}
		if n, err := strconv.Atoi(o.ID[strings.LastIndexByte(o.ID, '-')+1:]); err == nil && n >= 0 {
			found[n] = true
		}
	}
	return slices.Sorted(maps.Keys(found))
}

// fill returns n numbers: the first n of numbers, and the lowest free ones if there are fewer. The
// numbers of terminating replicas are added.
func fill(numbers, going []int, n int) []int {
	out := slices.Clone(numbers)
	out = out[:min(len(out), n)]
	slices.Sort(out)
	for len(out) < n {
		free := lowestFree(slices.Concat(out, going))
		at, _ := slices.BinarySearch(out, free)
		out = slices.Insert(out, at, free)
	}
	out = append(out, going...)
	slices.Sort(out)
	return out
}

// StandsIn returns the region that a replica is a fallback for; empty for a replica of its own region.
func StandsIn(o provision.Object) service.Region { return service.Region(o.Labels[labelFor]) }

// Instead returns the handle of the terminating machine that a replica replaces; empty for any other
// replica.
func Instead(o provision.Object) string { return o.Labels[labelInstead] }

func lowestFree(taken []int) int {
	n := 0
	for slices.Contains(taken, n) {
		n++
	}
	return n
}
