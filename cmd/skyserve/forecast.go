package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"skyserve/forecast"
	"skyserve/internal/telemetry"
)

// forecastOptions are the flags of `skyserve forecast`.
type forecastOptions struct {
	history     string
	backtest    bool
	horizon     time.Duration
	originStep  time.Duration
	forecasters []string
	output      string
}

func newForecastCmd() *cobra.Command {
	var o forecastOptions
	var names []string
	for _, f := range forecast.Forecasters() {
		names = append(names, f.Name())
	}
	cmd := &cobra.Command{
		Use:   "forecast --history FILE",
		Short: "Forecast load from a history, or backtest the forecasters on it",
		Long: `Forecast the prompt tokens of each model, region and tier of a history, by the
minute, with an interval that is meant to hold nine values of ten.

With --backtest each forecaster is judged on what it had not seen: every
--origin-step it forecasts the next --horizon from what came before. The error
measures are ratios (0.2 = 20 %), rmse is in prompt tokens a minute.

A history is CSV with a header (minute or at, model, prompt_tokens and, where
known, region, tier, cached_tokens, requests, output_tokens), JSON lines, or the
answer of a balancer's GET /v1/history; gzip is unpacked. A URL works too.`,
		Example: `  skyserve forecast --history week.csv
  skyserve forecast --history week.csv.gz --backtest --horizon 1h --origin-step 6h
  skyserve forecast --history http://127.0.0.1:8101 --forecaster auto -o json`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return runForecast(cmd.Context(), &o, cmd.OutOrStdout())
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&o.history, "history", "", "history `FILE` or URL")
	flags.BoolVar(&o.backtest, "backtest", false, "judge the forecasters on the history instead")
	flags.DurationVar(&o.horizon, "horizon", time.Hour, "how far ahead")
	flags.DurationVar(&o.originStep, "origin-step", 6*time.Hour, "time between two forecasts of a backtest")
	flags.StringSliceVar(&o.forecasters, "forecaster", nil, "forecaster, repeatable or with commas: "+strings.Join(names, ", ")+" (default: all for a backtest, else auto)")
	flags.StringVarP(&o.output, "output", "o", "table", "table or json")
	return cmd
}

// forecastSeries is what the forecast of one series prints with -o json.
type forecastSeries struct {
	Series     string    `json:"series"`
	Model      string    `json:"model"`
	Tier       string    `json:"tier"`
	Region     string    `json:"region"`
	Horizon    string    `json:"horizon"`
	Forecaster string    `json:"forecaster"`
	At         time.Time `json:"at"`
	StepS      int       `json:"step_s"`
	// Prompt tokens a second.
	PeakTPS     float64   `json:"peak_tps"`
	PeakHi90TPS float64   `json:"peak_hi90_tps"`
	MeanTPS     []float64 `json:"mean_tps"`
	Lo90TPS     []float64 `json:"lo90_tps"`
	Hi90TPS     []float64 `json:"hi90_tps"`
	Assumed     []string  `json:"assumed"`
}

// backtestSeries is what the backtest of one series prints with -o json.
type backtestSeries struct {
	Series  string         `json:"series"`
	Model   string         `json:"model"`
	Tier    string         `json:"tier"`
	Region  string         `json:"region"`
	Horizon string         `json:"horizon"`
	Rows    []forecast.Row `json:"rows"`
}

func runForecast(ctx context.Context, o *forecastOptions, out io.Writer) error {
	chosen, err := o.check()
	if err != nil {
		return err
	}
	h, err := loadHistory(ctx, o.history, 0)
	if err != nil {
		return err
	}
	if len(h.Series) == 0 {
		return failed(fmt.Errorf("forecasting: %s holds no traffic", o.history), "")
	}
	if o.backtest {
		return o.runBacktest(h, chosen, out)
	}
	return o.runForecasts(h, chosen, out)
}

// check refuses what cannot be meant and finds the forecasters.
func (o *forecastOptions) check() ([]forecast.Forecaster, error) {
	switch {
	case o.output != "table" && o.output != "json":
		return nil, usage(fmt.Errorf("-o %s: want table or json", o.output), "")
	case o.history == "":
		return nil, usage(fmt.Errorf("--history is missing"), "skyserve forecast --history week.csv")
	case o.horizon < time.Minute:
		return nil, usage(fmt.Errorf("--horizon: must be at least 1m, got %s", o.horizon), "")
	case o.originStep < time.Minute:
		return nil, usage(fmt.Errorf("--origin-step: must be at least 1m, got %s", o.originStep), "")
	}
	if len(o.forecasters) == 0 {
		if o.backtest {
			return forecast.Forecasters(), nil
		}
		return []forecast.Forecaster{forecast.Auto()}, nil
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

// loadHistory reads a history from a file or a URL.
func loadHistory(ctx context.Context, source string, sinceMinute int64) (*telemetry.History, error) {
	var points []telemetry.Point
	if strings.Contains(source, "://") {
		var err error
		if points, _, err = telemetry.FetchHistory(ctx, source, sinceMinute, nil); err != nil {
			return nil, failed(err, "")
		}
	} else {
		f, err := os.Open(source)
		if err != nil {
			return nil, usage(fmt.Errorf("reading history: %w", err), "")
		}
		defer f.Close()
		if points, err = telemetry.ReadHistory(source, f); err != nil {
			return nil, usage(err, "skyserve forecast --help describes the format")
		}
	}
	h, err := telemetry.NewHistory(points)
	if err != nil {
		return nil, usage(fmt.Errorf("%s: %w", source, err), "")
	}
	return h, nil
}

// minutesOf is the series of prompt tokens by minute.
func minutesOf(h *telemetry.History, s telemetry.Series) forecast.Series {
	return forecast.Series{Name: s.SeriesKey.String(), Start: h.First, Step: time.Minute, Values: s.PromptTokens}
}

func (o *forecastOptions) runBacktest(h *telemetry.History, chosen []forecast.Forecaster, out io.Writer) error {
	begin := time.Now()
	clock := func() time.Duration { return time.Since(begin) }
	results := []backtestSeries{}
	for _, s := range h.Series {
		rows, err := forecast.Backtest(minutesOf(h, s), chosen, int(o.horizon/time.Minute), int(o.originStep/time.Minute), clock)
		if err != nil {
			return failed(err, "a shorter --horizon needs less history")
		}
		results = append(results, backtestSeries{
			Series: s.SeriesKey.String(), Model: s.Model, Tier: string(s.Tier), Region: string(s.Region), Horizon: forecast.ShortDuration(o.horizon), Rows: rows,
		})
	}
	if o.output == "json" {
		return json.NewEncoder(out).Encode(results)
	}
	return backtestTable(out, results)
}

func backtestTable(out io.Writer, results []backtestSeries) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "SERIES\tFORECASTER\tMAPE\tWAPE\tMASE\tRMSE\tCOVERAGE 90\tFIT\tWINDOWS")
	for _, s := range results {
		for _, r := range s.Rows {
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%d\n", s.Series, r.Forecaster, orDash(r.MAPE, 100, "%.1f%%"), orDash(r.WAPE, 100, "%.1f%%"),
				orDash(r.MASE, 1, "%.2f"), orDash(r.RMSE, 1, "%.4g"), orDash(r.Coverage90, 100, "%.1f%%"), orDash(r.FitMillis, 1, "%.2f ms"), r.Windows)
		}
	}
	return w.Flush()
}

// orDash writes a figure times a factor, or a dash where it is unknown.
func orDash(v *float64, factor float64, format string) string {
	if v == nil {
		return "-"
	}
	return fmt.Sprintf(format, factor**v)
}

func (o *forecastOptions) runForecasts(h *telemetry.History, chosen []forecast.Forecaster, out io.Writer) error {
	results := []forecastSeries{}
	for _, s := range h.Series {
		for _, f := range chosen {
			fc, err := f.Forecast(minutesOf(h, s), int(o.horizon/time.Minute))
			if err != nil {
				return failed(err, "")
			}
			results = append(results, o.seriesOf(h, s, fc))
		}
	}
	if o.output == "json" {
		return json.NewEncoder(out).Encode(results)
	}
	return forecastTable(out, results)
}

// seriesOf turns tokens a minute into tokens a second.
func (o *forecastOptions) seriesOf(h *telemetry.History, s telemetry.Series, fc forecast.Forecast) forecastSeries {
	mean, hi := fc.Peak()
	perSecond := func(values []float64) []float64 {
		out := make([]float64, len(values))
		for i, v := range values {
			out[i] = v / 60
		}
		return out
	}
	return forecastSeries{
		Series: s.SeriesKey.String(), Model: s.Model, Tier: string(s.Tier), Region: string(s.Region), Horizon: forecast.ShortDuration(o.horizon),
		Forecaster: fc.Model, At: time.Unix(h.End()*60, 0).UTC(), StepS: 60, PeakTPS: mean / 60, PeakHi90TPS: hi / 60,
		MeanTPS: perSecond(fc.Mean), Lo90TPS: perSecond(fc.Lo90), Hi90TPS: perSecond(fc.Hi90), Assumed: append([]string{}, fc.Assumed...),
	}
}

func forecastTable(out io.Writer, results []forecastSeries) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "SERIES\tFORECASTER\tFROM\tFIRST TOK/S\tPEAK TOK/S\tPEAK, HIGH 90")
	for _, s := range results {
		fmt.Fprintf(w, "%s\t%s\t%s\t%.1f\t%.1f\t%.1f\n", s.Series, s.Forecaster, s.At.Format("2006-01-02 15:04"), s.MeanTPS[0], s.PeakTPS, s.PeakHi90TPS)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	heading := "\nAssumed:\n"
	for _, s := range results {
		for _, a := range s.Assumed {
			fmt.Fprintf(out, "%s  - %s: %s\n", heading, s.Series, a)
			heading = ""
		}
	}
	return nil
}
