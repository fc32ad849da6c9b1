package cloud

import (
	"fmt"
	"hash/fnv"
	"slices"
	"strings"

	"skyserve/internal/service"
	"skyserve/provision"
)

// replicaID returns the id of the replica of a model with an ordinal in a region. provision.ReplicaID depends on the
// order of the models and on their names, which may change while replicas run. Therefore an existing replica keeps its
// id. A new replica does not get the id of an existing replica of another model: that one would be taken for the new
// one, which would then not be launched.
func (l *layout) replicaID(model int, region service.Region, ordinal int) string {
	m := &l.Spec.Models[model]
	id := provision.ReplicaID(l.Spec, model, region, ordinal)
	var running, ended []string
	for _, o := range l.objects().byOrdinal[ordinalKey{ReplicaGroup{m.Name, region}, ordinal}] {
		if o.TerminatedReason == "" {
			running = append(running, o.ID)
		} else {
			ended = append(ended, o.ID)
		}
	}
	for _, existing := range [][]string{running, ended} {
		slices.SortFunc(existing, func(a, b string) int {
			switch {
			case a == b:
				return 0
			case a == id:
				return -1
			case b == id:
				return 1
			}
			return strings.Compare(a, b)
		})
		for _, own := range existing {
			if !l.isTaken(own, m, region, len(running) > 0) {
				return own
			}
		}
	}
	short := provision.ShortName(m)
	for _, id := range []string{id, fmt.Sprintf("%s-%s-%d", region.ShortName(), short, ordinal)} {
		if !l.isTaken(id, m, region, false) {
			return id
		}
	}
	h := fnv.New32a()
	_, _ = h.Write([]byte(m.Name)) // never fails
	return fmt.Sprintf("%s-%s-%08x-%d", region.ShortName(), short, h.Sum32(), ordinal)
}

// isTaken reports whether an id belongs to a replica of another model or in another region. With onlyRunning it ignores
// replicas that have ended.
func (l *layout) isTaken(id string, m *service.Model, region service.Region, onlyRunning bool) bool {
	isOther := func(g ReplicaGroup) bool { return g.Model != "" && g != ReplicaGroup{m.Name, region} }
	return slices.ContainsFunc(l.objects().byID[id], func(o *provision.Object) bool {
		return o.Kind == provision.KindReplica && isOther(groupOf(o)) && (o.TerminatedReason == "" || !onlyRunning)
	}) || slices.ContainsFunc(l.added[id], isOther)
}

func groupOf(o *provision.Object) ReplicaGroup { return ReplicaGroup{o.Labels[labelModel], o.Region} }

// ordinalKey identifies a replica by its model, region and ordinal.
type ordinalKey struct {
	ReplicaGroup
	ordinal int
}

// objectIndex finds objects in a list of thousands, which each replica of a layout needs several times.
type objectIndex struct {
	byID      map[string][]*provision.Object
	byOrdinal map[ordinalKey][]*provision.Object // replicas only
}

// objects returns the index of Have.
func (l *layout) objects() *objectIndex {
	if l.index != nil {
		return l.index
	}
	l.index = &objectIndex{byID: make(map[string][]*provision.Object, len(l.Have)), byOrdinal: map[ordinalKey][]*provision.Object{}}
	for i := range l.Have {
		o := &l.Have[i]
		l.index.byID[o.ID] = append(l.index.byID[o.ID], o)
		if n, ok := replicaOrdinal(o); ok && o.Kind == provision.KindReplica {
			at := ordinalKey{groupOf(o), n}
			l.index.byOrdinal[at] = append(l.index.byOrdinal[at], o)
		}
	}
	return l.index
}
