package demand

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"skyserve/forecast"
	"skyserve/internal/service"
	"skyserve/internal/telemetry"
)

const (
	// maxPoints is the maximum number of points per series in one response of Prometheus.
	maxPoints = 11000
	// defaultLookback is two weeks, which contain each day of the week twice; the default
	// retention of Prometheus is 15 days.
	defaultLookback = 14 * 24 * time.Hour
	// rateWindow replaces $window: with the usual scrape interval of at most a minute it
	// contains the two scrapes that a rate needs.
	rateWindow = "2m"
	// maxWarnings is the maximum number of warnings reported.
	maxWarnings = 5
)

// counters are queried in this order if no query is given; the first with samples is used.
// They count prompt tokens and requests, at balancers and in engines.
var counters = []struct{ tokens, requests, model string }{
	{"skyserve_prompt_tokens_total", "skyserve_requests_total", "model"},
	{"vllm:prompt_tokens_total", "vllm:request_success_total", "model_name"},
	{"sglang:prompt_tokens_total", "sglang:num_requests_total", "model_name"},
}

// DefaultQueries returns the queries sent to Prometheus if none is given, one after another
// until one has samples. $window is replaced by the window of a rate.
func DefaultQueries(requests bool) []string {
	var out []string
	for _, c := range counters {
		name := c.tokens
		if requests {
			name = c.requests
		}
		out = append(out, fmt.Sprintf("sum by (%s, tier, region) (rate(%s[$window]))", c.model, name))
	}
	return out
}

// prometheus is a Prometheus server and the range of minutes to query.
type prometheus struct {
	base        *url.URL // without a user and a query
	params      url.Values
	header      http.Header
	hc          *http.Client
	first, last int64 // seconds, multiples of 60, both inclusive
}

// queryPrometheus queries a rate per second by model, tier and region, in steps of a minute.
// If a query returns counters (their name ends in _total), it computes their increases.
func queryPrometheus(ctx context.Context, u *url.URL, o Options) (*found, error) {
	p := newPrometheus(u, o)
	queries := DefaultQueries(o.Requests)
	if own := cmp.Or(o.PromQL, p.params.Get("query")); own != "" {
		queries = []string{own}
	}
	p.params.Del("query")
	for _, q := range queries {
		result, err := p.query(ctx, strings.NewReplacer("$window", rateWindow, "$step", "1m").Replace(q))
		if err == nil && len(result.series) > 0 {
			var f *found
			if f, err = p.found(result); err == nil {
				return f, nil
			}
		}
		if err != nil {
			return nil, fmt.Errorf("querying Prometheus %s: %w", Redact(p.base.String()), err)
		}
	}
	return nil, fmt.Errorf("querying Prometheus %s: no samples from %s to %s for %s",
		Redact(p.base.String()), stamp(p.first), stamp(p.last), strings.Join(queries, "; "))
}

func stamp(at int64) string { return time.Unix(at, 0).UTC().Format("2006-01-02T15:04Z") }

func newPrometheus(u *url.URL, o Options) *prometheus {
	p := &prometheus{base: &url.URL{Scheme: u.Scheme, Host: u.Host, Path: u.Path}, params: u.Query(), header: http.Header{}, hc: o.HTTP}
	since := o.Since
	if since.IsZero() {
		since = o.Now.Add(-defaultLookback)
	}
	p.first, p.last = since.Unix()/60*60+60, o.Now.Unix()/60*60
	p.authorize(u.User, o.PrometheusAuth)
	return p
}

// authorize sets the credentials: those of the URL if it has any, otherwise given, which is
// user:password or a token. A password without a user is sent as a bearer token.
func (p *prometheus) authorize(user *url.Userinfo, given string) {
	name, secret, basic := strings.Cut(given, ":")
	if !basic {
		name, secret = "", given
	}
	if user != nil {
		name = user.Username()
		secret, _ = user.Password()
	}
	r := http.Request{Header: p.header}
	switch {
	case name != "":
		r.SetBasicAuth(name, secret)
	case secret != "":
		p.header.Set("Authorization", "Bearer "+secret)
	}
}

// queryResult is the result of a query: each series once, with the values of all ranges one
// after another.
type queryResult struct {
	series   []*promSeries
	byLabels map[string]*promSeries
	warnings []string
}

// query queries range by range, each within the limits of one response.
func (p *prometheus) query(ctx context.Context, query string) (*queryResult, error) {
	if p.last < p.first {
		return nil, fmt.Errorf("the range %s to %s contains no complete minute", stamp(p.first), stamp(p.last))
	}
	a := &queryResult{byLabels: map[string]*promSeries{}}
	for from := p.first; from <= p.last; from += maxPoints * 60 {
		to := min(from+(maxPoints-1)*60, p.last)
		if err := p.queryRange(ctx, a, query, from, to); err != nil {
			return nil, err
		}
	}
	return a, nil
}

func (p *prometheus) queryRange(ctx context.Context, a *queryResult, query string, from, to int64) error {
	u := p.base.JoinPath("api/v1/query_range")
	params := url.Values{}
	for name, values := range p.params {
		params[name] = values
	}
	params.Set("query", query)
	params.Set("start", strconv.FormatInt(from, 10))
	params.Set("end", strconv.FormatInt(to, 10))
	params.Set("step", "60")
	u.RawQuery = params.Encode()
	body, err := get(ctx, p.hc, u, p.header)
	if err != nil {
		return explain(err)
	}
	defer body.Close()
	var doc promResponse
	if err := json.NewDecoder(io.LimitReader(body, maxResponse)).Decode(&doc); err != nil {
		return fmt.Errorf("decoding the response: %w", err)
	}
	if doc.Status != "success" {
		return doc.problem()
	}
	return a.add(doc)
}

// explain replaces an HTTP error by Prometheus' error message in its body, if there is one.
func explain(err error) error {
	var r *statusError
	var doc promResponse
	if errors.As(err, &r) && json.Unmarshal(r.body, &doc) == nil && doc.Error != "" {
		return doc.problem()
	}
	return err
}

// promResponse is a response of Prometheus' HTTP API.
type promResponse struct {
	Status    string   `json:"status"`
	ErrorType string   `json:"errorType"`
	Error     string   `json:"error"`
	Warnings  []string `json:"warnings"`
	Data      struct {
		ResultType string          `json:"resultType"`
		Result     json.RawMessage `json:"result"`
	} `json:"data"`
}

func (d promResponse) problem() error {
	return fmt.Errorf("%s: %s", cmp.Or(d.ErrorType, "status "+strconv.Quote(d.Status)), cmp.Or(d.Error, "the response contains no error message"))
}

// promSeries is one series of a matrix.
type promSeries struct {
	Metric     map[string]string `json:"metric"`
	Values     []promValue       `json:"values"`
	Histograms json.RawMessage   `json:"histograms"`
}

// promValue is a pair of a time in seconds and a number as text.
type promValue struct {
	at    int64
	value float64
}

// UnmarshalJSON reads [1435781430.781,"1"]; +Inf and -Inf, which are no valid loads,
// become NaN.
func (v *promValue) UnmarshalJSON(data []byte) error {
	var pair [2]any
	if err := json.Unmarshal(data, &pair); err != nil {
		return err
	}
	at, okAt := pair[0].(float64)
	text, okText := pair[1].(string)
	value, err := strconv.ParseFloat(text, 64)
	if !okAt || !okText || err != nil {
		return fmt.Errorf("a value must be a pair of a time and a number as text, got %s", data)
	}
	if math.IsInf(value, 0) {
		value = math.NaN()
	}
	v.at, v.value = int64(math.Round(at)), value
	return nil
}

// add appends the response of a range to those before.
func (a *queryResult) add(doc promResponse) error {
	for _, w := range doc.Warnings {
		if !slices.Contains(a.warnings, w) {
			a.warnings = append(a.warnings, w)
		}
	}
	if doc.Data.ResultType != "matrix" {
		return fmt.Errorf("the query must return a matrix of rates, got %s", cmp.Or(doc.Data.ResultType, "nothing"))
	}
	var result []*promSeries
	if err := json.Unmarshal(doc.Data.Result, &result); err != nil {
		return fmt.Errorf("decoding the response: %w", err)
	}
	for _, s := range result {
		if len(s.Histograms) > 0 && len(s.Values) == 0 {
			return fmt.Errorf("the query must return a matrix of rates, got histograms")
		}
		id := identity(s.Metric)
		if before := a.byLabels[id]; before != nil {
			before.Values = append(before.Values, s.Values...)
			continue
		}
		a.byLabels[id] = s
		a.series = append(a.series, s)
	}
	return nil
}

// identity returns the labels as one text, except those in without.
func identity(labels map[string]string, without ...string) string {
	var parts []string
	for name, value := range labels {
		if !slices.Contains(without, name) {
			parts = append(parts, name+"="+strconv.Quote(value))
		}
	}
	slices.Sort(parts)
	return strings.Join(parts, ",")
}

// found converts a result to counts per minute.
func (p *prometheus) found(a *queryResult) (*found, error) {
	f := &found{gapsUnknown: true}
	var readings []forecast.Sample
	for _, s := range a.series {
		key, err := keyOfLabels(s.Metric)
		if err != nil {
			return nil, err
		}
		source := identity(s.Metric, "model", "model_name", "tier", "region")
		counter := strings.HasSuffix(s.Metric["__name__"], "_total")
		for _, v := range s.Values {
			if counter {
				readings = append(readings, forecast.Sample{SeriesKey: key, Source: source, At: v.at, Value: v.value})
				continue
			}
			// A value at a time is the rate of the preceding minute.
			f.samples = append(f.samples, forecast.Sample{SeriesKey: key, Source: source, At: v.at - 60, Value: v.value * 60})
		}
	}
	grown, report, err := forecast.CounterIncreases(readings, time.Minute)
	if err != nil {
		return nil, err
	}
	f.samples = append(f.samples, grown...)
	f.report.Merge(report)
	for _, w := range a.warnings[:min(len(a.warnings), maxWarnings)] {
		f.notes = append(f.notes, "Prometheus warning: "+w)
	}
	return f, nil
}

// keyOfLabels returns the key of a series from the labels of balancers and engines.
func keyOfLabels(labels map[string]string) (forecast.SeriesKey, error) {
	tier, err := telemetry.ParseTier(labels["tier"])
	if err != nil {
		return forecast.SeriesKey{}, fmt.Errorf("tier %w, got %q", err, labels["tier"])
	}
	return keyOf(service.Region(labels["region"]), cmp.Or(labels["model_name"], labels["model"]), tier), nil
}
