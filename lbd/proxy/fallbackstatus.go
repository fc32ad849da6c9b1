package proxy

import (
	"cmp"
	"maps"
	"slices"
	"sync"
	"time"
)

// FallbackStatus is a model whose requests go to other models or to external APIs: see
// service.Model.Fallback.
type FallbackStatus struct {
	Model  string
	To     string // the latest fallback
	Reason string // of the latest one: a core.Reject constant
	Since  time.Time
	Last   time.Time
}

// fallbackMemory is the time after its latest fallback for which Fallbacks returns a model.
const fallbackMemory = time.Minute

// fallbackStatuses contains the latest fallback of each model.
type fallbackStatuses struct {
	mu      sync.Mutex
	byModel map[string]FallbackStatus
}

// countFallback counts one fallback.
func (r *Runtime) countFallback(model, to, reason string) {
	r.metrics.fallbacks.WithLabelValues(model, to, reason).Inc()
	now, s := time.Now(), &r.fallbackStatuses
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.byModel == nil {
		s.byModel = map[string]FallbackStatus{}
	}
	since := now
	if was, known := s.byModel[model]; known && now.Sub(was.Last) < fallbackMemory {
		since = was.Since
	}
	s.byModel[model] = FallbackStatus{Model: model, To: to, Reason: reason, Since: since, Last: now}
}

// Fallbacks returns the models of which a request went to another model or an external API in the minute before
// now, sorted by name.
func (r *Runtime) Fallbacks(now time.Time) []FallbackStatus {
	s := &r.fallbackStatuses
	s.mu.Lock()
	defer s.mu.Unlock()
	maps.DeleteFunc(s.byModel, func(_ string, f FallbackStatus) bool { return now.Sub(f.Last) >= fallbackMemory })
	return slices.SortedFunc(maps.Values(s.byModel), func(a, b FallbackStatus) int { return cmp.Compare(a.Model, b.Model) })
}
