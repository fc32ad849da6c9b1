package tui

import (
	"fmt"
	"time"

	"skyserve/internal/printable"
	"skyserve/internal/telemetry"
)

// openBatchSheet has one row per batch that has not ended, the earliest deadline first.
func (s *screen) openBatchSheet() sheet {
	sh := sheet{noun: "batch", columns: []sheetColumn{
		{column{title: "BATCH", minWidth: 12, maxWidth: 29}, "B", "batch", false, false},
		{column{title: "TENANT", minWidth: 6, maxWidth: 20, dropRank: 2}, "T", "tenant", false, true},
		{column{title: "MODEL", minWidth: 8, maxWidth: 28, dropRank: 6}, "M", "model", false, true},
		{column{title: "STATUS", minWidth: 11, maxWidth: 11, dropRank: 5}, "S", "status", false, false},
		{column{title: "DONE", minWidth: 5, maxWidth: barWidth + 1 + percentWidth}, "D", "share done", true, false},
		{column{title: "REQUESTS", minWidth: 8, right: true, dropRank: 4}, "Q", "requests", true, false},
		{column{title: "REQ/S", minWidth: 5, right: true, dropRank: 1}, "R", "requests per second", true, false},
		{column{title: "DUE IN", minWidth: 8, right: true}, "L", "time to the deadline", false, false},
		{column{title: "ENDS IN", minWidth: 8, right: true}, "E", "expected time to the end", false, false},
		{column{title: "COST", minWidth: 6, right: true, dropRank: 7}, "C", "expected cost", true, false},
	}}
	for i := range s.snapshot.Batches {
		sh.rows = append(sh.rows, s.openBatchRow(&s.snapshot.Batches[i]))
	}
	return sh
}

// openBatchRow returns the row of a batch.
func (s *screen) openBatchRow(b *telemetry.BatchState) sheetRow {
	total, done, finish := unknownCell(), unknownCell(), unknownCell()
	if b.Total > 0 { // the input is validated
		total = numberCell(float64(b.Total), count(int64(b.Total)), roleText)
		share := float64(b.Total-b.Remaining()) / float64(b.Total)
		done = numberCell(share, percent(&share), roleAccent)
		done.draw = func(w int) string { return kvBar(share, w, s.theme.glyphs) }
	}
	end := "unknown"
	if b.FinishAt != nil {
		left := b.FinishAt.Sub(s.snapshot.At)
		finish = numberCell(left.Seconds(), age(left), roleText)
		end = s.clock(*b.FinishAt)
		if b.Late() {
			finish.role, finish.text, end = roleBad, finish.text+", late", end+", after the deadline"
		}
	}
	left := b.Deadline.Sub(s.snapshot.At)
	state := textCell(s.theme.text(b.Status), roleText)
	if b.Failed > 0 {
		state.role = roleWarn
	}
	details := []string{s.theme.text(b.ID) + ": " + fmt.Sprintf("%d of %s completed, %d failed", b.Completed, printable.Count(b.Total, "request"), b.Failed)}
	if waits := b.Waits(s.clock); waits != "" {
		state = textCell("waiting", roleWarn)
		details = append(details, "waits for the "+s.theme.text(waits))
	}
	details = append(details, "created "+s.clock(b.CreatedAt)+", deadline "+s.clock(b.Deadline)+", expected end "+end)
	return sheetRow{
		id: b.ID, cells: []cellValue{
			textCell(s.theme.text(b.ID), roleAccent), s.namedCell(b.Tenant), s.namedCell(shortModel(b.Model)), state, done,
			total, optionalCell(b.RequestsPerSecond, rate),
			numberCell(left.Seconds(), age(left), roleText), finish, optionalCell(b.CostUSD, func(usd *float64) string { return "$" + dollars(*usd) }),
		},
		details: details,
	}
}

// namedCell returns the cell of a name that may be empty.
func (s *screen) namedCell(name string) cellValue {
	if name == "" {
		return textCell("-", roleMuted)
	}
	return textCell(s.theme.text(name), roleText)
}

// aboveBatches returns the totals of the open batches, and the number of deferred requests in each region; without a
// batch, what the list shows instead.
func (s *screen) aboveBatches() []string {
	if len(s.snapshot.Batches) == 0 {
		return []string{s.theme.title.apply(s.fit("no open batches")), s.theme.muted.apply(s.fit("queued requests:"))}
	}
	left, late := 0, 0
	for i := range s.snapshot.Batches {
		left += s.snapshot.Batches[i].Remaining()
		if s.snapshot.Batches[i].Late() {
			late++
		}
	}
	parts := []segment{
		{printable.Count(len(s.snapshot.Batches), "open batch"), s.theme.title},
		{printable.Count(left, "request") + " left", paint{}},
	}
	if late > 0 {
		text := "1 batch expected to miss its deadline"
		if late > 1 {
			text = fmt.Sprintf("%d batches expected to miss their deadlines", late)
		}
		parts = append(parts, segment{text, s.theme.bad})
	}
	for _, r := range regionsOf(s.snapshot) {
		deferred := 0
		for _, m := range r.Models {
			deferred += m.Deferred
		}
		if deferred > 0 {
			parts = append(parts, segment{fmt.Sprintf("%s queued in %s", printable.Count(deferred, "deferred request"), s.regionName(r.Name)), s.theme.muted})
		}
	}
	line, _ := s.theme.segments(s.width, "  ", parts...)
	return []string{line, ""}
}

// clock formats a time of the service in the zone of the screen.
func (s *screen) clock(at time.Time) string {
	return at.In(s.snapshot.At.Location()).Format("2006-01-02 15:04")
}
