// Package forecast predicts the next hours of a time series with a prediction interval, and
// backtests forecasters out of sample. It is pure: no clock, no randomness, no I/O; the
// same series yields the same forecast.
//
// Read series.go first (series and forecasts), then model.go (statistical models, which forecast means only),
// roll.go (past forecasts of a forecaster), interval.go and peak.go (intervals and peaks learned from
// their errors) and auto.go (the combination of forecasters by past errors). The models have files of
// their own, simplest first: average.go, seasonal.go, profile.go, smoothing.go, har.go, tvar.go,
// hmm.go, and arima.go with its filter kalman.go and its application to traffic,
// arima_forecaster.go. backtest.go evaluates them, watch.go detects a load that deviates from its
// forecast.
//
// The origin of a forecast is the first step that it covers; it uses only the values before its origin.
// Past forecasts are evaluated on windows: the window of an origin is the horizon that begins there. Only the windows
// that watch.go compares are shorter: 20 minutes of a horizon. A span is a stretch of history that a model uses. The
// level of a model is its estimate of the current mean of the series. The model of a SeriesKey or a History is not
// a statistical model: it is the LLM of the requests.
package forecast
