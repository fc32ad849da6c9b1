package sim

import "time"

// loadSamples is the number of samples of the load over time in a run, as many as a chart can show.
const loadSamples = 200

// LoadSample is a sample of the load.
type LoadSample struct {
	At      time.Duration
	Regions []RegionLoad // in the scenario's order
}

// RegionLoad counts the requests in a region: Queued at its balancers, Pending and Running in its
// engines.
type RegionLoad struct {
	Queued, Pending, Running int
}

// sampleLoad samples the load of each region.
func (w *world) sampleLoad() {
	regions := make([]RegionLoad, len(w.scenario.Regions))
	for _, n := range w.nodes {
		if !n.dead {
			regions[n.region].Queued += n.core.Snapshot(w.now).Counts.Queued
		}
	}
	for _, r := range w.replicas {
		w.advanceReplica(r)
		l := r.engine.Load()
		regions[r.region].Pending += l.Pending
		regions[r.region].Running += l.Running
	}
	w.samples = append(w.samples, LoadSample{w.now, regions})
	w.pushEvent(max(1, w.scenario.Duration/loadSamples), event{kind: evSampleLoad})
}
