package lbd

import "github.com/prometheus/client_golang/prometheus"

// metrics is what is counted of the process itself.
type metrics struct {
	reloads *prometheus.CounterVec // result: applied, refused
}

// newMetrics registers them; those of a certificate only where there is one.
func newMetrics(reg *prometheus.Registry, cert *certificate, self *member) metrics {
	m := metrics{reloads: prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "skyserve_reloads_total", Help: "Times that the configuration was read again, by result: applied or refused.",
	}, []string{"result"})}
	for _, result := range []string{"applied", "refused"} {
		m.reloads.WithLabelValues(result)
	}
	reg.MustRegister(m.reloads)
	gauge := func(name, help string, value func() float64) {
		reg.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, value))
	}
	if self != nil {
		gauge("skyserve_identity_expires_seconds", "When the balancer's certificate in its service ends, in seconds since the Unix epoch. Only where it has one.",
			func() float64 { return float64(self.cert.expires().Unix()) })
	}
	if cert == nil {
		return m
	}
	reg.MustRegister(certificateEnd{cert, prometheus.NewDesc("skyserve_tls_certificate_expires_seconds",
		"When the public listener's certificate ends, in seconds since the Unix epoch. Missing while there is none.", nil, nil)})
	gauge("skyserve_tls_certificate_broken", "1 while the public listener waits for its first certificate, or a newer one cannot be obtained or used and an older one stays in use.",
		func() float64 {
			if cert.waiting() || cert.wrong() != "" {
				return 1
			}
			return 0
		})
	return m
}

// certificateEnd tells when a certificate ends, and nothing while there is none.
type certificateEnd struct {
	cert *certificate
	desc *prometheus.Desc
}

// Describe implements prometheus.Collector.
func (c certificateEnd) Describe(descs chan<- *prometheus.Desc) { descs <- c.desc }

// Collect implements prometheus.Collector.
func (c certificateEnd) Collect(metrics chan<- prometheus.Metric) {
	if !c.cert.waiting() {
		metrics <- prometheus.MustNewConstMetric(c.desc, prometheus.GaugeValue, float64(c.cert.expires().Unix()))
	}
}
