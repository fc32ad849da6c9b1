package lbd

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"skyserve/internal/telemetry"
)

// metrics contains the process's own counters.
type metrics struct {
	reloads *prometheus.CounterVec // result: applied, refused
}

// newMetrics registers the metrics; those of a certificate only if there is one.
func newMetrics(reg *prometheus.Registry, cert *certificate, self *serviceIdentity) metrics {
	m := metrics{reloads: prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "skyserve_reloads_total", Help: "Configuration reloads, by result: applied or refused.",
	}, []string{"result"})}
	for _, result := range []string{"applied", "refused"} {
		m.reloads.WithLabelValues(result)
	}
	reg.MustRegister(m.reloads)
	gauge := func(name, help string, value func() float64) {
		reg.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, value))
	}
	if self != nil {
		gauge("skyserve_identity_expires_seconds", "When the balancer's identity certificate expires, in seconds since the Unix epoch. Only if it has one.",
			func() float64 { return float64(self.cert.expires().Unix()) })
	}
	if cert == nil {
		return m
	}
	reg.MustRegister(certificateExpiry{cert, prometheus.NewDesc("skyserve_tls_certificate_expires_seconds",
		"When the public listener's certificate expires, in seconds since the Unix epoch. Missing while there is none.", nil, nil)})
	gauge("skyserve_tls_certificate_broken", "1 while the public listener waits for its first certificate, or while a newer one cannot be obtained or used.",
		func() float64 {
			if cert.waiting() || cert.problemText() != "" {
				return 1
			}
			return 0
		})
	return m
}

// certificateExpiry exports the expiry time of a certificate, if there is one.
type certificateExpiry struct {
	cert *certificate
	desc *prometheus.Desc
}

// Describe implements prometheus.Collector.
func (c certificateExpiry) Describe(descs chan<- *prometheus.Desc) { descs <- c.desc }

// Collect implements prometheus.Collector.
func (c certificateExpiry) Collect(metrics chan<- prometheus.Metric) {
	if !c.cert.waiting() {
		metrics <- prometheus.MustNewConstMetric(c.desc, prometheus.GaugeValue, float64(c.cert.expires().Unix()))
	}
}

// alertCollector exports the current alerts and the state of the store at each scrape.
type alertCollector struct{ b *balancer }

var (
	descAlerts = prometheus.NewDesc("skyserve_alerts", "Active alerts of the balancer and the service's controller.", []string{"kind", "severity"}, nil)
	descStore  = prometheus.NewDesc("skyserve_store_up", "1 while the store responds to the balancer, and its last write and read succeeded. Only if a store is configured.", nil, nil)
)

// Describe implements prometheus.Collector.
func (alertCollector) Describe(descs chan<- *prometheus.Desc) {
	descs <- descAlerts
	descs <- descStore
}

// Collect implements prometheus.Collector. Every kind is exported, even without an alert.
func (c alertCollector) Collect(metrics chan<- prometheus.Metric) {
	type labels struct{ kind, severity string }
	counts := map[labels]int{}
	for _, kind := range telemetry.AlertKinds() {
		for _, severity := range []telemetry.Severity{telemetry.SeverityWarning, telemetry.SeverityCritical} {
			counts[labels{kind, string(severity)}] = 0
		}
	}
	for _, a := range telemetry.MergeAlerts(c.b.alerts(time.Now()), c.b.serviceAlerts()) {
		counts[labels{a.Kind, string(a.Severity)}]++
	}
	for l, n := range counts {
		metrics <- prometheus.MustNewConstMetric(descAlerts, prometheus.GaugeValue, float64(n), l.kind, l.severity)
	}
	if c.b.store == nil {
		return
	}
	up := 1.0
	if c.b.storeProblem() != nil {
		up = 0
	}
	metrics <- prometheus.MustNewConstMetric(descStore, prometheus.GaugeValue, up)
}
