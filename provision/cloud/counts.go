package cloud

import (
	"skyserve/internal/service"
	"skyserve/provision"
)

// matchClasses returns the ordinals of serving replicas: first those that counts assigns to a desired class
// (provision.ReplicaClass: GPUs and capacity type), then the others. missing contains the class of each replica that must
// be launched.
func (l *layout) matchClasses(model int, region service.Region, serving []int, counts provision.ClassCounts) (ordered []int, missing []provision.ReplicaClass) {
	objects := make([]provision.Object, len(serving))
	for i, n := range serving {
		objects[i] = *l.runningObject(l.replicaID(model, region, n)) // not nil: serving contains existing replicas
	}
	matched, missing := counts.Match(objects)
	var others []int
	for i, n := range serving {
		if _, fits := matched[i]; fits {
			ordered = append(ordered, n)
		} else {
			others = append(others, n)
		}
	}
	return append(ordered, others...), missing
}

// preferClass moves the offerings of a class to the front. The others follow in their order.
func preferClass(offers provision.Offerings, class provision.ReplicaClass) provision.Offerings {
	var first, rest provision.Offerings
	for _, o := range offers {
		if class.Matches(o) {
			first = append(first, o)
		} else {
			rest = append(rest, o)
		}
	}
	return append(first, rest...)
}
