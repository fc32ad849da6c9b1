package tui

import (
	"fmt"
	"math"
	"time"

	"skyserve/internal/service"
	"skyserve/internal/telemetry"
)

// forecastSheet has one row per model and region: actual load, forecast load and ready
// capacity.
func (s *screen) forecastSheet() sheet {
	figures := func(title string, rank int, letter, word string) sheetColumn {
		return sheetColumn{column{title: title, least: 6, right: true, rank: rank}, letter, word, true, false}
	}
	sh := sheet{noun: "forecast", columns: []sheetColumn{
		{column{title: "REGION", least: 10, most: 28}, "R", "region", false, false},
		{column{title: "MODEL", least: 8, most: 28, rank: 6}, "M", "model", false, true},
		figures("NOW", 1, "W", "load now"),
		figures("NEXT", 3, "X", "forecast mean, next step"),
		figures("90% INTERVAL", 5, "I", "90% interval"),
		figures("PEAK P95", 2, "P", "peak, 95th percentile"),
		figures("CAPACITY", 2, "C", "capacity"),
		figures("USED AT PEAK", 4, "U", "capacity used at peak"),
		{column{title: "FORECASTER", least: 6, most: 20, rank: 8}, "F", "forecaster", false, false},
		{column{title: "DEVIATION", least: 4, most: 80, rank: 7}, "L", "deviation", false, false},
	}, empty: []string{
		"No forecast yet", "the controller forecasts after an hour of load; run 'skyserve forecast' to forecast from a file",
	}}
	for i := range s.snapshot.Forecast {
		f := &s.snapshot.Forecast[i]
		if s.focus == "" || f.Region == s.focus {
			sh.rows = append(sh.rows, sheetRow{id: forecastID(f.Model, f.Region), cells: s.forecastCells(f), more: s.forecastMore(f)})
		}
	}
	return sh
}

// forecastID returns the row id of a forecast.
func forecastID(model string, region service.Region) string { return string(region) + " " + model }

// forecastCells returns the cells of a forecast, in uncached prompt tokens per second.
func (s *screen) forecastCells(f *telemetry.LoadForecast) []value {
	now, next, interval, used := noFigure(), noFigure(), noFigure(), noFigure()
	if v, known := s.loadNow(f); known {
		now = figure(v, rate(&v), roleText)
	}
	if len(f.MeanTPS) > 0 {
		next = figure(f.MeanTPS[0], rate(&f.MeanTPS[0]), roleText)
	}
	if len(f.Lo90TPS) > 0 && len(f.Hi90TPS) > 0 {
		interval = figure(f.Hi90TPS[0], rate(&f.Lo90TPS[0])+"-"+rate(&f.Hi90TPS[0]), roleMuted)
	}
	capacity, known := s.capacity(f)
	carries := noFigure()
	if known {
		carries = figure(capacity, rate(&capacity), roleText)
		if capacity > 0 {
			share := f.Peak.P95 / capacity
			used = figure(share, percent(&share), roleText)
			switch {
			case share > 1:
				used.role = roleBad
			case share > kvWarn:
				used.role = roleWarn
			}
		}
	}
	left := word(s.theme.text(f.Left), roleWarn)
	return []value{
		word(s.regionName(f.Region), roleAccent), word(s.theme.text(shortModel(f.Model)), roleText), now, next, interval,
		figure(f.Peak.P95, rate(&f.Peak.P95), roleText), carries, used, word(s.theme.text(f.Forecaster), roleMuted), left,
	}
}

// forecastMore returns the details of a forecast.
func (s *screen) forecastMore(f *telemetry.LoadForecast) []string {
	ahead := time.Duration(f.StepSeconds * float64(len(f.MeanTPS)) * float64(time.Second))
	line := fmt.Sprintf("%s in %s: uncached prompt tok/s, next %s from %s, forecaster %s", f.Model, f.Region, age(ahead), f.At.In(s.snapshot.At.Location()).Format("15:04"), orUnknown(f.Forecaster))
	return []string{s.theme.text(line)}
}

// capacity returns the capacity of the ready replicas for a forecast's load, in its unit.
func (s *screen) capacity(f *telemetry.LoadForecast) (tps float64, known bool) {
	for _, t := range s.snapshot.Targets {
		if t.Model != f.Model || t.Region != f.Region {
			continue
		}
		r := findRegion(s.snapshot, f.Region)
		if r == nil || t.ReplicaTPS <= 0 {
			return 0, false
		}
		n := 0
		for i := range r.Replicas {
			if r.Replicas[i].Model == f.Model && r.Replicas[i].State == service.StateReady {
				n++
			}
		}
		return float64(n) * t.ReplicaTPS, true
	}
	return 0, false
}

// load returns the recent load of a forecast's model and region; nil if unknown.
func (s *screen) load(f *telemetry.LoadForecast) *LoadSeries {
	for i := range s.asked.load {
		if l := &s.asked.load[i]; l.Model == f.Model && l.Region == f.Region {
			return l
		}
	}
	return nil
}

// loadNow returns the latest known load.
func (s *screen) loadNow(f *telemetry.LoadForecast) (tps float64, known bool) {
	l := s.load(f)
	if l == nil {
		return 0, false
	}
	for i := len(l.TPS) - 1; i >= 0; i-- {
		if !math.IsNaN(l.TPS[i]) {
			return l.TPS[i], true
		}
	}
	return 0, false
}

// plotted returns the forecast that the plot shows: the selected one, or the first.
func (s *screen) plotted() *telemetry.LoadForecast {
	id, ok := s.lists[viewForecast].selection()
	for i := range s.snapshot.Forecast {
		f := &s.snapshot.Forecast[i]
		if ok && forecastID(f.Model, f.Region) == id || !ok && (s.focus == "" || f.Region == s.focus) {
			return f
		}
	}
	return nil
}

// belowForecast plots one forecast in n lines: actual load, forecast with its interval, and
// ready capacity.
func (s *screen) belowForecast(t *Theme, n int) []string {
	f := s.plotted()
	if f == nil || n < leastPlot+3 || s.width < leastPlotWidth {
		return nil
	}
	p := Plot{
		Past: s.load(f), PastShare: pastShare, Mean: f.MeanTPS, Lo: f.Lo90TPS, Hi: f.Hi90TPS,
		From: f.At, Step: time.Duration(f.StepSeconds * float64(time.Second)), Zone: s.snapshot.At.Location(),
	}
	p.capacity, p.capacityKnown = s.capacity(f)
	title := s.theme.text(f.Region.Place() + ", " + shortModel(f.Model) + ", uncached prompt tok/s")
	lines := []string{"", t.heading.over(t.cut(title, s.width))}
	lines = append(lines, p.Draw(t, s.width, n-3)...)
	return append(lines, t.muted.over(t.cut(s.plotLegend(t, f), s.width)))
}

// plotLegend returns the legend of the plot.
func (s *screen) plotLegend(t *Theme, f *telemetry.LoadForecast) string {
	text := t.PlotKey("actual", "forecast", "90% interval")
	if tps, known := s.capacity(f); known {
		text += "  " + t.glyphs.dash + " ready capacity: " + rate(&tps)
	}
	switch {
	case s.asked.loadErr != "":
		text += "  (load: " + t.text(s.asked.loadErr) + ")"
	case s.load(f) == nil && s.looksOnly:
		text += "  (recordings do not contain the load)"
	}
	return text
}
