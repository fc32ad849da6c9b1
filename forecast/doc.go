// Package forecast predicts the next hours of a time series with an interval,
// and judges predictors out of sample. It is pure: no clock, no randomness, no
// I/O; the same series gives the same forecast.
//
// Read series.go first (what a series and a forecast are), then average.go and
// seasonal.go (the simple models), arima.go and kalman.go (ARIMA models and their
// filter) with arima_forecaster.go (what they make of traffic), auto.go (choosing
// among models) and backtest.go.
package forecast
