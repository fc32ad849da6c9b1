// Package demand reads what was asked of a service over time, from files, from a
// balancer's admin API or from Prometheus, as the series that forecasts are made
// of. What was wrong with a source is told in notes, never passed over.
//
// Read this file first, then read.go (files), trace.go (traces of requests),
// fetch.go (URLs) and prometheus.go.
package demand

import (
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

// AnyModel stands for the model of a source that names none.
const AnyModel = "all"

// Options says what is wanted of a source. The zero value is prompt tokens by
// the source's own step.
type Options struct {
	// Requests asks for requests instead of prompt tokens.
	Requests bool
	// Step is the length of a step: 0 = as the source has it, a minute but for
	// tables of rates; else a multiple of that.
	Step time.Duration
	// Since is the first time asked of a URL; what a file holds is read whole.
	// The zero time is all that a balancer has, and two weeks of Prometheus.
	Since time.Time
	// Now is when it is: Prometheus is asked up to the last minute that is over.
	Now time.Time
	// PromQL is the query for Prometheus, which makes an http URL one of it;
	// empty = the URL's own, else what suits the balancers and common engines.
	PromQL string
	// PrometheusAuth is user:password or a bearer token, for a URL with neither.
	PrometheusAuth string
	// HTTP is the client for URLs; nil = one of this package's own.
	HTTP *http.Client
}

// History is demand by steps of time: one series for every region, model and
// tier, all of the same span and step, sorted by model, region and tier.
type History struct {
	Series []forecast.Keyed
	// Notes say in sentences what was wrong with the source and what was done.
	Notes []string
}

// IsURL tells a source that is fetched from one that is a file.
func IsURL(source string) bool { return strings.Contains(source, "://") }

// Load reads a file or a URL: a history or a trace in any form that Read takes,
// the base of a balancer's admin API (http://127.0.0.1:8101), or Prometheus
// (prometheus+http://host:9090?query=...). Errors name the source without the
// secrets of its URL, and the file's line and field. A source that holds
// nothing is no error: there are no series then.
func Load(ctx context.Context, source string, o Options) (*History, error) {
	raw, err := load(ctx, source, o)
	if err != nil {
		return nil, err
	}
	return raw.history(Shown(source), o)
}

// Points is Load for those who need the points themselves, with all that a point
// counts where the source has it. It fails for a source that has rates of
// requests only.
func Points(ctx context.Context, source string, o Options) (points []telemetry.Point, notes []string, err error) {
	raw, err := load(ctx, source, o)
	if err != nil {
		return nil, nil, err
	}
	if raw.window != 0 {
		return nil, nil, fmt.Errorf("reading history %s: it has rates of requests, and no prompt tokens", Shown(source))
	}
	for _, s := range raw.samples {
		if !math.IsNaN(s.Value) {
			raw.points = append(raw.points, pointOf(s))
		}
	}
	return raw.points, append(raw.notes, raw.report.Notes()...), nil
}

// Traffic is what balancers counted, as the history that plans are made from. It fails
// where forecast.NewHistory does.
func Traffic(points []telemetry.Point) (*forecast.History, error) {
	prompt, cached := make([]forecast.Sample, len(points)), make([]forecast.Sample, len(points))
	for i, p := range points {
		prompt[i], cached[i] = sampleOf(p, float64(p.PromptTokens)), sampleOf(p, float64(p.CachedTokens))
	}
	return forecast.NewHistory(prompt, cached)
}

func pointOf(s forecast.Sample) telemetry.Point {
	return telemetry.Point{
		Minute: s.At / 60, Balancer: s.Source, Region: s.Region, Model: s.Model, Tier: s.Tier, PromptTokens: int64(math.Round(s.Value)),
	}
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

// found is what a source gave: points, or samples of one quantity.
type found struct {
	points  []telemetry.Point
	samples []forecast.Sample
	// window is the step of samples that are rates of requests; 0 for counts by
	// the minute.
	window time.Duration
	// silenceUnknown: a minute without a sample is unknown, not quiet.
	silenceUnknown bool
	report         forecast.Report
	notes          []string
}

// history makes the series that are wanted.
func (f *found) history(name string, o Options) (*History, error) {
	samples, build, err := f.choose(o.Requests)
	if err != nil {
		return nil, fmt.Errorf("reading history %s: %w", name, err)
	}
	series, report, err := forecast.Build(samples, build)
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

// choose takes the quantity that is wanted.
func (f *found) choose(requests bool) ([]forecast.Sample, forecast.BuildOptions, error) {
	o := forecast.BuildOptions{Step: time.Minute, Unit: forecast.PromptTokens, SilenceUnknown: f.silenceUnknown}
	switch {
	case f.window != 0:
		o.Step, o.Unit = f.window, forecast.RequestRate
		if !requests {
			f.notes = append(f.notes, "the source counts requests only: the series are of requests a second, not of prompt tokens")
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
		return nil, o, errors.New("it counts no requests")
	}
	return samples, o, nil
}

func sampleOf(p telemetry.Point, value float64) forecast.Sample {
	return forecast.Sample{Key: keyOf(p.Region, p.Model, p.Tier), Source: p.Balancer, At: p.Minute * 60, Value: value}
}

// keyOf names a series, where a source may leave names out.
func keyOf(region service.Region, model string, tier service.Tier) forecast.Key {
	if region == "" {
		region = service.AnyRegion
	}
	if model == "" {
		model = AnyModel
	}
	if tier == "" {
		tier = service.TierFast
	}
	return forecast.Key{Region: region, Model: model, Tier: tier}
}
