package oidc

import (
	"github.com/prometheus/client_golang/prometheus"
)

// result is the result of verifying a token, a label value of metrics.
type result int

const (
	resultVerified result = iota
	resultInvalid
	resultForbidden
	resultUnavailable
	resultKinds
)

var resultNames = [resultKinds]string{"verified", "invalid", "forbidden", "unavailable"}

// resultOf returns the result of a rejection.
func resultOf(kind RejectKind) result {
	switch kind {
	case RejectForbidden:
		return resultForbidden
	case RejectUnavailable:
		return resultUnavailable
	}
	return resultInvalid
}

var (
	descResults = prometheus.NewDesc("skyserve_oidc_tokens_total", "Identity tokens that were verified, by result: verified, invalid, forbidden (no accepted role) or unavailable (the issuer does not respond); tokens that were verified before are not included.", []string{"result"}, nil)
	descAge     = prometheus.NewDesc("skyserve_oidc_keys_age_seconds", "Time since the signing keys of an issuer of identity tokens were received; missing before that.", []string{"issuer"}, nil)
)

// Describe sends the description of every series.
func (v *Verifier) Describe(ch chan<- *prometheus.Desc) {
	ch <- descResults
	ch <- descAge
}

// Collect sends the current value of every series; none without issuers.
func (v *Verifier) Collect(ch chan<- prometheus.Metric) {
	if !v.Enabled() {
		return
	}
	for i := range v.results {
		ch <- prometheus.MustNewConstMetric(descResults, prometheus.CounterValue, float64(v.results[i].Load()), resultNames[i])
	}
	for _, o := range v.settings.Load().issuers {
		if fetched, ok := o.keys.lastFetch(); ok {
			ch <- prometheus.MustNewConstMetric(descAge, prometheus.GaugeValue, v.now().Sub(fetched).Seconds(), o.Issuer)
		}
	}
}
