package cloud

import (
	"maps"
	"slices"
	"strconv"
	"strings"

	"skyserve/internal/service"
	"skyserve/provision"
)

// addReplicas wants the replicas of a model in every rented region: at least
// replicas.min, and of those above it the ones that exist, up to replicas.max.
// Replicas that a region has no capacity for stand in other regions of the service
// that have room, in the order of the file after it, until it has.
func (l *layout) addReplicas(model int) error {
	m := &l.Spec.Models[model]
	numbers := map[service.Region][]int{}
	lacks := map[service.Region]int{}
	for _, r := range Regions(l.Spec) {
		b := l.Spec.BoundsFor(m.Name, r)
		exist := l.numbers(m, r, func(other string) bool { return other == "" })
		stay := min(len(exist), b.Max)
		want := max(b.Min, stay)
		lacks[r] = min(l.Short[Group{m.Name, r}], want-stay) // what exists stays
		numbers[r] = fill(exist, want-lacks[r])
	}
	standIns := map[service.Region]map[int]service.Region{} // region -> number -> for
	for i, r := range l.Spec.Regions {
		for range lacks[r.Name] {
			if !l.standIn(m, i, numbers, standIns) {
				l.layout.Missing[Group{m.Name, r.Name}]++
			}
		}
	}
	for _, r := range l.Spec.Regions {
		for _, n := range numbers[r.Name] {
			if err := l.addReplica(model, r, n, standIns[r.Name][n]); err != nil {
				return err
			}
		}
	}
	return nil
}

// standIn places one replica of a region elsewhere; false when there is no room. One
// that stands in for that region already is kept rather than another launched.
func (l *layout) standIn(m *service.Model, from int, numbers map[service.Region][]int, standIns map[service.Region]map[int]service.Region) bool {
	regions := l.Spec.Regions
	missing := regions[from].Name
	var room []service.Region
	for step := 1; step < len(regions); step++ {
		r := regions[(from+step)%len(regions)].Name
		if !rented(r) || l.Short[Group{m.Name, r}] > 0 || len(numbers[r]) >= l.Spec.BoundsFor(m.Name, r).Max {
			continue
		}
		room = append(room, r)
	}
	place := func(r service.Region, n int) bool {
		at, _ := slices.BinarySearch(numbers[r], n)
		numbers[r] = slices.Insert(numbers[r], at, n)
		if standIns[r] == nil {
			standIns[r] = map[int]service.Region{}
		}
		standIns[r][n] = missing
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

// numbers are those of the replicas of a model that exist in a region and of which
// standing in for a region passes a test, ascending.
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

// fill is n of the numbers: the lowest of them, and the lowest free ones where
// they are fewer.
func fill(numbers []int, n int) []int {
	out := slices.Clone(numbers)
	if len(out) > n {
		return out[:n]
	}
	for len(out) < n {
		free := lowestFree(out)
		at, _ := slices.BinarySearch(out, free)
		out = slices.Insert(out, at, free)
	}
	return out
}

func lowestFree(taken []int) int {
	n := 0
	for slices.Contains(taken, n) {
		n++
	}
	return n
}
