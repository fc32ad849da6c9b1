package provision

import (
	"fmt"
	"math"
	"time"

	"skyserve/internal/service"
)

// spotHalfLife is the time after which an event of a SpotHistory counts half. It is an estimate: a shortage of spot
// machines in a zone lasts for hours rather than minutes or days.
const spotHalfLife = 2 * time.Hour

// minSpotWeight is the weight below which an event is forgotten: after seven half-lives.
const minSpotWeight = 1.0 / 128

// SpotHistory records two kinds of events of zones: a spot machine was interrupted, or a launch of one found no capacity.
// The zero value is empty, and nil records nothing. It is not safe for concurrent use.
type SpotHistory struct {
	weights map[spotPool]spotWeight
	seen    map[string]time.Time         // interrupted machines, by cloud handle
	last    map[service.Region]time.Time // the last interruption of each region
}

// spotPool is the spot machines with the same GPUs in a zone. Instance types with the same GPUs run on the same
// hosts, so a lack of one is a lack of all.
type spotPool struct {
	region service.Region
	zone   string
	gpus   string // 1xL4; the instance type without GPUs
}

// poolOf returns the pool of a spot offering.
func poolOf(o Offering) spotPool {
	if o.GPU == "" {
		return spotPool{o.Region, o.Zone, o.Type}
	}
	return spotPool{o.Region, o.Zone, fmt.Sprintf("%dx%s", o.GPUs, o.GPU)}
}

// spotWeight is the decayed number of events at the time of the last one.
type spotWeight struct {
	events float64
	at     time.Time
}

// after returns the weight at a later time.
func (w spotWeight) after(now time.Time) float64 {
	if !now.After(w.at) {
		return w.events
	}
	return w.events * math.Exp2(-float64(now.Sub(w.at))/float64(spotHalfLife))
}

// Add records an event of an offering. Offerings that are not spot, or have no zone, are ignored.
func (h *SpotHistory) Add(o Offering, now time.Time) {
	if h == nil || o.Capacity != service.CapacitySpot || o.Zone == "" {
		return
	}
	if h.weights == nil {
		h.weights = map[spotPool]spotWeight{}
	}
	for pool, w := range h.weights {
		if w.after(now) < minSpotWeight {
			delete(h.weights, pool)
		}
	}
	pool := poolOf(o)
	h.weights[pool] = spotWeight{h.weights[pool].after(now) + 1, now}
}

// Times of interrupted machines, with their reasons.
const (
	// seenTTL is how long an interrupted machine is remembered after it was last listed: clouds list a
	// terminated machine for about an hour.
	seenTTL = 24 * time.Hour
	// seenRefreshAge is the age at which the time of a listed machine is updated. It is not updated more often, because
	// each update is a write to the store.
	seenRefreshAge = time.Hour
)

// AddInterrupted records the interruption of a spot machine, once for each machine, and reports whether it
// was new.
func (h *SpotHistory) AddInterrupted(m Object, now time.Time) bool {
	if h == nil || m.Offering == nil || m.Offering.Capacity != service.CapacitySpot || m.Handle == "" {
		return false
	}
	if h.seen == nil {
		h.seen, h.last = map[string]time.Time{}, map[service.Region]time.Time{}
	}
	for handle, at := range h.seen {
		if now.Sub(at) > seenTTL {
			delete(h.seen, handle)
		}
	}
	at, recorded := h.seen[m.Handle]
	if !recorded || now.Sub(at) > seenRefreshAge {
		h.seen[m.Handle] = now
	}
	if !recorded {
		h.Add(*m.Offering, now)
		h.last[m.Region] = now
	}
	return !recorded
}

// InterruptedSince reports whether a spot machine of a region was interrupted at or after a time.
func (h *SpotHistory) InterruptedSince(r service.Region, since time.Time) bool {
	if h == nil {
		return false
	}
	last, known := h.last[r]
	return known && !last.Before(since)
}

// RecentEvents returns the number of recent events of spot machines with the offering's GPUs in its zone, each halved
// every two hours; 0 for offerings that are not spot.
func (h *SpotHistory) RecentEvents(o Offering, now time.Time) float64 {
	if h == nil || o.Capacity != service.CapacitySpot {
		return 0
	}
	w := h.weights[poolOf(o)].after(now)
	if w < minSpotWeight {
		return 0
	}
	return w
}
