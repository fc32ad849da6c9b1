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
	// Failure is the cause of the latest failure of a fallback; empty if none failed in the last minute.
	Failure  string
	FailedAt time.Time
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
	f, known := s.byModel[model]
	if !known || now.Sub(f.Last) >= fallbackMemory {
		f = FallbackStatus{Model: model, Since: now}
	}
	f.To, f.Reason, f.Last = to, reason, now
	s.byModel[model] = f
}

// recordFallbackFailure records that a fallback could not serve a request either.
func (r *Runtime) recordFallbackFailure(model, cause string) {
	s := &r.fallbackStatuses
	s.mu.Lock()
	defer s.mu.Unlock()
	if f, known := s.byModel[model]; known {
		f.Failure, f.FailedAt = cause, time.Now()
		s.byModel[model] = f
	}
}

// Fallbacks returns the models of which a request went to another model or an external API in the minute before
// now, sorted by name.
func (r *Runtime) Fallbacks(now time.Time) []FallbackStatus {
	s := &r.fallbackStatuses
	s.mu.Lock()
	defer s.mu.Unlock()
	maps.DeleteFunc(s.byModel, func(_ string, f FallbackStatus) bool { return now.Sub(f.Last) >= fallbackMemory })
	for model, f := range s.byModel {
		if now.Sub(f.FailedAt) >= fallbackMemory {
			f.Failure = ""
			s.byModel[model] = f
		}
	}
	return slices.SortedFunc(maps.Values(s.byModel), func(a, b FallbackStatus) int { return cmp.Compare(a.Model, b.Model) })
}
