package tui

import (
	"fmt"
	"slices"

	"skyserve/internal/printable"
	"skyserve/internal/telemetry"
)

// trafficColumns are the columns of trafficCells.
func (s *screen) trafficColumns() []sheetColumn {
	p50, p90, p99, e50, e90, e99, prompt, output := "TTFT50", "TTFT90", "TTFT99", "E2E50", "E2E90", "E2E99", "PROMPT/S", "OUTPUT/S"
	if s.width <= 0 || s.width >= fullWidth {
		p50, p90, p99, e50, e90, e99, prompt, output = "TTFT P50", "TTFT P90", "TTFT P99", "E2E P50", "E2E P90", "E2E P99", "PROMPT TOK/S", "OUTPUT TOK/S"
	}
	numberColumn := func(title string, minWidth, rank int, letter, word string) sheetColumn {
		return sheetColumn{column{title: title, minWidth: minWidth, right: true, dropRank: rank}, letter, word, true, false}
	}
	return []sheetColumn{
		numberColumn("REQ/S", 5, 1, "E", "requests per second"),
		numberColumn("ERR%", 4, 2, "B", "share of failed requests"),
		numberColumn(p50, 6, 5, "F", "TTFT, median"),
		numberColumn(p90, 6, 3, "P", "TTFT, 90th percentile"),
		numberColumn(p99, 6, 6, "I", "TTFT, 99th percentile"),
		numberColumn(e50, 5, 8, "D", "time to the end, median"),
		numberColumn(e90, 5, 11, "W", "time to the end, 90th percentile"),
		numberColumn(e99, 5, 9, "L", "time to the end, 99th percentile"),
		numberColumn(prompt, 6, 7, "Q", "prompt tokens per second"),
		numberColumn("HIT", 4, 10, "H", "prefix hit rate"),
		numberColumn(output, 6, 4, "T", "output tokens per second"),
		numberColumn("CHARGED $/H", 5, 4, "C", "what clients are charged per hour, by the models' prices; not the cost of machines"),
	}
}

// trafficCells returns the cells of the traffic of the last minute; nil is unknown.
func trafficCells(t *telemetry.Traffic) []cellValue {
	if t == nil {
		return slices.Repeat([]cellValue{unknownCell()}, 12)
	}
	failed := unknownCell()
	if share := t.Outcomes.FailedShare(); share != nil {
		failed = numberCell(*share, percent(share), roleText)
		if *share >= maxMissShare {
			failed.role = roleBad
		}
	}
	hit, cost := unknownCell(), unknownCell()
	if u := t.Usage; u.PromptTokens > 0 {
		share := float64(u.CachedTokens) / float64(u.PromptTokens)
		hit = numberCell(share, percent(&share), roleText)
	}
	if usd := t.Usage.CostUSD(); usd != nil && t.Usage.Requests > 0 && t.Seconds > 0 {
		hourly := *usd / t.Seconds * 3600
		cost = numberCell(hourly, dollars(hourly), roleText)
	}
	of := func(p *telemetry.Percentiles, q func(*telemetry.Percentiles) float64) cellValue {
		return ttftCell(p, q)
	}
	p50 := func(p *telemetry.Percentiles) float64 { return p.P50 }
	p90 := func(p *telemetry.Percentiles) float64 { return p.P90 }
	p99 := func(p *telemetry.Percentiles) float64 { return p.P99 }
	return []cellValue{
		optionalCell(t.PerSecond(t.Outcomes.Ended()), rate), failed,
		of(t.TTFT, p50), of(t.TTFT, p90), of(t.TTFT, p99), of(t.E2E, p50), of(t.E2E, p90), of(t.E2E, p99),
		optionalCell(t.PerSecond(t.Usage.PromptTokens), rate), hit, optionalCell(t.PerSecond(t.Usage.OutputTokens), rate), cost,
	}
}

// dollars formats an amount of US dollars without its sign: four digits after the point below a cent.
func dollars(usd float64) string {
	if usd != 0 && usd < 0.01 {
		return fmt.Sprintf("%.4f", usd)
	}
	return fmt.Sprintf("%.2f", usd)
}

// trafficDetails describes traffic in full.
func trafficDetails(name string, t *telemetry.Traffic) string {
	if t == nil {
		return name + ": traffic unknown, no reachable balancer reports it"
	}
	o, u := t.Outcomes, t.Usage
	return fmt.Sprintf("%s, last %.0f s: %s served, %d rejected (429), %d failed (5xx), %s; %s, of which %d cached; %s", name, t.Seconds,
		printable.Count(o.Served, "request"), o.Limited, o.Failed, printable.Count(o.Retries, "retry"),
		printable.Count(u.PromptTokens, "prompt token"), u.CachedTokens, printable.Count(u.OutputTokens, "output token"))
}

// addTraffic adds traffic to a sum; unknown traffic adds nothing.
func addTraffic(sum, t *telemetry.Traffic) *telemetry.Traffic {
	switch {
	case t == nil:
		return sum
	case sum == nil:
		return t
	}
	both := sum.Plus(*t)
	return &both
}

// modelTotals are a model's counts over the shown regions.
type modelTotals struct {
	ready, replicas, queued int
	traffic                 *telemetry.Traffic
}

// models returns the totals of every model, by its name.
func (s *screen) models() map[string]*modelTotals {
	all := map[string]*modelTotals{}
	of := func(name string) *modelTotals {
		if all[name] == nil {
			all[name] = &modelTotals{}
		}
		return all[name]
	}
	for _, r := range s.shownRegions() {
		for i := range r.Models {
			m := of(r.Models[i].Model)
			m.queued += r.Models[i].Queued + r.Models[i].Deferred
			m.traffic = addTraffic(m.traffic, r.Models[i].Traffic)
		}
		for i := range r.Replicas {
			if name := r.Replicas[i].Model; name != "" {
				m := of(name)
				m.replicas += 1 - donatedCount(r.Replicas[i:i+1])
				m.ready += readyCount(r.Replicas[i : i+1])
			}
		}
	}
	return all
}

// modelSheet has one row per model.
func (s *screen) modelSheet() sheet {
	columns := []sheetColumn{
		{column{title: "MODEL", minWidth: 16, maxWidth: 40}, "M", "model", false, false},
		{column{title: "REPL", minWidth: 4, right: true, dropRank: 2}, "R", "ready replicas", true, false},
		{column{title: "QUEUE", minWidth: 5, right: true, dropRank: 3}, "U", "queued requests, deferred ones included", true, false},
	}
	sh := sheet{noun: "model", columns: append(columns, s.trafficColumns()...), empty: []string{"No models are served yet"}}
	models := s.models()
	for _, name := range naturalKeys(models) {
		m := models[name]
		ready := numberCell(float64(m.ready), fmt.Sprintf("%d/%d", m.ready, m.replicas), roleText)
		if m.ready == 0 && m.replicas > 0 {
			ready.role = roleBad
		}
		cells := []cellValue{textCell(s.theme.text(shortModel(name)), roleAccent), ready, numberCell(float64(m.queued), count(int64(m.queued)), roleText)}
		sh.rows = append(sh.rows, sheetRow{id: name, cells: append(cells, trafficCells(m.traffic)...), details: []string{s.theme.text(trafficDetails(name, m.traffic))}})
	}
	return sh
}

// tenantSheet has one row per API key or user with requests in the last minute.
func (s *screen) tenantSheet() sheet {
	columns := []sheetColumn{
		{column{title: "TENANT", minWidth: 8, maxWidth: 24}, "N", "tenant", false, false},
		{column{title: "KEY OR USER", minWidth: 8, maxWidth: 24, dropRank: 1}, "K", "API key or user", false, false},
	}
	sh := sheet{noun: "key", columns: append(columns, s.trafficColumns()...), empty: []string{
		"No API key or identity token was used within the last minute", "requests without one are counted by model only: view 9; 'skyserve usage' shows earlier usage",
	}}
	known := slices.ContainsFunc(s.shownRegions(), func(r *telemetry.RegionSnapshot) bool { return r.Keys != nil })
	if !known && len(s.snapshot.Regions) > 0 {
		sh.empty = []string{"Traffic of keys unknown", "no reachable balancer reports it; its version may be older than this dashboard"}
	}
	for _, k := range s.keyTraffic() {
		tenant := textCell(s.theme.text(k.Tenant), roleAccent)
		if k.Tenant == "" {
			tenant = textCell(unknown, roleMuted)
		}
		cells := []cellValue{tenant, textCell(s.theme.text(k.Key), roleText)}
		sh.rows = append(sh.rows, sheetRow{id: keyID(k), cells: append(cells, trafficCells(&k.Traffic)...), details: []string{s.theme.text(trafficDetails("key or user "+k.Key, &k.Traffic))}})
	}
	return sh
}

// keyID returns the row id of a key.
func keyID(k telemetry.KeyTraffic) string { return k.Tenant + "\x00" + k.Key }

// keyTraffic returns the traffic of each key in the shown regions, sorted by tenant and key.
func (s *screen) keyTraffic() []telemetry.KeyTraffic {
	var all []telemetry.KeyTraffic
	for _, r := range s.shownRegions() {
		for _, k := range r.Keys {
			i, found := slices.BinarySearchFunc(all, k, telemetry.KeyTraffic.Compare)
			if !found {
				all = slices.Insert(all, i, k)
				continue
			}
			all[i].Traffic = all[i].Traffic.Plus(k.Traffic)
		}
	}
	return all
}
