// Package demand reads the past load of a service from files, from a balancer's admin API or
// from Prometheus, as the series that forecasts are based on. Every problem of a source
// is reported in its notes.
//
// Read this file first, then read.go (files), trace.go (traces of requests),
// fetch.go (URLs) and prometheus.go.
package demand

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"os"
	"strings"
	"time"

	"skyserve/forecast"
	"skyserve/internal/service"
	"skyserve/internal/telemetry"
)

// Options selects what to read from a source. The zero value is prompt tokens in the
// source's own step.
type Options struct {
	// Requests selects requests in place of prompt tokens.
	Requests bool
	// Step is the length of a step: 0 = the step of the source, which is a minute except
	// for tables of rates and for rows of longer steps; else a multiple of that.
	Step time.Duration
	// Since is the start time requested from a URL; files are read in full. The zero time
	// means the whole history of a balancer, and two weeks from Prometheus.
	Since time.Time
	// Now is the current time: Prometheus is queried up to the last complete minute.
	Now time.Time
	// PromQL is the query for Prometheus; if set, an http URL is one of Prometheus. Empty =
	// the query in the URL, else DefaultQueries.
	PromQL string
	// PrometheusAuth is user:password or a bearer token, for a URL without credentials.
	PrometheusAuth string
	// HTTP is the client for URLs; nil = a client of this package.
	HTTP *http.Client
}

// History is demand by steps of time: one series for every region, model and
// tier, all of the same span and step, sorted by model, region and tier.
type History struct {
	Series []forecast.KeyedSeries
	// Notes describe problems of the source and how they were handled.
	Notes []string
}

// IsURL reports whether a source is a URL and not a file.
func IsURL(source string) bool { return strings.Contains(source, "://") }

// Load reads a file or a URL: a history or a trace in any format that Read accepts,
// the base of a balancer's admin API (http://127.0.0.1:8101), or Prometheus
// (prometheus+http://host:9090?query=...). Errors contain the source without the
// secrets of its URL, and the file's line and field. An empty source is not an error: it
// has no series.
func Load(ctx context.Context, source string, o Options) (*History, error) {
	raw, err := load(ctx, source, o)
	if err != nil {
		return nil, err
	}
	return raw.history(Redact(source), o)
}

// LoadTraffic is like Load but returns the history that plans are based on, with cached tokens. Its notes describe
// problems of the source. It fails for a source with only request rates.
func LoadTraffic(ctx context.Context, source string, o Options) (h *forecast.History, notes []string, err error) {
	raw, err := load(ctx, source, o)
	if err != nil {
		return nil, nil, err
	}
	if raw.window != 0 {
		return nil, nil, fmt.Errorf("reading history %s: the source contains request rates, but no prompt tokens", Redact(source))
	}
	prompt, cached := samplesOf(raw.points)
	for _, s := range raw.samples {
		prompt = append(prompt, s)
		if !math.IsNaN(s.Value) {
			s.Value = 0
		}
		cached = append(cached, s)
	}
	if h, err = forecast.NewHistory(prompt, cached, raw.buildOptions()); err != nil {
		return nil, nil, fmt.Errorf("reading history %s: %w", Redact(source), err)
	}
	raw.report.Merge(h.Report)
	return h, append(raw.notes, raw.report.Notes()...), nil
}

// Traffic converts the balancers' points to the history that plans are based on. It fails
// if forecast.NewHistory does.
func Traffic(points []telemetry.Point) (*forecast.History, error) {
	prompt, cached := samplesOf(points)
	return forecast.NewHistory(prompt, cached, (&found{}).buildOptions())
}

// samplesOf returns the samples of prompt tokens and of cached tokens of points.
func samplesOf(points []telemetry.Point) (prompt, cached []forecast.Sample) {
	prompt, cached = make([]forecast.Sample, len(points)), make([]forecast.Sample, len(points))
	for i, p := range points {
		prompt[i], cached[i] = sampleOf(p, float64(p.PromptTokens)), sampleOf(p, float64(p.CachedTokens))
	}
	return prompt, cached
}

func load(ctx context.Context, source string, o Options) (*found, error) {
	if IsURL(source) {
		return fetch(ctx, source, o)
	}
	f, err := os.Open(source)
	if err != nil {
		return nil, fmt.Errorf("reading history: %w", err)
	}
	defer f.Close()
	return read(source, f)
}

// found is the data of a source: points, or samples of one quantity.
type found struct {
	points  []telemetry.Point
	samples []forecast.Sample
	// window is the step of samples that are request rates; 0 for counts.
	window time.Duration
	// step is the step of points; 0 = a minute.
	step time.Duration
	// gapsUnknown is true if a minute without a sample is unknown; otherwise it is without load.
	gapsUnknown bool
	report      forecast.BuildReport
	notes       []string
}

// history builds the requested series.
func (f *found) history(name string, o Options) (*History, error) {
	samples, build, err := f.choose(o.Requests)
	if err != nil {
		return nil, fmt.Errorf("reading history %s: %w", name, err)
	}
	series, report, err := forecast.BuildSeries(samples, build)
	if err != nil {
		return nil, fmt.Errorf("reading history %s: %w", name, err)
	}
	f.report.Merge(report)
	for i := range series {
		if o.Step == 0 {
			break
		}
		if series[i].Series, err = forecast.Resample(series[i].Series, o.Step); err != nil {
			return nil, fmt.Errorf("reading history %s: %w", name, err)
		}
	}
	return &History{Series: series, Notes: append(f.notes, f.report.Notes()...)}, nil
}

// buildOptions are the options for series of prompt tokens.
func (f *found) buildOptions() forecast.BuildOptions {
	return forecast.BuildOptions{Step: cmp.Or(f.step, time.Minute), Unit: forecast.PromptTokens, MissingIsUnknown: f.gapsUnknown}
}

// choose selects the requested quantity.
func (f *found) choose(requests bool) ([]forecast.Sample, forecast.BuildOptions, error) {
	o := f.buildOptions()
	switch {
	case f.window != 0:
		o.Step, o.Unit = f.window, forecast.RequestRate
		if !requests {
			f.notes = append(f.notes, "the source contains only request rates: the series are requests per second, not prompt tokens")
		}
		return f.samples, o, nil
	case requests:
		o.Unit = forecast.Requests
	}
	samples := f.samples
	total := 0.0
	for _, p := range f.points {
		value := p.PromptTokens
		if requests {
			value = p.Requests
		}
		total += float64(value)
		samples = append(samples, sampleOf(p, float64(value)))
	}
	if requests && total == 0 && len(f.points) > 0 {
		return nil, o, errors.New("the source contains no request counts")
	}
	return samples, o, nil
}

func sampleOf(p telemetry.Point, value float64) forecast.Sample {
	return forecast.Sample{SeriesKey: keyOf(p.Region, p.Model, p.Tier), Source: p.Balancer, At: p.Minute * 60, Value: value}
}

// keyOf returns the key of a series, with defaults for names that the source omits.
func keyOf(region service.Region, model string, tier service.Tier) forecast.SeriesKey {
	if region == "" {
		region = service.AnyRegion
	}
	if model == "" {
		model = service.AnyModel
	}
	if tier == "" {
		tier = service.TierFast
	}
	return forecast.SeriesKey{Region: region, Model: model, Tier: tier}
}
