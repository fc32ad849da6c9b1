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
	// maxPoints is how many points of a series Prometheus answers at once
	// (its own limit).
	maxPoints = 11000
	// defaultLookback is what is asked of Prometheus: two weeks, so that each day
	// of the week was seen twice; its own retention is 15 days by default.
	defaultLookback = 14 * 24 * time.Hour
	// rateWindow stands for $window: with the usual scrape every minute or less
	// it holds the two scrapes that a rate needs.
	rateWindow = "2m"
	// maxWarnings bounds the warnings that are passed on.
	maxWarnings = 5
)

// counters are what is asked for when no query is given: the first that has any
// sample. They count prompt tokens and requests, at balancers and in engines.
var counters = []struct{ tokens, requests, model string }{
	{"skyserve_prompt_tokens_total", "skyserve_requests_total", "model"},
	{"vllm:prompt_tokens_total", "vllm:request_success_total", "model_name"},
	{"sglang:prompt_tokens_total", "sglang:num_requests_total", "model_name"},
}

// DefaultQueries are the queries that Prometheus is asked when none is given, in
// turn until one has samples. $window is replaced by the span of a rate.
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

// prometheus is one to be asked over a range of minutes.
type prometheus struct {
	base        *url.URL // without a user and a query
	params      url.Values
	header      http.Header
	hc          *http.Client
	first, last int64 // seconds, multiples of 60: both asked for
}

// askPrometheus asks for a rate a second by model, tier and region, minute by
// minute. A query that gives counters themselves (their name ends in _total) is
// differenced here.
func askPrometheus(ctx context.Context, u *url.URL, o Options) (*found, error) {
	p := newPrometheus(u, o)
	queries := DefaultQueries(o.Requests)
	if own := cmp.Or(o.PromQL, p.params.Get("query")); own != "" {
		queries = []string{own}
	}
	p.params.Del("query")
	for _, q := range queries {
		answer, err := p.ask(ctx, strings.NewReplacer("$window", rateWindow, "$step", "1m").Replace(q))
		if err == nil && len(answer.series) > 0 {
			var f *found
			if f, err = p.found(answer); err == nil {
				return f, nil
			}
		}
		if err != nil {
			return nil, fmt.Errorf("asking Prometheus %s: %w", Shown(p.base.String()), err)
		}
	}
	return nil, fmt.Errorf("asking Prometheus %s: nothing from %s to %s for %s",
		Shown(p.base.String()), stamp(p.first), stamp(p.last), strings.Join(queries, "; "))
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

// authorize sets the credentials: the URL's user and password, its password
// alone as a bearer token, else those given.
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

// answer is what came of a query: each series once, with the values of all
// ranges one after another.
type answer struct {
	series   []*promSeries
	byLabels map[string]*promSeries
	warnings []string
}

// ask asks range by range, each within what Prometheus answers at once.
func (p *prometheus) ask(ctx context.Context, query string) (*answer, error) {
	if p.last < p.first {
		return nil, fmt.Errorf("no whole minute between %s and %s", stamp(p.first), stamp(p.last))
	}
	a := &answer{byLabels: map[string]*promSeries{}}
	for from := p.first; from <= p.last; from += maxPoints * 60 {
		to := min(from+(maxPoints-1)*60, p.last)
		if err := p.askRange(ctx, a, query, from, to); err != nil {
			return nil, err
		}
	}
	return a, nil
}

func (p *prometheus) askRange(ctx context.Context, a *answer, query string, from, to int64) error {
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
	var doc promAnswer
	if err := json.NewDecoder(io.LimitReader(body, maxAnswer)).Decode(&doc); err != nil {
		return fmt.Errorf("decoding the answer: %w", err)
	}
	if doc.Status != "success" {
		return doc.problem()
	}
	return a.add(doc)
}

// explain takes Prometheus' own words out of a refusal.
func explain(err error) error {
	var r *refusal
	var doc promAnswer
	if errors.As(err, &r) && json.Unmarshal(r.body, &doc) == nil && doc.Error != "" {
		return doc.problem()
	}
	return err
}

// promAnswer is an answer of Prometheus' HTTP API.
type promAnswer struct {
	Status    string   `json:"status"`
	ErrorType string   `json:"errorType"`
	Error     string   `json:"error"`
	Warnings  []string `json:"warnings"`
	Data      struct {
		ResultType string          `json:"resultType"`
		Result     json.RawMessage `json:"result"`
	} `json:"data"`
}

func (d promAnswer) problem() error {
	return fmt.Errorf("it says %s: %s", cmp.Or(d.ErrorType, "status "+strconv.Quote(d.Status)), cmp.Or(d.Error, "no reason"))
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

// UnmarshalJSON reads [1435781430.781,"1"]; +Inf and -Inf are no numbers that
// demand could have, and become NaN.
func (v *promValue) UnmarshalJSON(data []byte) error {
	var pair [2]any
	if err := json.Unmarshal(data, &pair); err != nil {
		return err
	}
	at, okAt := pair[0].(float64)
	text, okText := pair[1].(string)
	value, err := strconv.ParseFloat(text, 64)
	if !okAt || !okText || err != nil {
		return fmt.Errorf("want a time and a number as text, got %s", data)
	}
	if math.IsInf(value, 0) {
		value = math.NaN()
	}
	v.at, v.value = int64(math.Round(at)), value
	return nil
}

// add appends the answer of a range to those before.
func (a *answer) add(doc promAnswer) error {
	for _, w := range doc.Warnings {
		if !slices.Contains(a.warnings, w) {
			a.warnings = append(a.warnings, w)
		}
	}
	if doc.Data.ResultType != "matrix" {
		return fmt.Errorf("the query gives a %s: want a rate by minute", cmp.Or(doc.Data.ResultType, "nothing"))
	}
	var result []*promSeries
	if err := json.Unmarshal(doc.Data.Result, &result); err != nil {
		return fmt.Errorf("decoding the answer: %w", err)
	}
	for _, s := range result {
		if len(s.Histograms) > 0 && len(s.Values) == 0 {
			return fmt.Errorf("the query gives histograms: want a rate by minute")
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

// identity is the labels as one text, apart from those that name the series.
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

// found turns an answer into counts by the minute.
func (p *prometheus) found(a *answer) (*found, error) {
	f := &found{silenceUnknown: true}
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
				readings = append(readings, forecast.Sample{Key: key, Source: source, At: v.at, Value: v.value})
				continue
			}
			// What is known at a time is of the minute before it.
			f.samples = append(f.samples, forecast.Sample{Key: key, Source: source, At: v.at - 60, Value: v.value * 60})
		}
	}
	grown, report, err := forecast.Increases(readings, time.Minute)
	if err != nil {
		return nil, err
	}
	f.samples = append(f.samples, grown...)
	f.report.Merge(report)
	for _, w := range a.warnings[:min(len(a.warnings), maxWarnings)] {
		f.notes = append(f.notes, "Prometheus warns: "+w)
	}
	return f, nil
}

// keyOfLabels names a series by what balancers and engines call things.
func keyOfLabels(labels map[string]string) (forecast.Key, error) {
	tier := service.Tier(labels["tier"])
	if tier != "" && tier != telemetry.TierInteractive {
		parsed, err := service.ParseTier(string(tier))
		if err != nil {
			return forecast.Key{}, fmt.Errorf("tier: want IW-F, IW-N, NIW or IW, got %q", tier)
		}
		tier = parsed
	}
	return keyOf(service.Region(labels["region"]), cmp.Or(labels["model_name"], labels["model"]), tier), nil
}
