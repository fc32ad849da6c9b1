package tui

import (
	"fmt"
	"math"
	"time"

	"skyserve/internal/service"
	"skyserve/internal/telemetry"
)

// forecastSheet is one row a model and region: what is asked, what is expected, and
// what the replicas there carry.
func (s *screen) forecastSheet() sheet {
	figures := func(title string, rank int, letter, word string) sheetColumn {
		return sheetColumn{column{title: title, least: 6, right: true, rank: rank}, letter, word, true, false}
	}
	sh := sheet{noun: "forecast", columns: []sheetColumn{
		{column{title: "REGION", least: 10, most: 28}, "R", "region", false, false},
		{column{title: "MODEL", least: 8, most: 28, rank: 6}, "M", "model", false, true},
		figures("NOW", 1, "W", "load now"),
		figures("NEXT", 3, "X", "mean of the next step"),
		figures("90% OF MINUTES", 5, "I", "interval"),
		figures("PEAK P95", 2, "P", "peak, 95th percentile"),
		figures("CAPACITY", 2, "C", "capacity"),
		figures("USED AT PEAK", 4, "U", "share of capacity at the peak"),
		{column{title: "FORECASTER", least: 6, most: 20, rank: 8}, "F", "forecaster", false, false},
		{column{title: "LEFT", least: 4, most: 80, rank: 7}, "L", "how it left", false, false},
	}, empty: []string{
		"no forecast yet", "the controller makes the first when it has seen an hour of load; 'skyserve forecast' makes one from a file",
	}}
	for i := range s.snapshot.Forecast {
		f := &s.snapshot.Forecast[i]
		if s.focus == "" || f.Region == s.focus {
			sh.rows = append(sh.rows, sheetRow{id: forecastID(f.Model, f.Region), cells: s.forecastCells(f), more: s.forecastMore(f)})
		}
	}
	return sh
}

// forecastID names a row of forecasts.
func forecastID(model string, region service.Region) string { return string(region) + " " + model }

// forecastCells are a forecast's figures, in uncached prompt tokens a second.
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

// forecastMore says a forecast in words.
func (s *screen) forecastMore(f *telemetry.LoadForecast) []string {
	ahead := time.Duration(f.StepSeconds * float64(len(f.MeanTPS)) * float64(time.Second))
	line := fmt.Sprintf("%s in %s: uncached prompt tokens a second, %s ahead from %s by %s", f.Model, f.Region, age(ahead), f.At.In(s.snapshot.At.Location()).Format("15:04"), orUnknown(f.Forecaster))
	return []string{s.theme.text(line)}
}

// capacity is what the replicas that serve a forecast's load carry, in its unit.
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

// load is what was asked of a forecast's model in its region lately.
func (s *screen) load(f *telemetry.LoadForecast) *LoadSeries {
	for i := range s.asked.load {
		if l := &s.asked.load[i]; l.Model == f.Model && l.Region == f.Region {
			return l
		}
	}
	return nil
}

// loadNow is the last that was counted.
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

// plotted is the forecast that the plot shows: the selected one, or the first.
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

// belowForecast plots one forecast in n lines: what was asked, what is expected with
// its interval, and what the replicas carry.
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

// plotLegend explains the marks of the plot.
func (s *screen) plotLegend(t *Theme, f *telemetry.LoadForecast) string {
	text := t.PlotKey("asked", "expected", "90 % of minutes")
	if tps, known := s.capacity(f); known {
		text += "  " + t.glyphs.dash + " what the ready replicas carry: " + rate(&tps)
	}
	switch {
	case s.asked.loadErr != "":
		text += "  (load: " + t.text(s.asked.loadErr) + ")"
	case s.load(f) == nil && s.looksOnly:
		text += "  (a record holds no load)"
	}
	return text
}
