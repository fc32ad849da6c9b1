package tui

import (
	"skyserve/internal/service"
	"skyserve/internal/telemetry"
)

// batchSheet has the open batches or, if there are none, the queues of single deferred requests.
func (s *screen) batchSheet() sheet {
	if len(s.snapshot.Batches) > 0 {
		return s.openBatchSheet()
	}
	return s.queueSheet()
}

// queueSheet has one row per model and region: the deferred requests (NIW) that wait for
// spare KV memory, and the interactive load that has priority.
func (s *screen) queueSheet() sheet {
	numberColumn := func(title string, rank int, letter, word string) sheetColumn {
		return sheetColumn{column{title: title, minWidth: 5, right: true, dropRank: rank}, letter, word, true, false}
	}
	sh := sheet{noun: "queue", columns: []sheetColumn{
		{column{title: "REGION", minWidth: 10, maxWidth: 28}, "R", "region", false, false},
		{column{title: "MODEL", minWidth: 8, maxWidth: 32, dropRank: 5}, "M", "model", false, true},
		numberColumn("DEFERRED", 0, "D", "deferred requests"),
		numberColumn("INTERACTIVE", 2, "I", "queued interactive requests"),
		numberColumn("READY REPL", 3, "Y", "ready replicas"),
		{column{title: "KV", minWidth: 8, maxWidth: barWidth + 1 + percentWidth, dropRank: 4}, "K", "mean KV utilisation", true, false},
		{column{title: "DEFERRED WAIT FOR", minWidth: 17, maxWidth: 60, dropRank: 1}, "L", "what deferred requests wait for", false, false},
	}, empty: []string{"No models are served yet"}}
	known := false
	for _, r := range regionsOf(s.snapshot) {
		if s.focus != "" && r.Name != s.focus {
			continue
		}
		known = known || r.Models != nil
		for _, m := range r.Models {
			sh.rows = append(sh.rows, sheetRow{id: string(r.Name) + " " + m.Model, cells: s.queueCells(r, m)})
		}
	}
	if !known && len(s.snapshot.Regions) > 0 {
		sh.empty = []string{"Batch queues unknown", "no reachable balancer reports them; its version may be older than this dashboard"}
	}
	return sh
}

// queueCells returns the cells of a model's batch queue in a region.
func (s *screen) queueCells(r *telemetry.RegionSnapshot, m telemetry.ModelSnapshot) []cellValue {
	ready, kv := s.modelMemory(r, m.Model)
	deferred := numberCell(float64(m.Deferred), count(int64(m.Deferred)), roleText)
	if m.Deferred == 0 {
		deferred.role = roleMuted
	}
	memory := unknownCell()
	if kv != nil {
		share := *kv
		memory = numberCell(share, percent(kv), roleAccent)
		memory.draw = func(w int) string { return kvBar(share, w, s.theme.glyphs) }
	}
	return []cellValue{
		textCell(s.regionName(r.Name), roleAccent), textCell(s.theme.text(shortModel(m.Model)), roleText), deferred,
		numberCell(float64(m.Queued), count(int64(m.Queued)), roleText), numberCell(float64(ready), count(int64(ready)), roleText),
		memory, textCell(waitingFor(m, ready, kv), roleMuted),
	}
}

// modelMemory returns how many replicas of a model are ready in a region, and their mean KV
// utilisation; nil if none reports it.
func (s *screen) modelMemory(r *telemetry.RegionSnapshot, model string) (ready int, kv *float64) {
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

// kvBar returns a bar and a percentage, or only the percentage if the column is narrow.
func kvBar(share float64, w int, g glyphs) string {
	text := pad(percent(&share), percentWidth, true)
	if n := w - percentWidth - 1; n >= 3 {
		return bar(share, n, g) + " " + text
	}
	return text
}

// waitingFor returns what the deferred requests wait for. The balancer decides at which KV
// utilisation and after which time they are sent (balancer.deferred_*).
func waitingFor(m telemetry.ModelSnapshot, ready int, kv *float64) string {
	switch {
	case m.Deferred == 0:
		return "-"
	case ready == 0:
		return "a ready replica"
	case kv == nil:
		return "unknown: no KV report"
	}
	return "free KV memory, or the end of their maximum wait"
}
