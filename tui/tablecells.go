package tui

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"skyserve/internal/service"
	"skyserve/internal/telemetry"
)

// The table's columns, in order.
const (
	colReplica = iota
	colState
	colModel
	colGPU
	colPending
	colRunning
	colOutstanding
	colKV
	colHit
	colErrors
	colTokens
	colCost
	colGPUBusy
	colGPUMemory
	colTemperature
	colVersion
	colUptime
	colAge
	colReason
)

// sortColumns maps each sort key to its column.
var sortColumns = [sortKeys]int{colReplica, colState, colModel, colGPU, colPending, colRunning, colOutstanding, colKV, colHit, colTokens, colCost, colAge}

// Widths of the table's columns.
const (
	maxReplicaWidth = 28
	maxModelWidth   = 32
	maxGPUWidth     = 10
	maxVersionWidth = 16
	minReasonWidth  = 14
	maxReasonWidth  = 120
	barWidth        = 10
	minBar          = 4
	percentWidth    = 4
)

// columns sizes the columns for all rows, visible or not, so that widths do not change
// when the table scrolls.
func (t *table) columns(th *Theme) []column {
	id, state, model, gpu, reason, version := 0, 0, 0, 0, 0, 0
	var gpus telemetry.GPUSummary
	var models []string
	up := false
	for _, r := range t.rows {
		id = max(id, width(clean(r.replica.ID)))
		state = max(state, 3+width(clean(string(r.replica.State))))
		if name := clean(shortModel(r.replica.Model)); !slices.Contains(models, name) {
			models, model = append(models, name), max(model, width(name))
		}
		gpu = max(gpu, width(clean(r.replica.GPU)))
		reason = max(reason, width(clean(reasonOf(r.replica))))
		version = max(version, width(clean(r.replica.Version)))
		up = up || r.replica.ReadySince != nil
		own := telemetry.SummarizeGPUs(r.replica.GPUs)
		gpus = telemetry.GPUSummary{
			Utilisation: cmp.Or(gpus.Utilisation, own.Utilisation), Memory: cmp.Or(gpus.Memory, own.Memory), Temperature: cmp.Or(gpus.Temperature, own.Temperature),
		}
	}
	pending, running, outstanding, uptime := "PEND", "RUN", "OUTST", "UP"
	if t.width <= 0 || t.width >= fullWidth {
		pending, running, outstanding, uptime = "PENDING", "RUNNING", "OUTSTANDING", "UPTIME"
	}
	columns := []column{
		colReplica:     {title: "REPLICA", minWidth: min(id, maxReplicaWidth, max(t.width/2, 0)), maxWidth: min(id, maxReplicaWidth)},
		colState:       {title: "STATE", minWidth: min(state, 16), dropRank: 1},
		colModel:       {title: "MODEL", minWidth: min(max(distinctWidth(models), 8), maxModelWidth), maxWidth: min(model, maxModelWidth), dropRank: 7},
		colGPU:         {title: "GPU", minWidth: min(gpu, 5), maxWidth: min(gpu, maxGPUWidth), dropRank: 8},
		colPending:     {title: pending, minWidth: 5, right: true, dropRank: 4},
		colRunning:     {title: running, minWidth: 4, right: true, dropRank: 3},
		colOutstanding: {title: outstanding, minWidth: 5, right: true, dropRank: 2},
		colKV:          {title: "KV", minWidth: percentWidth + 1 + minBar, maxWidth: barWidth + 1 + percentWidth, dropRank: 2},
		colHit:         {title: "HIT", minWidth: percentWidth, right: true, dropRank: 6},
		colErrors:      {title: "ERR%", minWidth: percentWidth, right: true, dropRank: 2},
		colTokens:      {title: "TOK/S", minWidth: 5, right: true, dropRank: 5},
		colCost:        {title: "$/H", minWidth: 5, right: true, dropRank: 8},
		colGPUBusy:     {title: "GPU%", minWidth: percentWidth, right: true, dropRank: 6},
		colGPUMemory:   {title: "VRAM", minWidth: percentWidth, right: true, dropRank: 7},
		colTemperature: {title: "TEMP", minWidth: percentWidth, right: true, dropRank: 8},
		colVersion:     {title: "VERSION", minWidth: min(version, maxVersionWidth), maxWidth: min(version, maxVersionWidth), dropRank: 10},
		colUptime:      {title: uptime, minWidth: 4, right: true, dropRank: 9},
		colAge:         {title: "SEEN", minWidth: 4, right: true, dropRank: 6},
		colReason:      {title: "REASON", minWidth: minReasonWidth, maxWidth: min(reason, maxReasonWidth), dropRank: 8},
	}
	columns[sortColumns[t.order.key]].mark = th.orderMark(t.order.descending())
	columns[colErrors].hidden = !t.fails()
	columns[colGPUBusy].hidden, columns[colGPUMemory].hidden, columns[colTemperature].hidden = gpus.Utilisation == nil, gpus.Memory == nil, gpus.Temperature == nil
	columns[colVersion].hidden, columns[colUptime].hidden = version == 0, !up
	columns[colCost].hidden = !t.priced()
	columns[colReason].hidden = reason == 0 && t.width < mediumWidth
	columns[colModel].hidden = t.commonModel() != ""
	return columns
}

// fails reports whether any replica failed requests.
func (t *table) fails() bool {
	return slices.ContainsFunc(t.rows, func(r row) bool { s := t.errorShare(r); return s != nil && *s > 0 })
}

// errorShare returns the share of a replica's requests that failed in the last seconds; without an earlier
// snapshot, since it was attached. It is nil without requests.
func (t *table) errorShare(of row) *float64 {
	sent, failed := of.replica.Sent, of.replica.Failed
	if was := replicaIn(t.base, of); was != nil && was.Attachment == of.replica.Attachment {
		sent, failed = sent-was.Sent, failed-was.Failed
	}
	if sent <= 0 && failed <= 0 {
		return nil
	}
	share := min(float64(failed)/float64(max(sent, 1)), 1)
	return &share
}

// priced reports whether any price is known.
func (t *table) priced() bool {
	return len(t.prices) > 0 || slices.ContainsFunc(t.rows, func(r row) bool { return r.replica.USDPerHour != nil })
}

// commonModel returns the model that all replicas serve. On a narrow screen it is shown in
// each region's heading in place of a column.
func (t *table) commonModel() string {
	if t.width <= 0 || t.width >= fullWidth || len(t.rows) == 0 || t.lines[0].row >= 0 {
		return ""
	}
	model := t.rows[0].replica.Model
	for _, r := range t.rows {
		if r.replica.Model != model {
			return ""
		}
	}
	return model
}

// replicaLine draws one replica. If its reason does not fit into the reason column, or there is none, a replica
// without metrics shows its reason in their place.
func (t *table) replicaLine(th *Theme, g *grid, of row) string {
	r := of.replica
	if width(clean(reasonOf(r))) <= g.widths[colReason] || !hasNoMetrics(r) {
		return g.line(th, func(i, w int) (string, paint) { return t.cell(th, of, i, w) })
	}
	head := grid{columns: g.columns[:colModel], widths: g.widths[:colModel], gap: g.gap}
	s := head.line(th, func(i, w int) (string, paint) { return t.cell(th, of, i, w) })
	used := head.total() + g.gap
	if t.width-margin-used < minReasonWidth {
		return s
	}
	return pad(s, used, false) + th.muted.apply(th.cut(th.text(reasonOf(r)), t.width-margin-used))
}

// hasNoMetrics reports whether a replica has no metrics to show.
func hasNoMetrics(r *telemetry.ReplicaSnapshot) bool {
	return r.Pending == nil && r.Running == nil && r.KV == nil && r.PrefixHitRate == nil &&
		r.OutputTokensPerSecond == nil && r.Outstanding == 0
}

// reasonOf returns why a replica is in its state, including its start and whether it is donated.
func reasonOf(r *telemetry.ReplicaSnapshot) string {
	reason := telemetry.StartReason(r.Start, r.State, r.Reason)
	if !r.Donated || r.State == service.StateDonated {
		return reason
	}
	if reason == "" {
		return "donated"
	}
	return "donated: " + reason
}

// cell returns one cell of one replica.
func (t *table) cell(th *Theme, of row, i, w int) (string, paint) {
	r := of.replica
	switch i {
	case colReplica:
		return th.text(r.ID), paint{}
	case colState:
		sign, role := th.glyphs.replicaMark(r.State)
		return sign + " " + th.text(string(r.State)) + t.stateTrend(th, of), th.paint(role)
	case colModel:
		return orUnknown(th.text(shortModel(r.Model))), paint{}
	case colGPU:
		return orUnknown(th.text(r.GPU)), th.muted
	case colKV:
		return kvCell(th, r.KV, w)
	case colAge:
		return reportAge(th, r.AgeMillis, t.since)
	case colCost:
		return t.prices.cell(of)
	case colReason:
		return th.text(reasonOf(r)), th.muted
	case colGPUBusy, colGPUMemory, colTemperature:
		return gpuCell(th, telemetry.SummarizeGPUs(r.GPUs), i)
	case colVersion:
		return orUnknown(th.text(r.Version)), th.muted
	case colUptime:
		return uptime(r.ReadySince, t.at.Add(t.since)), th.muted
	}
	return t.countCell(th, of, i)
}

// hotGPU is the temperature in degrees Celsius from which a GPU is shown as hot: data-centre GPUs slow down at 85 to
// 95 (nvidia-smi -q -d TEMPERATURE shows the limits of a GPU).
const hotGPU = 85

// gpuCell returns a figure of a replica's GPUs.
func gpuCell(th *Theme, g telemetry.GPUSummary, column int) (string, paint) {
	switch {
	case column == colGPUBusy:
		return percent(g.Utilisation), mutedIf(th, g.Utilisation == nil)
	case column == colGPUMemory:
		return percent(g.Memory), mutedIf(th, g.Memory == nil)
	case g.Temperature != nil && *g.Temperature >= hotGPU:
		return degrees(g.Temperature), th.warn
	}
	return degrees(g.Temperature), mutedIf(th, g.Temperature == nil)
}

// mutedIf returns the paint of a cell that may be unknown.
func mutedIf(th *Theme, isUnknown bool) paint {
	if isUnknown {
		return th.muted
	}
	return paint{}
}

// degrees formats a temperature in degrees Celsius.
func degrees(celsius *float64) string {
	if celsius == nil {
		return unknown
	}
	return fmt.Sprintf("%.0fC", *celsius)
}

// uptime returns how long a replica has been ready at a time.
func uptime(since *time.Time, at time.Time) string {
	if since == nil || at.IsZero() {
		return unknown
	}
	return age(max(at.Sub(*since), 0))
}

// countCell returns a right-aligned cell.
func (t *table) countCell(th *Theme, of row, i int) (string, paint) {
	r, was := of.replica, t.previousOf(of)
	s := unknown
	switch i {
	case colPending:
		s = maybeCount(r.Pending)
		if r.Pending != nil && *r.Pending > 0 {
			return s + pendingTrend(th, r, was), th.warn
		}
		s += pendingTrend(th, r, was)
	case colRunning:
		s = maybeCount(r.Running)
	case colOutstanding:
		if was != nil && was.Outstanding != r.Outstanding {
			return count(int64(r.Outstanding)) + outstandingTrend(th, r, was), th.accent
		}
		return count(int64(r.Outstanding)) + th.trend(0), paint{}
	case colHit:
		s = percent(r.PrefixHitRate)
	case colErrors:
		share := t.errorShare(of)
		s = percent(share)
		if share != nil && *share >= maxMissShare {
			return s, th.bad
		}
	case colTokens:
		s = rate(r.OutputTokensPerSecond)
	}
	if s == unknown || s == "0" {
		return s, th.muted
	}
	return s, paint{}
}

// KV utilisation from which a replica is shown as nearly full and as full.
const (
	kvWarn = 0.80
	kvBad  = 0.95
)

// kvCell returns a bar and a percentage, or only the percentage if the column is narrow.
func kvCell(th *Theme, kv *float64, w int) (string, paint) {
	p := th.accent
	switch {
	case kv == nil:
		p = th.muted
	case *kv >= kvBad:
		p = th.bad
	case *kv >= kvWarn:
		p = th.warn
	}
	share := pad(percent(kv), percentWidth, true)
	n := w - percentWidth - 1
	if n < 3 {
		return share, p
	}
	if kv == nil {
		return pad("", n, false) + " " + share, p
	}
	return bar(*kv, n, th.glyphs) + " " + share, p
}

// reportAge returns the age of a replica's last report, highlighted when it is stale.
func reportAge(th *Theme, ms *int64, since time.Duration) (string, paint) {
	if ms != nil && *ms > staleAfter.Milliseconds() {
		return maybeAge(ms, since), th.warn
	}
	return maybeAge(ms, since), th.muted
}

func orUnknown(s string) string {
	if s == "" {
		return unknown
	}
	return s
}
