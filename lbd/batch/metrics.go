package batch

import (
	"github.com/prometheus/client_golang/prometheus"

	"skyserve/lbd/batch/job"
)

// metrics are the counters of one balancer.
type metrics struct {
	requests *prometheus.CounterVec
	retries  prometheus.Counter
}

func newMetrics() metrics {
	m := metrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "skyserve_batch_requests_total", Help: "Requests of batches whose result this balancer recorded: completed or failed.",
		}, []string{"result"}),
		retries: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "skyserve_batch_retries_total", Help: "Retries of requests of batches by this balancer.",
		}),
	}
	m.requests.WithLabelValues("completed")
	m.requests.WithLabelValues("failed")
	return m
}

var (
	descBatches  = prometheus.NewDesc("skyserve_batches", "Batches of the service that have not ended, by status, as known to this balancer.", []string{"status"}, nil)
	descWaiting  = prometheus.NewDesc("skyserve_batch_requests_remaining", "Requests without a result of the service's batches, as known to this balancer.", nil, nil)
	descInFlight = prometheus.NewDesc("skyserve_batch_requests_in_flight", "Requests of batches that this balancer has claimed and that have no result yet.", nil, nil)
	descDeadline = prometheus.NewDesc("skyserve_batch_next_deadline_seconds", "The earliest deadline of a batch that has not ended, in seconds since the Unix epoch. Only if there is one.", nil, nil)
)

// Describe sends the descriptions of the metrics.
func (s *Service) Describe(ch chan<- *prometheus.Desc) {
	s.metrics.requests.Describe(ch)
	s.metrics.retries.Describe(ch)
	for _, d := range []*prometheus.Desc{descBatches, descWaiting, descInFlight, descDeadline} {
		ch <- d
	}
}

// Collect sends the metrics.
func (s *Service) Collect(ch chan<- prometheus.Metric) {
	s.metrics.requests.Collect(ch)
	s.metrics.retries.Collect(ch)
	byStatus := map[job.Status]int{job.Validating: 0, job.InProgress: 0, job.Finalizing: 0, job.Cancelling: 0}
	remaining, deadline := 0, int64(0)
	w := s.worker
	w.mu.Lock()
	for _, r := range w.open {
		byStatus[r.Batch.Status]++
		c := r.Batch.RequestCounts
		remaining += c.Total - c.Completed - c.Failed
		if deadline == 0 || r.Batch.ExpiresAt < deadline {
			deadline = r.Batch.ExpiresAt
		}
	}
	inFlight := w.inFlight
	w.mu.Unlock()
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	for status, n := range byStatus {
		gauge(descBatches, float64(n), string(status))
	}
	gauge(descWaiting, float64(remaining))
	gauge(descInFlight, float64(inFlight))
	if deadline > 0 {
		gauge(descDeadline, float64(deadline))
	}
}
