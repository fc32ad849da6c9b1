package tui

import (
	"fmt"
	"slices"

	"skyserve/internal/service"
	"skyserve/internal/telemetry"
)

// modelCost is the cost and the saturation of a model, in one region or several.
type modelCost struct {
	ready, all       int     // replicas
	priced, unpriced int     // replicas that cost: all but donated and terminated ones
	usdPerHour       float64 // of the priced ones
	traffic          *telemetry.Traffic
	// trafficUnknown: a region with replicas that cost does not report its traffic, which traffic lacks.
	trafficUnknown bool
	// capacity is that of the ready replicas, and load the traffic of the last minute, in uncached prompt tokens
	// per second, where both are known.
	capacity, load   float64
	capacityKnown    bool
	pending, running int
	loadKnown        bool // an engine reports pending and running
	kv               float64
	kvKnown          int // engines that report their KV utilisation
	gpus             []telemetry.GPUFigures
}

// add adds the replicas and the traffic of a model in a region.
func (c *modelCost) add(s *screen, r *telemetry.RegionSnapshot, m telemetry.ModelSnapshot) {
	c.traffic = addTraffic(c.traffic, m.Traffic)
	priced := c.priced
	for i := range r.Replicas {
		rep := &r.Replicas[i]
		if rep.Model != m.Model {
			continue
		}
		if rep.State == service.StateDonated {
			continue // it earns
		}
		c.all++
		if rep.Terminated {
			continue // it is not billed
		}
		if usd, known := s.prices.priceOf(row{region: r, replica: rep}); known {
			c.usdPerHour += usd
			c.priced++
		} else {
			c.unpriced++
		}
		if rep.State != service.StateReady {
			continue
		}
		c.ready++
		c.gpus = append(c.gpus, rep.GPUs...)
		if rep.Pending != nil && rep.Running != nil {
			c.pending, c.running, c.loadKnown = c.pending+*rep.Pending, c.running+*rep.Running, true
		}
		if rep.KV != nil {
			c.kv += *rep.KV
			c.kvKnown++
		}
	}
	c.trafficUnknown = c.trafficUnknown || m.Traffic == nil && c.priced > priced
	if tps, known := s.capacityOf(m.Model, r.Name); known {
		if load := uncachedLoad(m.Traffic); load != nil {
			c.capacity, c.load, c.capacityKnown = c.capacity+tps, c.load+*load, true
		}
	}
}

// uncachedLoad returns the uncached prompt tokens per second of traffic; nil if unknown.
func uncachedLoad(t *telemetry.Traffic) *float64 {
	if t == nil {
		return nil
	}
	return t.PerSecond(t.Usage.PromptTokens - t.Usage.CachedTokens)
}

// usdPerMillion returns the price of the replicas per million tokens, prompt and output together, at the traffic
// of the last minute; nil if a price or the traffic is unknown, or without tokens.
func (c *modelCost) usdPerMillion() *float64 {
	if c.priced == 0 || c.unpriced > 0 || c.traffic == nil || c.trafficUnknown {
		return nil
	}
	perSecond := c.traffic.PerSecond(c.traffic.Usage.Tokens())
	if perSecond == nil || *perSecond <= 0 {
		return nil
	}
	usd := c.usdPerHour / 3600 / *perSecond * 1e6
	return &usd
}

// used returns the share of the ready capacity that the load uses; nil if unknown.
func (c *modelCost) used() *float64 {
	if !c.capacityKnown || c.capacity <= 0 {
		return nil
	}
	share := c.load / c.capacity
	return &share
}

// saturationRole returns the role of a share of a capacity.
func saturationRole(share float64) role {
	switch {
	case share > 1:
		return roleBad
	case share > kvWarn:
		return roleWarn
	}
	return roleText
}

// cells returns the cells of costSheet after region and model.
func (c *modelCost) cells(marks glyphs) []cellValue {
	usd, used, headroom, kv := unknownCell(), unknownCell(), unknownCell(), unknownCell()
	if c.priced > 0 {
		usd = numberCell(c.usdPerHour, dollars(c.usdPerHour), roleText)
		if c.unpriced > 0 {
			usd.text += "+" // some prices are unknown
		}
	}
	if share := c.used(); share != nil {
		used = numberCell(*share, percent(share), saturationRole(*share))
		left := max(c.capacity-c.load, 0)
		headroom = numberCell(left, rate(&left), roleText)
	}
	if c.kvKnown > 0 {
		mean := c.kv / float64(c.kvKnown)
		kv = numberCell(mean, percent(&mean), saturationRole(mean))
		kv.draw = func(w int) string { return kvBar(mean, w, marks) }
	}
	g := telemetry.SummarizeGPUs(c.gpus)
	temperature := optionalCell(g.Temperature, degrees)
	if g.Temperature != nil && *g.Temperature >= hotGPU {
		temperature.role = roleWarn
	}
	pending, running := unknownCell(), unknownCell()
	if c.loadKnown {
		pending, running = numberCell(float64(c.pending), count(int64(c.pending)), roleText), numberCell(float64(c.running), count(int64(c.running)), roleText)
	}
	return []cellValue{
		numberCell(float64(c.ready), fmt.Sprintf("%d/%d", c.ready, c.all), roleText),
		usd, optionalCell(c.usdPerMillion(), func(v *float64) string { return dollars(*v) }),
		optionalCell(uncachedLoad(c.traffic), rate), used, headroom, kv, pending, running,
		optionalCell(g.Utilisation, percent), optionalCell(g.Memory, percent), temperature,
	}
}

// costSheet has one row per model and region: cost and saturation.
func (s *screen) costSheet() sheet {
	numberColumn := func(title string, rank int, letter, word string) sheetColumn {
		return sheetColumn{column{title: title, minWidth: 5, right: true, dropRank: rank}, letter, word, true, false}
	}
	var gpus []telemetry.GPUFigures
	for _, r := range s.shownRegions() {
		for i := range r.Replicas {
			gpus = append(gpus, r.Replicas[i].GPUs...)
		}
	}
	known := telemetry.SummarizeGPUs(gpus)
	gpuColumn := func(title string, rank int, letter, word string, shown bool) sheetColumn {
		c := numberColumn(title, rank, letter, word)
		c.hidden = !shown
		return c
	}
	sh := sheet{noun: "model", columns: []sheetColumn{
		{column{title: "REGION", minWidth: 10, maxWidth: 28}, "R", "region", false, false},
		{column{title: "MODEL", minWidth: 8, maxWidth: 32, dropRank: 5}, "M", "model", false, true},
		numberColumn("REPL", 4, "Y", "ready replicas"),
		numberColumn("$/H", 1, "C", "price per hour of all replicas except donated and terminated ones"),
		numberColumn("$/1M TOK", 1, "T", "price of the replicas per million tokens"),
		numberColumn("LOAD", 6, "L", "load, uncached prompt tokens per second"),
		numberColumn("USED", 0, "U", "share of the ready capacity used"),
		numberColumn("HEADROOM", 2, "H", "unused capacity, uncached prompt tokens per second"),
		{column{title: "KV", minWidth: 8, maxWidth: barWidth + 1 + percentWidth, dropRank: 3}, "K", "mean KV utilisation", true, false},
		numberColumn("PENDING", 7, "P", "requests pending in the engines"),
		numberColumn("RUNNING", 8, "N", "requests running in the engines"),
		gpuColumn("GPU%", 3, "A", "mean GPU utilisation", known.Utilisation != nil),
		gpuColumn("VRAM", 6, "E", "used GPU memory", known.Memory != nil),
		gpuColumn("TEMP", 7, "D", "highest GPU temperature", known.Temperature != nil),
	}, empty: []string{"No models are served yet"}}
	for _, r := range s.shownRegions() {
		for _, m := range modelsOf(r) {
			c := modelCost{}
			c.add(s, r, m)
			cells := []cellValue{textCell(s.regionName(r.Name), roleAccent), textCell(s.theme.text(shortModel(m.Model)), roleText)}
			sh.rows = append(sh.rows, sheetRow{id: string(r.Name) + " " + m.Model, cells: append(cells, c.cells(s.theme.glyphs)...)})
		}
	}
	return sh
}

// modelsOf returns the models of a region: those that its balancers report, and those of its other replicas.
func modelsOf(r *telemetry.RegionSnapshot) []telemetry.ModelSnapshot {
	names := map[string]telemetry.ModelSnapshot{}
	for i := range r.Replicas {
		if name := r.Replicas[i].Model; name != "" {
			names[name] = telemetry.ModelSnapshot{Model: name}
		}
	}
	for _, m := range r.Models {
		names[m.Model] = m
	}
	models := make([]telemetry.ModelSnapshot, 0, len(names))
	for _, name := range naturalKeys(names) {
		models = append(models, names[name])
	}
	return models
}

// aboveCost returns the cost of all shown replicas and what the tokens of the last minute cost.
func (s *screen) aboveCost() []string {
	sum := modelCost{}
	for _, r := range s.shownRegions() {
		for _, m := range modelsOf(r) {
			sum.add(s, r, m)
		}
	}
	t := &s.theme
	total := "replicas: price unknown"
	if !slices.ContainsFunc(s.shownRegions(), func(r *telemetry.RegionSnapshot) bool { return r.Name.Cloud() != service.CloudLocal }) {
		total = "replicas: not billed (local regions)"
	}
	if sum.priced > 0 {
		total = fmt.Sprintf("replicas $%.2f/h", sum.usdPerHour)
		if sum.unpriced > 0 {
			total += fmt.Sprintf(" and %d without a known price", sum.unpriced)
		}
	}
	segments := []segment{{total, t.title}}
	if usd := sum.usdPerMillion(); usd != nil {
		segments = append(segments, segment{"$" + dollars(*usd) + " per million tokens, last minute", paint{}})
	}
	if share := sum.used(); share != nil {
		segments = append(segments, segment{percent(share) + " of the ready capacity used", t.paint(saturationRole(*share))})
	}
	if earns := s.snapshot.RevenuePerHour(); earns > 0 {
		segments = append(segments, segment{fmt.Sprintf("revenue of donations $%.2f/h", earns), t.good})
	}
	line, _ := t.segments(s.width, "  ", segments...)
	unit, _ := t.segments(s.width, "  ", segment{"load and headroom in uncached prompt tok/s", t.muted})
	return []string{line, unit, ""}
}
