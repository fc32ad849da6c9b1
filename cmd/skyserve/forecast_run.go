package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"skyserve/forecast"
	"skyserve/internal/printable"
	"skyserve/internal/service"
	"skyserve/internal/telemetry/demand"
)

// forecastSeries is the forecast of one series in the JSON output.
type forecastSeries struct {
	Series     string    `json:"series"`
	Model      string    `json:"model"`
	Tier       string    `json:"tier"`
	Region     string    `json:"region"`
	Horizon    string    `json:"horizon"`
	Forecaster string    `json:"forecaster"`
	Chosen     string    `json:"chosen"`
	At         time.Time `json:"at"`
	StepS      int       `json:"step_s"`
	Unit       string    `json:"unit"`
	// Values in Unit per second.
	PeakTPS     float64   `json:"peak_tps"`
	PeakHi90TPS float64   `json:"peak_hi90_tps"`
	MeanTPS     []float64 `json:"mean_tps"`
	Lo90TPS     []float64 `json:"lo90_tps"`
	Hi90TPS     []float64 `json:"hi90_tps"`
	Assumed     []string  `json:"assumed"`
}

// backtestSeries is the backtest of one series in the JSON output.
type backtestSeries struct {
	Series  string `json:"series"`
	Model   string `json:"model"`
	Tier    string `json:"tier"`
	Region  string `json:"region"`
	Horizon string `json:"horizon"`
	StepS   int    `json:"step_s"`
	Unit    string `json:"unit"`
	forecast.BacktestReport
}

// runBacktest evaluates the forecasters, with one job per forecaster and series to use all cores.
func (o *forecastOptions) runBacktest(ctx context.Context, h *demand.History, chosen []forecast.Forecaster, out, errOut io.Writer) error {
	begin := time.Now()
	clock := func() time.Duration { return time.Since(begin) }
	for _, f := range forecast.Baselines() {
		if !slices.ContainsFunc(chosen, func(c forecast.Forecaster) bool { return c.Name() == f.Name() }) {
			chosen = append(slices.Clone(chosen), f)
		}
	}
	results, runs := make([]backtestSeries, len(h.Series)), make([][]forecast.BacktestRun, len(h.Series))
	for i, s := range h.Series {
		results[i] = backtestSeries{
			Series: s.SeriesKey.ID(), Model: s.Model, Tier: string(s.Tier), Region: string(s.Region), Horizon: forecast.ShortDuration(o.horizon),
			StepS: int(s.Step / time.Second), Unit: string(s.Unit),
		}
		runs[i] = make([]forecast.BacktestRun, len(chosen))
	}
	err := inParallel(ctx, len(h.Series)*len(chosen), func(i int) error {
		s, f := h.Series[i%len(h.Series)], i/len(h.Series)
		run, err := forecast.RunBacktest(s.Series, chosen[f], int(o.horizon/s.Step), int(o.originStep/s.Step), clock)
		if err != nil {
			return failed(err, "choose a shorter --horizon, which needs less history")
		}
		runs[i%len(h.Series)][f] = run
		return nil
	}, newProgress(errOut, "backtesting", "backtests"))
	if err != nil {
		return err
	}
	for i := range results {
		results[i].BacktestReport = forecast.CompareBacktests(runs[i])
	}
	return o.writeOutput(out, func(w io.Writer) error {
		switch {
		case o.format.kind == "svg" || o.format.kind == "png":
			return plotBacktest(w, o.format.kind, results)
		case o.format.isTable() && !o.format.noHeaders:
			return writeBacktest(w, o.format, results)
		}
		return o.format.write(w, results, backtestTable(results))
	})
}

// backtestTable returns the table of the results.
func backtestTable(results []backtestSeries) list {
	t := list{titles: []string{"SERIES", "FORECASTER", "MAPE", "WAPE", "WAPE 95 %", "MASE", "RMSE", "COVERAGE", "PEAK COV", "FIT", "WINDOWS"}, fitting: printable.Fitting{Optional: []string{"FIT", "RMSE", "MASE", "MAPE", "PEAK COV", "WINDOWS"}, Whole: []string{"FORECASTER"}}}
	for _, s := range results {
		for _, r := range s.Rows {
			t.rows = append(t.rows, listRow{name: s.name() + "/" + r.Forecaster, cells: []string{
				s.name(), r.Forecaster, percent(r.MAPE), percent(r.WAPE), percentRange(r.WAPELo95, r.WAPEHi95), orDash(r.MASE, 1, "%.2f"), thousands(r.RMSE),
				percent(r.Coverage90), percent(r.PeakCoverage90), orDash(r.FitMillis, 1, "%.1f ms"), strconv.Itoa(r.Windows),
			}})
		}
	}
	return t
}

// writeBacktest prints the results with explanations.
func writeBacktest(out io.Writer, format outputFormat, results []backtestSeries) error {
	if err := format.write(out, nil, backtestTable(results)); err != nil {
		return err
	}
	fmt.Fprintln(out, "\nLowest WAPE, with 95 % confidence:")
	for _, s := range results {
		fmt.Fprintf(out, "  - %s: %s\n", s.name(), describeWinner(s.BacktestReport))
	}
	_, err := fmt.Fprintf(out, "\nAll rows of a series are computed from the same windows; those without windows had insufficient history.\n"+
		"RMSE is in %s per step of %s.\nCOVERAGE and PEAK COV are the shares of steps and of peaks inside the 90 %% prediction interval.\n",
		results[0].Unit, forecast.ShortDuration(time.Duration(results[0].StepS)*time.Second))
	return err
}

// describeWinner names the winner of a series, or the forecasters that its windows do not tell apart.
func describeWinner(r forecast.BacktestReport) string {
	share := fmt.Sprintf("load in %d of %s", r.WithLoad, printable.Count(r.Windows, "window"))
	switch {
	case r.WithLoad == 0:
		return "no result, " + share
	case r.Winner != nil:
		return fmt.Sprintf("%s (%s)", *r.Winner, share)
	case len(r.Undecided) == 1:
		return fmt.Sprintf("only %s was compared (%s)", r.Undecided[0], share)
	}
	return fmt.Sprintf("undecided between %s (%s)", strings.Join(r.Undecided, ", "), share)
}

// percentRange formats an interval in percent; a dash if it is unknown.
func percentRange(lo, hi *float64) string {
	if lo == nil || hi == nil {
		return "-"
	}
	return strings.TrimSuffix(percent(lo), "%") + "-" + percent(hi)
}

// name returns the name of the series for tables and images.
func (s backtestSeries) name() string {
	return forecast.SeriesKey{Region: service.Region(s.Region), Model: s.Model, Tier: service.Tier(s.Tier)}.String()
}

// percent formats a ratio in percent, without decimals from 1000 % on.
func percent(v *float64) string {
	if v != nil && *v >= 10 {
		return orDash(v, 100, "%.0f%%")
	}
	return orDash(v, 100, "%.1f%%")
}

// thousands formats a figure with two decimals and an SI prefix, such as 440.84k; a dash if it is
// unknown.
func thousands(v *float64) string {
	if v == nil {
		return "-"
	}
	units := []string{"", "k", "M", "G", "T", "P"}
	size := *v
	for size >= 1000 && len(units) > 1 {
		size, units = size/1000, units[1:]
	}
	return fmt.Sprintf("%.2f%s", size, units[0])
}

// orDash formats a figure times a factor; a dash if it is unknown.
func orDash(v *float64, factor float64, format string) string {
	if v == nil {
		return "-"
	}
	return fmt.Sprintf(format, factor**v)
}

// forecastedSeries is a series with its forecasts.
type forecastedSeries struct {
	forecast.KeyedSeries
	forecasts []forecast.Forecast
	names     []string // the forecaster of each
	skipped   []string // the errors of the forecasters without a forecast
}

// label returns the forecaster of a forecast, with the model that it selected.
func (d forecastedSeries) label(i int) string {
	if chosen := d.forecasts[i].Forecaster; chosen != d.names[i] {
		return d.names[i] + ": " + chosen
	}
	return d.names[i]
}

// runForecasts forecasts each series with each forecaster. The failure of a forecaster that was
// selected by name is an error; otherwise it is omitted.
func (o *forecastOptions) runForecasts(ctx context.Context, h *demand.History, chosen []forecast.Forecaster, out, errOut io.Writer) error {
	n := len(h.Series)
	made, errs := make([]forecast.Forecast, n*len(chosen)), make([]error, n*len(chosen))
	err := inParallel(ctx, len(made), func(i int) error {
		s := h.Series[i%n]
		made[i], errs[i] = chosen[i/n].Forecast(s.Series, int(o.horizon/s.Step))
		if errs[i] != nil && len(o.forecasters) > 0 {
			return failed(errs[i], "")
		}
		return nil
	}, newProgress(errOut, "forecasting", "forecasts"))
	if err != nil {
		return err
	}
	results := make([]forecastedSeries, n)
	for i, s := range h.Series {
		d := forecastedSeries{KeyedSeries: s}
		for f := range chosen {
			if err := errs[f*n+i]; err != nil {
				d.skipped = append(d.skipped, err.Error())
				continue
			}
			d.forecasts, d.names = append(d.forecasts, made[f*n+i]), append(d.names, chosen[f].Name())
		}
		if len(d.forecasts) == 0 {
			return failed(errs[i], "")
		}
		results[i] = d
	}
	return o.writeOutput(out, func(w io.Writer) error { return o.printForecasts(w, results) })
}

func (o *forecastOptions) printForecasts(w io.Writer, results []forecastedSeries) error {
	switch {
	case o.format.isDocument():
		all := []forecastSeries{}
		for _, d := range results {
			for i, fc := range d.forecasts {
				all = append(all, o.seriesOf(d.KeyedSeries, d.names[i], fc))
			}
		}
		return o.format.writeDocument(w, all)
	case o.format.kind == "svg" || o.format.kind == "png":
		return plotForecasts(w, o.format.kind, results)
	}
	if err := o.format.write(w, nil, forecastTable(results)); err != nil || o.format.noHeaders || o.format.kind == outputName {
		return err
	}
	if err := writeForecastNotes(w, results); err != nil {
		return err
	}
	if o.plot || !o.plotSet && isTerminal(w) {
		return o.terminalPlots(w, results)
	}
	return nil
}

// seriesOf converts a forecast from values per step to values per second.
func (o *forecastOptions) seriesOf(s forecast.KeyedSeries, name string, fc forecast.Forecast) forecastSeries {
	mean, hi := fc.ExpectedPeak()
	perSecond := func(values []float64) []float64 {
		out := make([]float64, len(values))
		for i, v := range values {
			out[i] = s.PerSecond(v)
		}
		return out
	}
	return forecastSeries{
		Series: s.SeriesKey.ID(), Model: s.Model, Tier: string(s.Tier), Region: string(s.Region), Horizon: forecast.ShortDuration(o.horizon),
		Forecaster: name, Chosen: fc.Forecaster, At: s.End(), StepS: int(s.Step / time.Second), Unit: string(s.Unit),
		PeakTPS: s.PerSecond(mean), PeakHi90TPS: s.PerSecond(hi),
		MeanTPS: perSecond(fc.Mean), Lo90TPS: perSecond(fc.Lo90), Hi90TPS: perSecond(fc.Hi90), Assumed: append([]string{}, fc.Assumed...),
	}
}

// forecastTable returns the table of the forecasts.
func forecastTable(results []forecastedSeries) list {
	t := list{titles: []string{"SERIES", "FORECASTER", "FROM", "STEP", "UNIT", "NEXT STEP", "PEAK", "PEAK P95"}, wide: []string{"NEXT STEP LOW 90", "NEXT STEP HIGH 90"}, fitting: printable.Fitting{Optional: []string{"FROM", "STEP"}, Whole: []string{"FROM"}}}
	for _, d := range results {
		for i, fc := range d.forecasts {
			mean, hi := fc.ExpectedPeak()
			figure := func(v float64) string { return fmt.Sprintf("%.1f", d.PerSecond(v)) }
			t.rows = append(t.rows, listRow{
				d.SeriesKey.String() + "/" + d.names[i],
				[]string{d.SeriesKey.String(), d.label(i), d.End().Format("2006-01-02 15:04"), forecast.ShortDuration(d.Step), d.Unit.PerSecond(), figure(fc.Mean[0]), figure(mean), figure(hi)},
				[]string{figure(fc.Lo90[0]), figure(fc.Hi90[0])},
			})
		}
	}
	return t
}

// writeForecastNotes prints each assumption once, with its forecasts, and the omitted forecasts.
func writeForecastNotes(out io.Writer, results []forecastedSeries) error {
	var order []string
	names, all := map[string][]string{}, 0 // by assumption: the forecasts
	for _, d := range results {
		for i, fc := range d.forecasts {
			all++
			for _, a := range fc.Assumed {
				if names[a] == nil {
					order = append(order, a)
				}
				names[a] = append(names[a], fmt.Sprintf("%s, %s", d.SeriesKey, d.names[i]))
			}
		}
	}
	heading := "\nAssumed:\n"
	for _, a := range order {
		forecasts := strings.Join(names[a], "; ")
		if all > 1 && len(names[a]) == all {
			forecasts = "all forecasts"
		}
		fmt.Fprintf(out, "%s  - %s: %s\n", heading, forecasts, a)
		heading = ""
	}
	heading = "\nOmitted:\n"
	for _, d := range results {
		for _, why := range d.skipped {
			fmt.Fprintf(out, "%s  - %s\n", heading, why)
			heading = ""
		}
	}
	return nil
}
