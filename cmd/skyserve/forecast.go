package main

import (
	"bytes"
	"context"
	"errors"
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
	"skyserve/plan"
)

// envPrometheusAuth is the variable with user:password or a bearer token for Prometheus, which do
// not belong on a command line.
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
	originSet   bool // --backtest-step is set
	forecasters []string
	series      []string
	models      []string
	tiers       []string
	regions     []string
	list        outputFlags
	format      outputFormat // parsed from list
	file        string
	plot        bool
	plotSet     bool // --plot is set
	ascii       bool
	noColor     bool
}

// forecastFormats are the formats of forecasts alone.
var forecastFormats = []string{"svg", "png"}

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
		Short: "Forecast load from a history, or backtest the forecasters",
		Long: `Read a history of load, and forecast its prompt tokens (or requests) per step for each
model, region and tier, with a 90 % prediction interval. Prompt tokens include cached ones;
plan, status and top show forecasts of uncached prompt tokens only.

The forecaster moving-average repeats the mean of the last hour; seasonal-naive the previous
day; seasonal-profile is the mean of previous days at the same time of day, adjusted to the
current level; damped-trend is exponential smoothing with a trend that fades, har a
heterogeneous autoregression, tvar an autoregression with time-varying coefficients, hmm a
hidden Markov model, arima a non-seasonal ARIMA model, and auto a combination of the
forecasters with the lowest past errors.

--backtest evaluates each forecaster out of sample: every --backtest-step it forecasts the
next --horizon from the data before. Each series has one row per forecaster, and a row of the
forecaster "zero", which always expects no load. It and seasonal-naive are baselines. All
rows cover the same windows. The winner has the lowest WAPE (sum of absolute errors / sum of
the load) with 95 % confidence by a seeded bootstrap over the windows. If none has, the
backtest lists the forecasters that it cannot tell apart.

A history is one of these, plain or gzipped, in a file or at a URL:
  - CSV with a header: minute (minutes since the Unix epoch, UTC) or at (a time with its
    UTC offset), model, prompt_tokens and, optionally, region, tier, balancer,
    cached_tokens, requests, output_tokens; or at, model, prompt_tokens_total (a counter,
    whose increase is used) and, optionally, region, tier, instance (one counter each).
    Rows that are up to 1 hour apart count for that long, e.g. for 5 minutes
  - JSON lines with the same keys, or the response of a balancer's GET /v1/history;
    the address of a balancer's admin API is sufficient
  - a request trace: Azure 2023 and 2024, Mooncake, BurstGPT, Qwen-Bailian, SageServe;
    it is aggregated per minute
  - ServeGen's request rates, per client or in total, in requests per second
  - Prometheus: prometheus+http://host:9090, with a query as ?query=... or --promql.
    The query returns tokens (or requests) per second by model, tier and region, and may
    contain $window for the window of a rate; or it selects counters whose names end in
    _total. Without a query, the counters of the balancers, vLLM or SGLang are used.
    Credentials are the URL's user and password, its password alone (a bearer token), or
    those in ` + envPrometheusAuth + `: user:password or a bearer token.

Problems of a history (gaps, duplicates, late rows, counter resets) are repaired or
omitted, and reported on standard error.`,
		Example: `  skyserve forecast --history week.csv
  skyserve forecast --history week.csv.gz --backtest --horizon 1h
  skyserve forecast --history week.csv --tier deferred --step 15m -o svg --out deferred.svg
  skyserve forecast --history http://127.0.0.1:8101 --forecaster auto -o json
  skyserve forecast --history prometheus+http://127.0.0.1:9090 --model chat`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			o.plotSet, o.originSet = cmd.Flags().Changed("plot"), cmd.Flags().Changed("backtest-step")
			o.noColor, _ = cmd.Flags().GetBool("no-color")
			return runForecast(cmd.Context(), &o, cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&o.history, "history", "", "history `FILE` or URL")
	flags.DurationVar(&o.lookback, "lookback", 0, "length of the history to fetch from a URL (default: all; two weeks from Prometheus)")
	flags.StringVar(&o.promQL, "promql", "", "`QUERY` for the Prometheus server at the --history URL")
	flags.BoolVar(&o.requests, "requests", false, "forecast the number of requests, not of prompt tokens")
	flags.DurationVar(&o.step, "step", 0, "length of a step, such as 10m (default: the history's)")
	flags.BoolVar(&o.backtest, "backtest", false, "evaluate the forecasters on the history")
	flags.DurationVar(&o.horizon, "horizon", time.Hour, "length of the forecast")
	flags.DurationVar(&o.originStep, "backtest-step", time.Hour, "time between two forecasts of --backtest")
	flags.StringSliceVar(&o.forecasters, "forecaster", nil, "forecaster, repeatable or comma-separated: "+strings.Join(forecasterNames(), ", ")+" (default: all)")
	flags.StringSliceVar(&o.series, "series", nil, "only series whose name (region, model and tier) contains `NAME`")
	flags.StringSliceVar(&o.models, "model", nil, "only this `MODEL`")
	flags.StringSliceVar(&o.tiers, "tier", nil, "only this `TIER`: fast, normal or deferred (in SageServe's words: IW-F, IW-N or NIW)")
	flags.StringSliceVar(&o.regions, "region", nil, "only this `REGION`")
	o.list.registerList(cmd, forecastFormats...)
	flags.StringVar(&o.file, "out", "", "write to `FILE` instead of standard output")
	flags.BoolVar(&o.plot, "plot", false, "draw the series below the table (default: if the output is a terminal)")
	flags.BoolVar(&o.ascii, "ascii", false, "draw with ASCII characters only")
	return cmd
}

func runForecast(ctx context.Context, o *forecastOptions, out, errOut io.Writer) error {
	chosen, err := o.checkOptions(out)
	if err != nil {
		return err
	}
	h, err := o.loadHistory(ctx, errOut)
	if err != nil {
		return err
	}
	if o.backtest {
		return o.runBacktest(ctx, h, chosen, out, errOut)
	}
	return o.runForecasts(ctx, h, chosen, out, errOut)
}

// checkOptions validates the flags and returns the selected forecasters.
func (o *forecastOptions) checkOptions(out io.Writer) ([]forecast.Forecaster, error) {
	o.list.formats = slices.Concat(listFormats, forecastFormats)
	var err error
	if o.format, err = o.list.parse(); err != nil {
		return nil, err
	}
	switch {
	case o.history == "":
		return nil, usage(fmt.Errorf("--history is required"), "for example: skyserve forecast --history week.csv")
	case o.horizon < time.Minute:
		return nil, usage(fmt.Errorf("--horizon: must be at least 1m, got %s", o.horizon), "")
	case o.originStep < time.Minute:
		return nil, usage(fmt.Errorf("--backtest-step: must be at least 1m, got %s", o.originStep), "")
	case o.step < 0:
		return nil, usage(fmt.Errorf("--step: must be at least 0, got %s", o.step), "")
	case o.lookback < 0:
		return nil, usage(fmt.Errorf("--lookback: must be at least 0, got %s", o.lookback), "")
	case o.lookback > 0 && !demand.IsURL(o.history):
		return nil, usage(fmt.Errorf("--lookback: --history must be a URL, got %q; files are read in full", o.history), "")
	case o.promQL != "" && !demand.IsURL(o.history):
		return nil, usage(fmt.Errorf("--promql: --history must be the URL of a Prometheus server, got %q", o.history), "")
	case o.format.kind == "png" && o.file == "" && isTerminal(out):
		return nil, usage(fmt.Errorf("-o png: cannot write an image to a terminal"), "write it to a file: --out forecast.png")
	}
	if len(o.forecasters) == 0 {
		return forecast.Forecasters(), nil
	}
	var chosen []forecast.Forecaster
	for _, name := range o.forecasters {
		f, err := forecast.ForecasterByName(name)
		if err != nil {
			return nil, usage(fmt.Errorf("--forecaster: %w", err), "")
		}
		chosen = append(chosen, f)
	}
	return chosen, nil
}

// loadHistory reads the history, selects the series of the flags, and prints notes about problems.
func (o *forecastOptions) loadHistory(ctx context.Context, errOut io.Writer) (*demand.History, error) {
	wanted := demand.Options{Requests: o.requests, Step: o.step, PromQL: o.promQL}
	if o.lookback > 0 {
		wanted.Since = time.Now().Add(-o.lookback)
	}
	var h *demand.History
	err := inParallel(ctx, 1, func(int) (err error) { // reading a pipe may block; inParallel returns on an interrupt
		h, err = demand.Load(ctx, o.history, withPrometheus(wanted))
		return err
	}, newProgress(errOut, "reading", "files"))
	if err != nil {
		return nil, historyError(ctx, o.history, err)
	}
	for _, n := range h.Notes {
		fmt.Fprintf(errOut, "note: %s\n", n)
	}
	if len(h.Series) == 0 {
		return nil, failed(fmt.Errorf("forecasting: %s contains no traffic", demand.Redact(o.history)), "")
	}
	if err := o.filter(h); err != nil {
		return nil, err
	}
	for _, s := range h.Series[:1] {
		if !o.originSet { // the default in whole steps
			o.originStep = (o.originStep + s.Step - 1) / s.Step * s.Step
		}
		switch {
		case o.horizon < s.Step || o.horizon%s.Step != 0:
			return nil, usage(fmt.Errorf("--horizon: must be a multiple of the history's step of %s, got %s", forecast.ShortDuration(s.Step), o.horizon), "")
		case o.horizon/s.Step > maxForecastSteps:
			return nil, usage(fmt.Errorf("--horizon: must be at most %d steps (%s), got %s", maxForecastSteps, forecast.ShortDuration(maxForecastSteps*s.Step), forecast.ShortDuration(o.horizon)), "")
		case o.backtest && (o.originStep < s.Step || o.originStep%s.Step != 0):
			return nil, usage(fmt.Errorf("--backtest-step: must be a multiple of the history's step of %s, got %s", forecast.ShortDuration(s.Step), o.originStep), "")
		}
	}
	return h, nil
}

// maxForecastSteps bounds the memory of a forecast: two weeks of minutes, as long as the history that a plan uses.
const maxForecastSteps = 14 * 24 * 60

// withPrometheus adds the current time and the Prometheus credentials of the environment.
func withPrometheus(o demand.Options) demand.Options {
	o.Now, o.PrometheusAuth = time.Now(), os.Getenv(envPrometheusAuth)
	return o
}

// historyError marks the error of a file as a usage error, and that of a URL as a failure.
func historyError(ctx context.Context, source string, err error) error {
	var step *forecast.StepError
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case errors.As(err, &step):
		return usage(fmt.Errorf("--step: %s", step.Problem), "")
	case demand.IsURL(source):
		return failed(err, "check that the server of the URL is running; 'skyserve forecast --help' lists the kinds of histories")
	}
	return usage(err, "'skyserve forecast --help' describes the formats")
}

// filter keeps the series that match the flags.
func (o *forecastOptions) filter(h *demand.History) error {
	for i, name := range o.tiers {
		if tier, err := service.ParseTier(name); err == nil {
			o.tiers[i] = tier.Word()
		}
	}
	all := h.Series
	if err := o.checkValues(all); err != nil {
		return err
	}
	h.Series = slices.DeleteFunc(slices.Clone(all), func(k forecast.KeyedSeries) bool {
		return !oneOf(o.models, k.Model) || !oneOf(o.tiers, k.Tier.Word()) || !oneOf(o.regions, string(k.Region)) || !o.named(k.SeriesKey)
	})
	if len(h.Series) > 0 {
		return nil
	}
	return usage(fmt.Errorf("no series of the history matches --model, --region, --tier and --series; it has %d series", len(all)), "the first series is "+all[0].SeriesKey.String())
}

// maxHintValues is the maximum number of values in a hint about an unknown one: they fit into two lines.
const maxHintValues = 10

// checkValues rejects a value of a flag that no series has, also where the other values match.
func (o *forecastOptions) checkValues(all []forecast.KeyedSeries) error {
	for _, f := range []struct {
		flag   string
		wanted []string
		of     func(forecast.KeyedSeries) string
	}{
		{"--model", o.models, func(k forecast.KeyedSeries) string { return k.Model }},
		{"--tier", o.tiers, func(k forecast.KeyedSeries) string { return k.Tier.Word() }},
		{"--region", o.regions, func(k forecast.KeyedSeries) string { return string(k.Region) }},
	} {
		var there []string
		for _, k := range all {
			there = append(there, f.of(k))
		}
		slices.Sort(there)
		there = slices.Compact(there)
		for _, value := range f.wanted {
			if slices.ContainsFunc(there, func(v string) bool { return strings.EqualFold(v, value) }) {
				continue
			}
			hint := "available: " + strings.Join(there[:min(len(there), maxHintValues)], ", ")
			if omitted := len(there) - maxHintValues; omitted > 0 {
				hint += fmt.Sprintf(" and %d more", omitted)
			}
			if near := service.Nearest(value, there); near != "" {
				hint = fmt.Sprintf("did you mean %q?", near)
			}
			return usage(fmt.Errorf("%s %s: no series of the history matches", f.flag, value), hint)
		}
	}
	return nil
}

// oneOf reports whether wanted is empty or contains value.
func oneOf(wanted []string, value string) bool {
	return len(wanted) == 0 || slices.ContainsFunc(wanted, func(w string) bool { return strings.EqualFold(w, value) })
}

// named reports whether --series selects a series, by its name with the word of the tier or with the abbreviation.
func (o *forecastOptions) named(k forecast.SeriesKey) bool {
	return len(o.series) == 0 || slices.ContainsFunc(o.series, func(part string) bool {
		return strings.Contains(k.String(), part) || strings.Contains(k.ID(), part)
	})
}

// loadHistory reads the history of a service's plan; notes are its problems. It warns of load that is not the service's.
func loadHistory(ctx context.Context, source string, spec *service.Spec, since time.Time, errOut io.Writer) (h *forecast.History, notes []string, err error) {
	h, notes, err = demand.LoadTraffic(ctx, source, withPrometheus(demand.Options{Since: since}))
	if err != nil {
		return nil, nil, historyError(ctx, source, err)
	}
	warning, err := plan.CheckHistory(spec, h)
	if err != nil {
		return nil, nil, usage(fmt.Errorf("--history %s: %w", demand.Redact(source), err), "")
	}
	if warning != "" {
		printWarnings(errOut, "--history "+demand.Redact(source), []string{warning})
	}
	return h, notes, nil
}

// writeOutput calls print with the file of --out, or with out. A print that fails does not change the file.
func (o *forecastOptions) writeOutput(out io.Writer, print func(io.Writer) error) error {
	switch {
	case o.file == "" && o.format.kind == "png":
		return print(rawWriter(out))
	case o.file == "":
		return print(out)
	}
	var text bytes.Buffer
	if err := print(&text); err != nil {
		return err
	}
	if err := os.WriteFile(o.file, text.Bytes(), 0o666); err != nil { //nolint:gosec // the umask decides, as for a redirection
		return usage(fmt.Errorf("writing --out: %w", err), "")
	}
	return nil
}
