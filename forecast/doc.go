// Package forecast predicts the next hours of a time series with an interval,
// and judges predictors out of sample. It is pure: no clock, no randomness, no
// I/O; the same series gives the same forecast.
//
// Read series.go first (what a series and a forecast are), then model.go (what a
// model is: means only), roll.go (what a model would have said in the past),
// interval.go and peak.go (what is learned from that) and auto.go (combining
// models by it). The models are in files of their own, simplest first:
// average.go, seasonal.go, profile.go, smoothing.go, har.go,
// tvar.go, hmm.go, and arima.go with kalman.go, its filter, and
// arima_forecaster.go, what it makes of traffic. backtest.go judges them,
// watch.go notices a load
// that leaves its forecast.
package forecast
