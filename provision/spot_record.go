package provision

import (
	"cmp"
	"slices"
	"time"

	"skyserve/internal/service"
)

// SpotRecord is a SpotHistory as it is stored, so that a later process continues it. The lists are sorted and
// bounded.
type SpotRecord struct {
	// Version is spotRecordVersion; a record of another version is ignored.
	Version int `json:"version"`
	// Pools are the spot machines with the same GPUs in a zone, each with its number of recent events.
	Pools []SpotPoolRecord `json:"pools"`
	// Seen are the interrupted machines that were counted.
	Seen []SpotSeen `json:"seen"`
	// Last are the last interruptions of regions.
	Last []SpotLast `json:"last"`
}

// Empty reports whether nothing is recorded.
func (r SpotRecord) Empty() bool { return len(r.Pools) == 0 && len(r.Seen) == 0 && len(r.Last) == 0 }

// SpotPoolRecord is the number of events of the spot machines with the same GPUs in a zone. Events
// count half after two hours.
type SpotPoolRecord struct {
	Region service.Region `json:"region"`
	Zone   string         `json:"zone"`
	GPUs   string         `json:"gpus"`   // 1xL4; the instance type of machines without GPUs
	Events float64        `json:"events"` // as of At
	At     time.Time      `json:"at"`     // the time of the last event
}

// SpotSeen is an interrupted machine, by its cloud's id.
type SpotSeen struct {
	Handle string    `json:"handle"`
	At     time.Time `json:"at"`
}

// SpotLast is the time of the last interruption in a region.
type SpotLast struct {
	Region service.Region `json:"region"`
	At     time.Time      `json:"at"`
}

// Bounds of a record, with their reasons.
const (
	spotRecordVersion = 1
	// maxSpotPools exceeds the pools of a dozen regions with four zones and ten kinds of GPUs.
	maxSpotPools = 512
	// maxSpotSeen is the number of remembered interruptions of a day; the oldest are forgotten first.
	maxSpotSeen = 512
)

// Record returns the history as it is stored.
func (h *SpotHistory) Record() SpotRecord {
	r := SpotRecord{Version: spotRecordVersion, Pools: []SpotPoolRecord{}, Seen: []SpotSeen{}, Last: []SpotLast{}}
	if h == nil {
		return r
	}
	for p, w := range h.weights {
		r.Pools = append(r.Pools, SpotPoolRecord{p.region, p.zone, p.gpus, w.events, w.at.UTC().Round(0)})
	}
	for handle, at := range h.seen {
		r.Seen = append(r.Seen, SpotSeen{handle, at.UTC().Round(0)})
	}
	for region, at := range h.last {
		r.Last = append(r.Last, SpotLast{region, at.UTC().Round(0)})
	}
	slices.SortFunc(r.Pools, func(a, b SpotPoolRecord) int {
		return cmp.Or(b.At.Compare(a.At), cmp.Compare(a.Region, b.Region), cmp.Compare(a.Zone, b.Zone), cmp.Compare(a.GPUs, b.GPUs))
	})
	slices.SortFunc(r.Seen, func(a, b SpotSeen) int { return cmp.Or(b.At.Compare(a.At), cmp.Compare(a.Handle, b.Handle)) })
	slices.SortFunc(r.Last, func(a, b SpotLast) int { return cmp.Compare(a.Region, b.Region) })
	r.Pools, r.Seen = r.Pools[:min(len(r.Pools), maxSpotPools)], r.Seen[:min(len(r.Seen), maxSpotSeen)]
	return r
}

// Restore adds a stored record. If both contain a pool or a machine, the later state applies.
func (h *SpotHistory) Restore(r SpotRecord) {
	if r.Version != spotRecordVersion {
		return
	}
	if h.weights == nil {
		h.weights = map[spotPool]spotWeight{}
	}
	if h.seen == nil {
		h.seen, h.last = map[string]time.Time{}, map[service.Region]time.Time{}
	}
	for _, p := range r.Pools {
		pool := spotPool{p.Region, p.Zone, p.GPUs}
		if held, known := h.weights[pool]; (!known || held.at.Before(p.At)) && p.Events > 0 {
			h.weights[pool] = spotWeight{p.Events, p.At}
		}
	}
	for _, s := range r.Seen {
		if h.seen[s.Handle].Before(s.At) {
			h.seen[s.Handle] = s.At
		}
	}
	for _, l := range r.Last {
		if h.last[l.Region].Before(l.At) {
			h.last[l.Region] = l.At
		}
	}
}
