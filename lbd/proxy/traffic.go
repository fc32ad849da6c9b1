package proxy

import (
	"maps"
	"slices"
	"sync"
	"time"

	"skyserve/internal/telemetry"
	"skyserve/lbd/record"
)

// maxTraffic is the maximum number of models, and of API keys, whose traffic is counted separately: 6 MB of
// latencies each. The others are summed as one.
const maxTraffic = 64

// otherTraffic is the name of that sum.
const otherTraffic = "other"

// clientKey identifies an API key or user.
type clientKey struct{ tenant, key string }

// trafficTable holds the traffic of the last minute by model or by key. The zero value is usable.
type trafficTable[K comparable] struct {
	mu      sync.Mutex
	windows map[K]*trafficWindow
}

// window returns the window of a name. If there are too many, those without requests for a minute are removed
// first. If there is still no space for the name, it returns the window of other.
func (t *trafficTable[K]) window(now time.Duration, name, other K) *trafficWindow {
	t.mu.Lock()
	defer t.mu.Unlock()
	if w := t.windows[name]; w != nil {
		return w
	}
	if len(t.windows) >= maxTraffic {
		maps.DeleteFunc(t.windows, func(k K, w *trafficWindow) bool { return k != other && w.unused(now) })
	}
	if len(t.windows) >= maxTraffic {
		name = other
	}
	if t.windows == nil {
		t.windows = map[K]*trafficWindow{}
	}
	if t.windows[name] == nil {
		t.windows[name] = &trafficWindow{latest: slotOf(now)}
	}
	return t.windows[name]
}

// list returns the traffic of the names with requests within the last minute.
func (t *trafficTable[K]) list(now time.Duration) map[K]telemetry.Traffic {
	t.mu.Lock()
	windows := maps.Clone(t.windows)
	t.mu.Unlock()
	list := make(map[K]telemetry.Traffic, len(windows))
	for name, w := range windows {
		if !w.unused(now) {
			list[name] = w.traffic(now)
		}
	}
	return list
}

// trafficWindow counts the requests that ended within a minute.
type trafficWindow struct {
	mu        sync.Mutex
	latest    int64 // the slot of the latest request
	slots     [windowSlots]trafficSlot
	ttft, e2e latencyWindow
}

type trafficSlot struct {
	at       int64
	outcomes telemetry.Outcomes
	usage    telemetry.Usage
}

// addRequest counts a request that ended. A time of 0 is not counted.
func (w *trafficWindow) addRequest(now time.Duration, o telemetry.Outcomes, u telemetry.Usage, ttft, e2e time.Duration) {
	slot := slotOf(now)
	w.mu.Lock()
	w.latest = max(w.latest, slot)
	s := &w.slots[slot%windowSlots]
	if s.at < slot {
		*s = trafficSlot{at: slot}
	}
	s.outcomes, s.usage = s.outcomes.Add(o), s.usage.Plus(u)
	w.mu.Unlock()
	if ttft > 0 {
		w.ttft.addLatency(now, ttft)
	}
	if e2e > 0 {
		w.e2e.addLatency(now, e2e)
	}
}

// unused reports whether no request ended within the last minute.
func (w *trafficWindow) unused(now time.Duration) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.latest <= slotOf(now)-windowSlots
}

// trafficSeconds returns the time that windows cover. The current slot is not complete.
func trafficSeconds(now time.Duration) float64 {
	return min(now, (windowSlots-1)*slotLength+now%slotLength).Seconds()
}

// traffic returns the traffic of the last minute.
func (w *trafficWindow) traffic(now time.Duration) telemetry.Traffic {
	slot := slotOf(now)
	t := telemetry.Traffic{Seconds: trafficSeconds(now), TTFT: w.ttft.percentiles(now), E2E: w.e2e.percentiles(now)}
	w.mu.Lock()
	defer w.mu.Unlock()
	for i := range w.slots {
		if s := &w.slots[i]; s.at > slot-windowSlots {
			t.Outcomes, t.Usage = t.Outcomes.Add(s.outcomes), t.Usage.Plus(s.usage)
		}
	}
	return t
}

// countTraffic counts a request of a client that has ended, by its model and its API key.
func (x *exchange) countTraffic(o telemetry.Outcomes, outcome string) {
	now := x.rt.Elapsed()
	var ttft, e2e time.Duration
	if !x.firstTokenAt.IsZero() {
		ttft = x.firstTokenAt.Sub(x.startedAt)
	}
	if outcome == record.StateFinished {
		e2e = time.Since(x.startedAt)
	}
	if x.model != "" {
		x.rt.stats.models.window(now, x.model, otherTraffic).addRequest(now, o, x.used, ttft, e2e)
	}
	if x.account != nil {
		name, _ := x.account.Name()
		x.rt.stats.keys.window(now, clientKey{x.tenant, name}, clientKey{"", otherTraffic}).addRequest(now, o, x.used, ttft, e2e)
	}
}

// keyTraffic returns the traffic of keys as a list, sorted.
func keyTraffic(of map[clientKey]telemetry.Traffic) []telemetry.KeyTraffic {
	list := make([]telemetry.KeyTraffic, 0, len(of))
	for k, t := range of {
		list = append(list, telemetry.KeyTraffic{Key: k.key, Tenant: k.tenant, Traffic: t})
	}
	slices.SortFunc(list, telemetry.KeyTraffic.Compare)
	return list
}
