package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"skyserve/forecast"
	"skyserve/internal/service"
	"skyserve/internal/telemetry/demand"
)

// envPrometheusAuth names the variable that holds user:password or a bearer
// token for Prometheus, so that neither stands on a command line.
const envPrometheusAuth = "SKYSERVE_PROMETHEUS_AUTH"

// forecastOptions are the flags of `skyserve forecast`.
type forecastOptions struct {
	history     string
	lookback    time.Duration
	promQL      string
	requests    bool
	step        time.Duration
	backtest    bool
	horizon     time.Duration
	originStep  time.Duration
	forecasters []string
	series      []string
	models      []string
	tiers       []string
	regions     []string
	output      string
	file        string
	plot        bool
	plotAsked   bool // --plot stands on the command line
	ascii       bool
	noColor     bool
}

// forecastFormats are the values of -o.
var forecastFormats = []string{"table", "json", "svg", "png"}

func forecasterNames() []string {
	var names []string
	for _, f := range forecast.Forecasters() {
		names = append(names, f.Name())
	}
	return names
}

func newForecastCmd() *cobra.Command {
	var o forecastOptions
	cmd := &cobra.Command{
		Use:   "forecast --history FILE",
		Short: "Forecast load from a history, or backtest the forecasters on it",
		Long: `Forecast the prompt tokens (or requests) of each model, region and tier of a
history, step by step, with an interval that is meant to hold nine values of ten.

With --backtest each forecaster is judged on what it had not seen: every
--origin-step it forecasts the next --horizon from what came before. The error
measures are ratios (0.2 = 20 %), rmse is in the series' own unit a step.

A history is one of these, plain or gzipped, in a file or at a URL:
  - CSV with a header: minute (since 1970) or at (a time with its offset from UTC),
    model, prompt_tokens and, where known, region, tier, balancer, cached_tokens,
    requests, output_tokens; or with prompt_tokens_total, a counter read at a time
    (and by instance), whose growth is taken
  - JSON lines of the same keys, or the answer of a balancer's GET /v1/history;
    the address of a balancer's admin API is enough
  - a trace of requests: Azure 2023 and 2024, Mooncake, BurstGPT, Qwen-Bailian,
    SageServe; it is counted by the minute
  - ServeGen's request rates by client or in all; they are in requests a second
  - Prometheus: prometheus+http://host:9090, with ?query=... or --promql for a rate
    a second by model, tier and region ($window stands for the span of the rate),
    or for counters whose names end in _total. Without a query the balancers',
    vLLM's or SGLang's own counters are asked for. The URL's user and password, its
    password alone (a bearer token) or ` + envPrometheusAuth + ` say who asks.

What is wrong with a history (gaps, repeats, late rows, counters that began
again) is put right or left out, and said on standard error.`,
		Example: `  skyserve forecast --history week.csv
  skyserve forecast --history week.csv.gz --backtest --horizon 1h --origin-step 6h
  skyserve forecast --history week.csv --tier NIW --step 15m -o svg --out niw.svg
  skyserve forecast --history http://127.0.0.1:8101 --forecaster auto -o json
  skyserve forecast --history prometheus+http://127.0.0.1:9090 --model chat`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			o.plotAsked = cmd.Flags().Changed("plot")
			o.noColor, _ = cmd.Flags().GetBool("no-color")
			return runForecast(cmd.Context(), &o, cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&o.history, "history", "", "history `FILE` or URL")
	flags.DurationVar(&o.lookback, "lookback", 0, "how much history to ask a URL for (default: all, two weeks of Prometheus)")
	flags.StringVar(&o.promQL, "promql", "", "`QUERY` for the Prometheus at the --history URL")
	flags.BoolVar(&o.requests, "requests", false, "forecast requests instead of prompt tokens")
	flags.DurationVar(&o.step, "step", 0, "length of a step, such as 10m (default: the history's own)")
	flags.BoolVar(&o.backtest, "backtest", false, "judge the forecasters on the history instead")
	flags.DurationVar(&o.horizon, "horizon", time.Hour, "how far ahead")
	flags.DurationVar(&o.originStep, "origin-step", 6*time.Hour, "time between two forecasts of a backtest")
	flags.StringSliceVar(&o.forecasters, "forecaster", nil, "forecaster, repeatable or with commas: "+strings.Join(forecasterNames(), ", ")+" (default: all)")
	flags.StringSliceVar(&o.series, "series", nil, "only series whose `NAME` (region, model and tier) holds this")
	flags.StringSliceVar(&o.models, "model", nil, "only this `MODEL`")
	flags.StringSliceVar(&o.tiers, "tier", nil, "only this `TIER`")
	flags.StringSliceVar(&o.regions, "region", nil, "only this `REGION`")
	flags.StringVarP(&o.output, "output", "o", "table", strings.Join(forecastFormats, ", "))
	flags.StringVar(&o.file, "out", "", "write to `FILE` instead of standard output")
	flags.BoolVar(&o.plot, "plot", false, "draw the series below the table (default: on a terminal)")
	flags.BoolVar(&o.ascii, "ascii", false, "draw with ASCII only")
	return cmd
}

func runForecast(ctx context.Context, o *forecastOptions, out, talk io.Writer) error {
	chosen, err := o.check(out)
	if err != nil {
		return err
	}
	h, err := o.load(ctx, talk)
	if err != nil {
		return err
	}
	if o.backtest {
		return o.runBacktest(ctx, h, chosen, out, talk)
	}
	return o.runForecasts(ctx, h, chosen, out, talk)
}

// check refuses what cannot be meant and finds the forecasters.
func (o *forecastOptions) check(out io.Writer) ([]forecast.Forecaster, error) {
	switch {
	case !slices.Contains(forecastFormats, o.output):
		return nil, usage(fmt.Errorf("-o %s: want %s", o.output, strings.Join(forecastFormats, ", ")), "")
	case o.history == "":
		return nil, usage(fmt.Errorf("--history is missing"), "skyserve forecast --history week.csv")
	case o.horizon < time.Minute:
		return nil, usage(fmt.Errorf("--horizon: must be at least 1m, got %s", o.horizon), "")
	case o.originStep < time.Minute:
		return nil, usage(fmt.Errorf("--origin-step: must be at least 1m, got %s", o.originStep), "")
	case o.step < 0:
		return nil, usage(fmt.Errorf("--step: must not be negative, got %s", o.step), "")
	case o.lookback < 0:
		return nil, usage(fmt.Errorf("--lookback: must not be negative, got %s", o.lookback), "")
	case o.promQL != "" && !demand.IsURL(o.history):
		return nil, usage(fmt.Errorf("--promql: --history must be the URL of a Prometheus, got %q", o.history), "")
	case o.output == "png" && o.file == "" && isTerminal(out):
		return nil, usage(fmt.Errorf("-o png: a terminal shows no image"), "--out forecast.png")
	}
	if len(o.forecasters) == 0 {
		return forecast.Forecasters(), nil
	}
	var chosen []forecast.Forecaster
	for _, name := range o.forecasters {
		f, err := forecast.ByName(name)
		if err != nil {
			return nil, usage(fmt.Errorf("--forecaster: %w", err), "")
		}
		chosen = append(chosen, f)
	}
	return chosen, nil
}

// load reads the history, keeps the series that are asked for, and says what was
// wrong with it.
func (o *forecastOptions) load(ctx context.Context, talk io.Writer) (*demand.History, error) {
	wanted := demand.Options{Requests: o.requests, Step: o.step, PromQL: o.promQL}
	if o.lookback > 0 {
		wanted.Since = time.Now().Add(-o.lookback)
	}
	var h *demand.History
	err := inParallel(ctx, 1, func(int) (err error) { // a pipe may keep one waiting, and an interrupt ends that
		h, err = demand.Load(ctx, o.history, withPrometheus(wanted))
		return err
	}, newProgress(talk, "reading"))
	if err != nil {
		return nil, historyError(ctx, o.history, err)
	}
	for _, n := range h.Notes {
		fmt.Fprintf(talk, "note: %s\n", n)
	}
	if len(h.Series) == 0 {
		return nil, failed(fmt.Errorf("forecasting: %s holds no traffic", demand.Shown(o.history)), "")
	}
	if err := o.filter(h); err != nil {
		return nil, err
	}
	for _, s := range h.Series[:1] {
		switch {
		case o.horizon < s.Step || o.horizon%s.Step != 0:
			return nil, usage(fmt.Errorf("--horizon: must be a multiple of the history's step of %s, got %s", forecast.ShortDuration(s.Step), o.horizon), "")
		case o.backtest && (o.originStep < s.Step || o.originStep%s.Step != 0):
			return nil, usage(fmt.Errorf("--origin-step: must be a multiple of the history's step of %s, got %s", forecast.ShortDuration(s.Step), o.originStep), "")
		}
	}
	return h, nil
}

// withPrometheus adds what the process knows: the time, and who asks.
func withPrometheus(o demand.Options) demand.Options {
	o.Now, o.PrometheusAuth = time.Now(), os.Getenv(envPrometheusAuth)
	return o
}

// historyError tells the errors of a file (usage) from those of a URL.
func historyError(ctx context.Context, source string, err error) error {
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case demand.IsURL(source):
		return failed(err, "")
	}
	return usage(err, "skyserve forecast --help describes the format")
}

// filter keeps the series that are asked for.
func (o *forecastOptions) filter(h *demand.History) error {
	all := h.Series
	h.Series = slices.DeleteFunc(slices.Clone(all), func(k forecast.Keyed) bool {
		return !oneOf(o.models, k.Model) || !oneOf(o.tiers, string(k.Tier)) || !oneOf(o.regions, string(k.Region)) || !o.named(k.Key.String())
	})
	if len(h.Series) > 0 {
		return nil
	}
	for _, f := range []struct {
		flag   string
		wanted []string
		of     func(forecast.Keyed) string
	}{
		{"--model", o.models, func(k forecast.Keyed) string { return k.Model }},
		{"--tier", o.tiers, func(k forecast.Keyed) string { return string(k.Tier) }},
		{"--region", o.regions, func(k forecast.Keyed) string { return string(k.Region) }},
	} {
		var there []string
		for _, k := range all {
			there = append(there, f.of(k))
		}
		slices.Sort(there)
		there = slices.Compact(there)
		if len(f.wanted) == 0 || slices.ContainsFunc(there, func(v string) bool { return oneOf(f.wanted, v) }) {
			continue
		}
		hint := "the history has " + strings.Join(there[:min(len(there), 10)], ", ")
		if near := service.Nearest(f.wanted[0], there); near != "" {
			hint = fmt.Sprintf("did you mean %q?", near)
		}
		return usage(fmt.Errorf("%s %s: no such series", f.flag, strings.Join(f.wanted, ",")), hint)
	}
	return usage(fmt.Errorf("no series of the %d in the history is left", len(all)), "the first is "+all[0].Key.String())
}

// oneOf tells whether a value is among those wanted; none wanted is any.
func oneOf(wanted []string, value string) bool {
	return len(wanted) == 0 || slices.ContainsFunc(wanted, func(w string) bool { return strings.EqualFold(w, value) })
}

func (o *forecastOptions) named(name string) bool {
	return len(o.series) == 0 || slices.ContainsFunc(o.series, func(part string) bool { return strings.Contains(name, part) })
}

// loadHistory reads the history that a plan is made from; notes say what was
// wrong with it.
func loadHistory(ctx context.Context, source string, since time.Time) (h *forecast.History, notes []string, err error) {
	points, notes, err := demand.Points(ctx, source, withPrometheus(demand.Options{Since: since}))
	if err != nil {
		return nil, nil, historyError(ctx, source, err)
	}
	if h, err = demand.Traffic(points); err != nil {
		return nil, nil, usage(fmt.Errorf("%s: %w", demand.Shown(source), err), "")
	}
	return h, notes, nil
}

// write writes an answer to standard output, or to the file that is asked for.
func (o *forecastOptions) write(out io.Writer, print func(io.Writer) error) error {
	switch {
	case o.file == "" && o.output == "png":
		return print(unguarded(out))
	case o.file == "":
		return print(out)
	}
	f, err := os.Create(o.file)
	if err != nil {
		return usage(fmt.Errorf("writing --out: %w", err), "")
	}
	return cmp.Or(print(f), f.Close())
}
