package lbd

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"skyserve/internal/telemetry"
)

// startBuckets are the bounds in seconds: a phase takes from seconds to half an hour.
var startBuckets = []float64{1, 2, 5, 10, 20, 30, 60, 120, 180, 300, 450, 600, 900, 1200, 1800, 3600}

// startMetrics counts the starts of replicas that the controller publishes, each once. The goroutine that reads the
// controller's state calls its methods.
type startMetrics struct {
	whole, phases *prometheus.HistogramVec
	// since is when the balancer began: a balancer that has restarted counts no earlier start again.
	since   time.Time
	counted map[countedStart]time.Time // when it ended
}

// countedStart identifies a start.
type countedStart struct {
	replica   string
	startedAt int64 // nanoseconds
}

// countedFor is how long a start is remembered: the controller publishes it for telemetry.StartShownFor, and a new
// leader publishes some of the last starts again.
const countedFor = 6 * telemetry.StartShownFor

// newStartMetrics registers the metrics.
func newStartMetrics(reg *prometheus.Registry, now time.Time) *startMetrics {
	histogram := func(name, help string, labels ...string) *prometheus.HistogramVec {
		v := prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: help, Buckets: startBuckets}, labels)
		reg.MustRegister(v)
		return v
	}
	return &startMetrics{
		whole:  histogram("skyserve_replica_start_seconds", "Time from the launch or the start of a replica in a cloud until it was ready.", "region", "gpu"),
		phases: histogram("skyserve_replica_start_phase_seconds", "Time of each phase of the starts in skyserve_replica_start_seconds: boot, enrolment, image, weights, load or warmup; image and weights overlap.", "phase", "region", "gpu"),
		since:  now, counted: map[countedStart]time.Time{},
	}
}

// count counts the starts that have ended since the last call.
func (m *startMetrics) count(now time.Time, s *telemetry.Scaling) {
	for c, ended := range m.counted {
		if now.Sub(ended) > countedFor {
			delete(m.counted, c)
		}
	}
	for _, r := range s.Starts {
		if r.Start == nil || !r.Start.Ready {
			continue
		}
		ended := r.Start.StartedAt.Add(time.Duration(r.Start.Seconds * float64(time.Second)))
		c := countedStart{r.Replica, r.Start.StartedAt.UnixNano()}
		if _, known := m.counted[c]; known || ended.Before(m.since) || now.Sub(ended) > countedFor {
			continue
		}
		m.counted[c] = ended
		m.whole.WithLabelValues(string(r.Region), r.GPU).Observe(r.Start.Seconds)
		for _, p := range r.Start.Phases {
			m.phases.WithLabelValues(string(p.Name), string(r.Region), r.GPU).Observe(p.Seconds)
		}
	}
}
