package cloud

import (
	"fmt"
	"hash/fnv"
	"slices"
	"strings"

	"skyserve/internal/service"
	"skyserve/provision"
)

// replicaID returns the id of the replica of a model with an ordinal in a region. provision.ReplicaID depends on the order
// of the models and on their names, which may change while replicas run. Therefore an existing replica keeps its id, and a
// new one gets no id of a replica of another model: nothing would launch it, and the other one would be taken for it.
func (l *layout) replicaID(model int, region service.Region, ordinal int) string {
	m := &l.Spec.Models[model]
	id := provision.ReplicaID(l.Spec, model, region, ordinal)
	var running, ended []string
	for _, o := range l.Have {
		if n, ok := replicaOrdinal(o); !ok || n != ordinal || o.Kind != provision.KindReplica || o.Region != region || o.Labels[labelModel] != m.Name {
			continue
		}
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

// isTaken reports whether a replica of another model, or in another region, has an id; with onlyRunning one that has not
// ended.
func (l *layout) isTaken(id string, m *service.Model, region service.Region, onlyRunning bool) bool {
	other := func(kind provision.ObjectKind, model string, in service.Region) bool {
		return kind == provision.KindReplica && model != "" && (model != m.Name || in != region)
	}
	return slices.ContainsFunc(l.Have, func(o provision.Object) bool {
		return o.ID == id && other(o.Kind, o.Labels[labelModel], o.Region) && (o.TerminatedReason == "" || !onlyRunning)
	}) || slices.ContainsFunc(l.result.Desired, func(w provision.Desired) bool {
		return w.ID == id && other(w.Kind, w.Labels[labelModel], w.Region)
	})
}
