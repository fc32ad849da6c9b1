package tui

import (
	"fmt"
	"math"
	"slices"
	"time"

	"skyserve/internal/service"
	"skyserve/internal/telemetry"
)

// forecastSheet has one row per model and region: actual load, forecast load and ready
// capacity.
func (s *screen) forecastSheet() sheet {
	numberColumn := func(title string, rank int, letter, word string) sheetColumn {
		return sheetColumn{column{title: title, minWidth: 6, right: true, dropRank: rank}, letter, word, true, false}
	}
	sh := sheet{noun: "forecast", columns: []sheetColumn{
		{column{title: "REGION", minWidth: 10, maxWidth: 28}, "R", "region", false, false},
		{column{title: "MODEL", minWidth: 8, maxWidth: 28, dropRank: 6}, "M", "model", false, true},
		numberColumn("NOW", 1, "W", "load now"),
		numberColumn(nextTitle(s.snapshot.Forecast), 3, "X", "forecast mean of the next step"),
		numberColumn("90% INTERVAL", 5, "I", "90% interval"),
		numberColumn("PEAK P95", 2, "P", "peak, 95th percentile"),
		numberColumn("CAPACITY", 2, "C", "capacity"),
		numberColumn("USED AT PEAK", 4, "U", "capacity used at peak"),
		{column{title: "FORECASTER", minWidth: 6, maxWidth: 20, dropRank: 8}, "F", "forecaster", false, false},
		{column{title: "DEVIATION", minWidth: 4, maxWidth: 80, dropRank: 7}, "L", "deviation", false, false},
	}, empty: []string{
		"No forecast yet", "the controller makes a forecast with each plan, once it has a history of requests; run 'skyserve forecast' to forecast from a file",
	}}
	for i := range s.snapshot.Forecast {
		f := &s.snapshot.Forecast[i]
		if s.focus == "" || f.Region == s.focus {
			sh.rows = append(sh.rows, sheetRow{id: forecastID(f.Model, f.Region), cells: s.forecastCells(f), details: s.forecastDetails(f)})
		}
	}
	return sh
}

// nextTitle returns the title of the forecast's next step, with its length, such as NEXT 5m.
func nextTitle(forecasts []telemetry.LoadForecast) string {
	if len(forecasts) == 0 || forecasts[0].StepSeconds <= 0 {
		return "NEXT"
	}
	return "NEXT " + age(time.Duration(forecasts[0].StepSeconds*float64(time.Second)))
}

// forecastID returns the row id of a forecast.
func forecastID(model string, region service.Region) string { return string(region) + " " + model }

// forecastCells returns the cells of a forecast, in uncached prompt tokens per second.
func (s *screen) forecastCells(f *telemetry.LoadForecast) []cellValue {
	now, next, interval, used := unknownCell(), unknownCell(), unknownCell(), unknownCell()
	if v, known := s.latestLoad(f); known {
		now = numberCell(v, rate(&v), roleText)
	}
	step := nextStep(f, s.snapshot.At)
	if step < len(f.MeanTPS) {
		next = numberCell(f.MeanTPS[step], rate(&f.MeanTPS[step]), roleText)
	}
	if step < len(f.Lo90TPS) && step < len(f.Hi90TPS) {
		interval = numberCell(f.Hi90TPS[step], rate(&f.Lo90TPS[step])+"-"+rate(&f.Hi90TPS[step]), roleMuted)
	}
	capacity, known := s.capacity(f)
	carries := unknownCell()
	if known {
		carries = numberCell(capacity, rate(&capacity), roleText)
		if capacity > 0 {
			share := f.Peak.P95 / capacity
			used = numberCell(share, percent(&share), roleText)
			switch {
			case share > 1:
				used.role = roleBad
			case share > kvWarn:
				used.role = roleWarn
			}
		}
	}
	deviation := textCell(s.theme.text(f.Deviation), roleWarn)
	return []cellValue{
		textCell(s.regionName(f.Region), roleAccent), textCell(s.theme.text(shortModel(f.Model)), roleText), now, next, interval,
		numberCell(f.Peak.P95, rate(&f.Peak.P95), roleText), carries, used, textCell(s.theme.text(f.Forecaster), roleMuted), deviation,
	}
}

// nextStep returns the index of the first step of a forecast that has not ended at a time.
func nextStep(f *telemetry.LoadForecast, at time.Time) int {
	if f.StepSeconds <= 0 {
		return 0
	}
	return max(int(at.Sub(f.At).Seconds()/f.StepSeconds), 0)
}

// forecastDetails returns the details of a forecast.
func (s *screen) forecastDetails(f *telemetry.LoadForecast) []string {
	ahead := time.Duration(f.StepSeconds * float64(len(f.MeanTPS)) * float64(time.Second))
	line := fmt.Sprintf("%s in %s: the forecast covers the %s from %s; load and capacity are in uncached prompt tok/s", f.Model, f.Region, age(ahead), f.At.In(s.snapshot.At.Location()).Format("15:04"))
	return []string{s.theme.text(line)}
}

// capacity returns the capacity of the ready replicas for a forecast's load, in its unit.
func (s *screen) capacity(f *telemetry.LoadForecast) (tps float64, known bool) {
	return s.capacityOf(f.Model, f.Region)
}

// capacityOf returns the capacity of a model's ready replicas in a region, in uncached prompt tokens per second.
func (s *screen) capacityOf(model string, region service.Region) (tps float64, known bool) {
	for _, t := range s.snapshot.Targets {
		if t.Model != model || t.Region != region {
			continue
		}
		r := findRegion(s.snapshot, region)
		if r == nil || t.ReplicaTPS <= 0 {
			return 0, false
		}
		n := 0
		for i := range r.Replicas {
			if r.Replicas[i].Model == model && r.Replicas[i].State == service.StateReady {
				n++
			}
		}
		return float64(n) * t.ReplicaTPS, true
	}
	return 0, false
}

// loadOf returns the recent load of a forecast's model and region, in the history only until its snapshot; nil if
// unknown.
func (s *screen) loadOf(f *telemetry.LoadForecast) *LoadSeries {
	for i := range s.data.load {
		l := s.data.load[i]
		if l.Model != f.Model || l.Region != f.Region {
			continue
		}
		if s.pastFrame != nil && l.Step > 0 {
			steps := int(s.snapshot.At.Sub(l.Start) / l.Step)
			l.TPS = l.TPS[:min(max(steps, 0), len(l.TPS))]
		}
		return &l
	}
	return nil
}

// latestLoad returns the latest known load.
func (s *screen) latestLoad(f *telemetry.LoadForecast) (tps float64, known bool) {
	l := s.loadOf(f)
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
	if f == nil || n < minPlot+3 || s.width < minPlotWidth {
		return nil
	}
	p := Plot{
		Past: s.loadOf(f), PastWidthShare: pastWidthShare, Earlier: earlierMeans(f), Mean: f.MeanTPS, Lo: f.Lo90TPS, Hi: f.Hi90TPS,
		From: f.At, Step: time.Duration(f.StepSeconds * float64(time.Second)), Zone: s.snapshot.At.Location(),
	}
	columns := p.columns(s.width - axisWidth - 1)
	p.Marks = slices.DeleteFunc(s.scalingMarks(f), func(m PlotMark) bool { return m.At.Before(columns[0].at) })
	p.capacity, p.capacityKnown = s.capacity(f)
	title := s.theme.text(f.Region.ShortName() + ", " + shortModel(f.Model) + ", uncached prompt tok/s")
	legend := joinParts(s.plotLegend(t, f, &p, p.top(columns)), s.width)
	lines := []string{"", t.heading.apply(t.cut(title, s.width))}
	lines = append(lines, p.Draw(t, s.width, n-2-len(legend))...)
	for _, line := range legend {
		lines = append(lines, t.muted.apply(t.cut(line, s.width)))
	}
	return lines
}

// joinParts joins parts to lines of at most w cells.
func joinParts(parts []string, w int) []string {
	lines := []string{""}
	for _, part := range parts {
		last := &lines[len(lines)-1]
		switch {
		case *last == "":
			*last = part
		case width(*last)+2+width(part) <= w:
			*last += "  " + part
		default:
			lines = append(lines, part)
		}
	}
	return lines
}

// scalingSigns are the signs of events that change the number of replicas, and of what kept it from changing.
var scalingSigns = map[telemetry.EventKind]string{
	telemetry.EventLaunch: "+", telemetry.EventReplace: "+", telemetry.EventReclaim: "+", telemetry.EventScaleFromZero: "+", telemetry.EventResume: "+",
	telemetry.EventTermination: "-", telemetry.EventDrain: "-", telemetry.EventScaleToZero: "-",
	telemetry.EventDonate: "o", telemetry.EventApply: "a",
	telemetry.EventDeath: "x", telemetry.EventInterruption: "x", telemetry.EventFailure: "!",
}

// scalingLegend explains the signs that are drawn.
var scalingLegend = []string{"+ added or undrained", "- drained or removed", "o donated", "a applied", "x failed or interrupted", "! attempt failed"}

// scalingMarks returns the marks of the scaling of a forecast's model and region within the plotted past, oldest first.
func (s *screen) scalingMarks(f *telemetry.LoadForecast) (marks []PlotMark) {
	ahead := f.StepSeconds * float64(len(f.MeanTPS))
	begin := f.At.Add(-time.Duration(ahead * pastWidthShare / (1 - pastWidthShare) * float64(time.Second)))
	for _, e := range s.snapshot.Events {
		sign := scalingSigns[e.Kind]
		if sign != "" && !e.At.Before(begin) && (e.Region == "" || e.Region == f.Region) && (e.Model == "" || e.Model == f.Model) {
			marks = append(marks, PlotMark{e.At, sign})
		}
	}
	return marks
}

// earlierMeans returns the means of earlier forecasts; NaN is unknown.
func earlierMeans(f *telemetry.LoadForecast) []float64 {
	means := make([]float64, len(f.EarlierTPS))
	for i, v := range f.EarlierTPS {
		means[i] = math.NaN()
		if v != nil {
			means[i] = *v
		}
	}
	return means
}

// plotLegend returns the parts of the legend of a plot up to a value.
func (s *screen) plotLegend(t *Theme, f *telemetry.LoadForecast, p *Plot, top float64) []string {
	parts := []string{t.PlotLegend("actual", "forecast", "90% interval")}
	switch text := " ready capacity: " + rate(&p.capacity); {
	case p.capacityKnown && p.capacity > top:
		parts = append(parts, text[1:]+" (above the plot)")
	case p.capacityKnown:
		parts = append(parts, t.glyphs.dash+text)
	}
	switch {
	case s.data.loadErr != "":
		parts = append(parts, "(load: "+t.text(s.data.loadErr)+")")
	case s.loadOf(f) == nil && s.readOnly:
		parts = append(parts, "(snapshots do not contain the load)")
	}
	for _, l := range scalingLegend {
		if slices.ContainsFunc(p.Marks, func(m PlotMark) bool { return m.Sign == l[:1] }) {
			parts = append(parts, l)
		}
	}
	return parts
}
