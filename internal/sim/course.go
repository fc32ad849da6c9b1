package sim

import "time"

// moments is how many times the load is looked at in a run: as many as a drawing
// can show.
const moments = 200

// Moment is the load at a time.
type Moment struct {
	At      time.Duration
	Regions []RegionLoad // in the order of the scenario's
}

// RegionLoad counts the requests in a region: Queued are held by its balancers,
// Pending and Running are in the engines that stand there.
type RegionLoad struct {
	Queued, Pending, Running int
}

// lookAround notes the load of each region.
func (w *world) lookAround() {
	regions := make([]RegionLoad, len(w.scenario.Regions))
	for _, n := range w.nodes {
		if !n.dead {
			regions[n.region].Queued += n.core.View(w.now).Counts.Queued
		}
	}
	for _, r := range w.replicas {
		w.settle(r)
		l := r.engine.Load()
		regions[r.region].Pending += l.Pending
		regions[r.region].Running += l.Running
	}
	w.course = append(w.course, Moment{w.now, regions})
	w.push(max(1, w.scenario.Duration/moments), event{kind: evMoment})
}
