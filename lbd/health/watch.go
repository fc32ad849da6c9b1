package health

import (
	"slices"
	"sync"
	"time"

	"skyserve/internal/service"
	"skyserve/internal/telemetry"
)

// Peer is another balancer, as its heartbeats show it.
type Peer struct {
	ID     string
	Region service.Region
	// Lost means that it has not responded for LostFor; Reason is the error of the last heartbeat. Seen means
	// that it has ever responded.
	Lost    bool
	Seen    bool
	LostFor time.Duration
	Reason  string
	// Version is the version of its binary; empty if unknown.
	Version string
}

// Observation is what a balancer sees at one time.
type Observation struct {
	// At is the time of the observation.
	At time.Time
	// Service, Balancer and Version name the balancer's service, itself and its binary.
	Service, Balancer, Version string
	// Standalone means that 'skyserve lb' was started by hand: there is no service that commands could find.
	Standalone bool
	// Own is the balancer's own part of its region.
	Own telemetry.RegionSnapshot
	// Misconfigured are the balancer's replicas that fail their checks because of their configuration, by id.
	Misconfigured map[string]service.Misconfiguration
	// Peers are the other balancers of the service.
	Peers []Peer
	// Review is the controller's last review; nil if unknown. Unmet is the part of its plan that does not run.
	Review *telemetry.Review
	Unmet  []telemetry.Unmet
}

// sample contains the counters of one observation.
type sample struct {
	at       time.Time
	replicas map[string]attempts
	models   map[string]firstTokens
	outcomes telemetry.Outcomes
}

// attempts are the attempts at a replica since the attachment with this number.
type attempts struct {
	attachment   uint64
	sent, failed int64
}

// firstTokens are the first tokens of a model's streamed requests of tier fast (IW-F), and those after the target.
type firstTokens struct{ all, late int64 }

// identity identifies an alert.
type identity struct {
	kind, object string
	region       service.Region
}

// maxWindow is the longest window. Beyond longWindow one sample a minute is kept, without the counters of replicas.
const (
	maxWindow      = 6 * time.Hour
	sampleInterval = time.Minute
)

// Watch keeps the counters of the last hours and derives the alerts. The zero value is ready. It is safe
// for concurrent use.
type Watch struct {
	mu      sync.Mutex
	samples []sample               // of the last minute
	minutes []sample               // of maxWindow, one a minute
	since   map[identity]time.Time // of the conditions that hold
	paces   map[string]ownPace     // of the replicas whose hardware is unknown
	alerts  []telemetry.Alert
}

// Alerts returns the alerts of the last observation.
func (w *Watch) Alerts() []telemetry.Alert {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.alerts)
}

// Observe adds an observation. Observations must be in the order of time.
func (w *Watch) Observe(o Observation) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.samples = append(w.samples, sampleOf(o))
	for len(w.samples) > 2 && o.At.Sub(w.samples[1].at) >= longWindow {
		w.samples = w.samples[1:]
	}
	w.keepMinute(o.At)
	w.learnPaces(&o)
	var found []condition
	for _, r := range rules {
		found = append(found, r(w, &o)...)
	}
	since := map[identity]time.Time{}
	w.alerts = w.alerts[:0]
	for _, c := range found {
		id := identity{c.Kind, c.Object, c.Region}
		started, held := w.since[id]
		if !held {
			started = o.At
		}
		since[id] = started
		if o.At.Sub(started) < c.after {
			continue
		}
		began := started
		c.Since = &began
		w.alerts = append(w.alerts, c.Alert)
	}
	w.since = since
}

// sampleOf returns the counters of an observation.
func sampleOf(o Observation) sample {
	s := sample{at: o.At, replicas: map[string]attempts{}, models: map[string]firstTokens{}, outcomes: o.Own.Outcomes}
	for _, r := range o.Own.Replicas {
		s.replicas[r.ID] = attempts{r.Attachment, r.Sent, r.Failed}
	}
	for _, m := range o.Own.Models {
		s.models[m.Model] = firstTokens{m.FirstTokens, m.SLOMisses}
	}
	return s
}

// keepMinute keeps the last sample if a minute has passed since the last one that was kept.
func (w *Watch) keepMinute(now time.Time) {
	if n := len(w.minutes); n > 0 && now.Sub(w.minutes[n-1].at) < sampleInterval {
		return
	}
	last := w.samples[len(w.samples)-1]
	last.replicas = nil
	w.minutes = append(w.minutes, last)
	for len(w.minutes) > 2 && now.Sub(w.minutes[1].at) >= maxWindow {
		w.minutes = w.minutes[1:]
	}
}

// covers reports whether samples of a whole window exist.
func (w *Watch) covers(window time.Duration) bool {
	return w.samples[len(w.samples)-1].at.Sub(w.minutes[0].at) >= window
}

// before returns the newest sample that is at least this much older than the last one, else the oldest one.
func (w *Watch) before(window time.Duration) sample {
	last := w.samples[len(w.samples)-1]
	if window > longWindow {
		for i := len(w.minutes) - 1; i > 0; i-- {
			if last.at.Sub(w.minutes[i].at) >= window {
				return w.minutes[i]
			}
		}
		return w.minutes[0]
	}
	for i := len(w.samples) - 2; i > 0; i-- {
		if last.at.Sub(w.samples[i].at) >= window {
			return w.samples[i]
		}
	}
	return w.samples[0]
}
