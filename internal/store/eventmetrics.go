package store

import (
	"maps"
	"slices"

	"github.com/prometheus/client_golang/prometheus"
)

var (
	descEventsRecorded = prometheus.NewDesc("skyserve_service_events_recorded_total", "Events of the service that this process recorded, by kind; kinds of other versions are summed as other.", []string{"kind"}, nil)
	descEventsDropped  = prometheus.NewDesc("skyserve_service_events_dropped_total", "Events of the service that this process dropped because the store was unavailable for too long.", nil, nil)
	descEventsPending  = prometheus.NewDesc("skyserve_service_events_pending", "Events of the service that wait for the store.", nil, nil)
)

// EventMetrics is a Prometheus collector of the counts of a queue.
type EventMetrics struct{ Queue *EventQueue }

// Describe implements prometheus.Collector.
func (EventMetrics) Describe(descs chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{descEventsRecorded, descEventsDropped, descEventsPending} {
		descs <- d
	}
}

// Collect implements prometheus.Collector.
func (m EventMetrics) Collect(metrics chan<- prometheus.Metric) {
	recorded, dropped := m.Queue.Counts()
	for _, kind := range slices.Sorted(maps.Keys(recorded)) {
		metrics <- prometheus.MustNewConstMetric(descEventsRecorded, prometheus.CounterValue, float64(recorded[kind]), string(kind))
	}
	metrics <- prometheus.MustNewConstMetric(descEventsDropped, prometheus.CounterValue, float64(dropped))
	metrics <- prometheus.MustNewConstMetric(descEventsPending, prometheus.GaugeValue, float64(len(m.Queue.Pending())))
}
