package tui

import (
	"skyserve/internal/service"
	"skyserve/internal/telemetry"
)

// batchSheet is one row a model and region: the deferred requests (NIW) that wait
// there for spare memory, beside what they wait behind.
func (s *screen) batchSheet() sheet {
	figures := func(title string, rank int, letter, word string) sheetColumn {
		return sheetColumn{column{title: title, least: 5, right: true, rank: rank}, letter, word, true, false}
	}
	sh := sheet{noun: "queue", columns: []sheetColumn{
		{column{title: "REGION", least: 10, most: 28}, "R", "region", false, false},
		{column{title: "MODEL", least: 8, most: 32, rank: 5}, "M", "model", false, true},
		figures("DEFERRED", 0, "D", "deferred requests"),
		figures("INTERACTIVE", 2, "I", "interactive requests held"),
		figures("READY", 3, "Y", "ready replicas"),
		{column{title: "KV", least: 8, most: barWidth + 1 + percentWidth, rank: 4}, "K", "mean KV memory used", true, false},
		{column{title: "RELEASE", least: 12, most: 60, rank: 1}, "L", "what they wait for", false, false},
	}, empty: []string{"no model is served yet"}}
	known := false
	for _, r := range regionsOf(s.snapshot) {
		if s.focus != "" && r.Name != s.focus {
			continue
		}
		known = known || r.Models != nil
		for _, m := range r.Models {
			sh.rows = append(sh.rows, sheetRow{id: string(r.Name) + " " + m.Model, cells: s.batchCells(r, m)})
		}
	}
	if !known && len(s.snapshot.Regions) > 0 {
		sh.empty = []string{"what is deferred is not known", "no balancer that answers tells it: one may be older than this dashboard"}
	}
	return sh
}

// batchCells are the figures of what is deferred of a model in a region.
func (s *screen) batchCells(r *telemetry.RegionSnapshot, m telemetry.ModelSnapshot) []value {
	ready, kv := s.memory(r, m.Model)
	deferred := figure(float64(m.Deferred), count(int64(m.Deferred)), roleText)
	if m.Deferred == 0 {
		deferred.role = roleMuted
	}
	memory := noFigure()
	if kv != nil {
		share := *kv
		memory = figure(share, percent(kv), roleAccent)
		memory.draw = func(w int) string { return kvBar(share, w, s.theme.glyphs) }
	}
	return []value{
		word(s.regionName(r.Name), roleAccent), word(s.theme.text(shortModel(m.Model)), roleText), deferred,
		figure(float64(m.Queued), count(int64(m.Queued)), roleText), figure(float64(ready), count(int64(ready)), roleText),
		memory, word(release(m, ready, kv), roleMuted),
	}
}

// memory is how many replicas of a model are ready in a region, and the mean share
// of KV memory that they use; nil where none tells.
func (s *screen) memory(r *telemetry.RegionSnapshot, model string) (ready int, kv *float64) {
	sum, n := 0.0, 0
	for i := range r.Replicas {
		rep := &r.Replicas[i]
		if rep.Model != model || rep.State != service.StateReady {
			continue
		}
		ready++
		if rep.KV != nil {
			sum += *rep.KV
			n++
		}
	}
	if n == 0 {
		return ready, nil
	}
	mean := sum / float64(n)
	return ready, &mean
}

// kvBar is a bar with its share, or the share alone where room is short.
func kvBar(share float64, w int, g glyphs) string {
	text := pad(percent(&share), percentWidth, true)
	if n := w - percentWidth - 1; n >= 3 {
		return bar(share, n, g) + " " + text
	}
	return text
}

// release says what the deferred requests wait for. At which share of memory they go,
// and after how long in any case, is the balancer's to know (balancer.deferred_*).
func release(m telemetry.ModelSnapshot, ready int, kv *float64) string {
	switch {
	case m.Deferred == 0:
		return "none waits"
	case ready == 0:
		return "for a replica"
	case kv == nil:
		return "memory is not known"
	}
	return "for spare memory, or their age"
}
