package health

import (
	"cmp"
	"fmt"
	"slices"

	"skyserve/internal/service"
	"skyserve/internal/telemetry"
)

// A pace is a replica's time between two tokens, relative to the nominal replica: a higher pace is slower.
const (
	// slowPace is the factor from which a replica counts as slow, compared with the other replicas of its model and GPU,
	// or with its own past. Simulated healthy replicas with random load stay below it (TestHealthyReplicasAreNotSlow in
	// internal/sim).
	slowPace = 2.0
	// minOwnPaces is the number of observed paces from which a replica is compared with its own past: at most one a
	// second, and none while it has no streams. maxOwnPaces limits their number in the mean: the mean follows changes
	// that take many hours, and a replica that suddenly becomes slower is noticed.
	minOwnPaces, maxOwnPaces = 30, 3600
)

// ownPace is the mean of the paces of one replica in which it was not slow.
type ownPace struct {
	mean float64
	n    int
}

// isSlow reports whether a pace is that of a replica that has become slow.
func (p ownPace) isSlow(pace float64) bool { return p.n >= minOwnPaces && pace >= slowPace*p.mean }

// isHardwareKnown reports whether r.GPU is known to be the GPU of the replica's machine. In static regions, it is only
// declared, once for all machines of a model.
func isHardwareKnown(o *Observation, r *telemetry.ReplicaSnapshot) bool {
	return r.GPU != "" && cmp.Or(r.Region, o.Own.Name).Cloud() != service.CloudStatic
}

// learnPaces adds the paces of the replicas whose hardware is unknown, and forgets those of replicas that are gone.
func (w *Watch) learnPaces(o *Observation) {
	paces := map[string]ownPace{}
	for i := range o.Own.Replicas {
		r := &o.Own.Replicas[i]
		own := w.paces[r.ID]
		if !isHardwareKnown(o, r) && r.Pace != nil && !own.isSlow(*r.Pace) {
			own.n = min(own.n+1, maxOwnPaces)
			own.mean += (*r.Pace - own.mean) / float64(own.n)
		}
		if own.n > 0 {
			paces[r.ID] = own
		}
	}
	w.paces = paces
}

// slowReplicas finds replicas that generate tokens much slower than the others of their model and GPU. Replicas whose
// hardware is unknown may have different GPUs: they must also be much slower than they were.
func slowReplicas(w *Watch, o *Observation) (found []condition) {
	for i := range o.Own.Replicas {
		r := &o.Own.Replicas[i]
		if r.Pace == nil {
			continue
		}
		own, compared := w.paces[r.ID], "the other replicas of "+r.Model
		if !isHardwareKnown(o, r) {
			if !own.isSlow(*r.Pace) {
				continue
			}
			compared += fmt.Sprintf(", and %.1f times slower than before", *r.Pace/own.mean)
		}
		var others []float64
		for k, other := range o.Own.Replicas {
			if k != i && other.Model == r.Model && other.GPU == r.GPU && other.Pace != nil && other.State == service.StateReady {
				others = append(others, *other.Pace)
			}
		}
		if len(others) == 0 {
			continue
		}
		slices.Sort(others)
		if usual := others[(len(others)-1)/2]; usual > 0 && *r.Pace >= slowPace*usual {
			found = append(found, o.raise(telemetry.SeverityWarning, telemetry.AlertSlow, r.ID,
				fmt.Sprintf("generates tokens %.1f times slower than %s", *r.Pace/usual, compared),
				"check the GPU of its machine; "+o.readLog(r.ID)+"; "+o.stopSending(r.ID)))
		}
	}
	return found
}
