package tui

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"skyserve/internal/printable"
)

// requestSheet has one row per request and balancer, newest first: the last requestLimit.
func (s *screen) requestSheet() sheet {
	numberColumn := func(title string, rank int, letter, word string) sheetColumn {
		return sheetColumn{column{title: title, minWidth: 5, right: true, dropRank: rank}, letter, word, true, false}
	}
	textColumn := func(title string, minWidth, maxWidth, rank int, letter, word string) sheetColumn {
		return sheetColumn{column{title: title, minWidth: minWidth, maxWidth: maxWidth, dropRank: rank}, letter, word, false, false}
	}
	sh := sheet{noun: "request", empty: s.emptyRequests(), columns: []sheetColumn{
		textColumn("TIME", 8, 8, 0, "I", "time"),
		textColumn("STATE", 12, 13, 1, "S", "state"),
		textColumn("REGION", 6, 16, 6, "R", "region"),
		{column{title: "MODEL", minWidth: 8, maxWidth: 24, dropRank: 10}, "M", "model", false, true},
		textColumn("TIER", 4, 8, 9, "E", "tier"),
		textColumn("TARGET", 8, 20, 2, "N", "target"),
		numberColumn("MATCH", 3, "H", "prefix match"),
		numberColumn("QUEUED", 7, "U", "time queued"),
		numberColumn("TTFT", 4, "F", "time to first token"),
		numberColumn("E2E", 8, "D", "end-to-end latency"),
		numberColumn("TOKENS", 9, "O", "output tokens"),
		textColumn("REASON", 22, 100, 5, "Y", "reason"),
	}}
	if s.pastFrame != nil { // the requests are those of now
		return sh
	}
	for i := range s.data.requests {
		r := &s.data.requests[i]
		if s.focus != "" && r.Region != s.focus {
			continue
		}
		sh.rows = append(sh.rows, sheetRow{id: r.Request + "@" + r.Balancer, cells: s.requestCells(r), details: s.requestDetails(r)})
	}
	return sh
}

// emptyRequests returns why no requests are listed.
func (s *screen) emptyRequests() []string {
	switch {
	case s.readOnly:
		return []string{"Snapshots contain no requests", "--replay and --ssh show only snapshots; 'skyserve top' without them lists requests"}
	case s.pastFrame != nil:
		return []string{"The history contains no requests", "press esc for live"}
	case s.data.requestsErr != "":
		return []string{"Cannot list requests", s.theme.text(s.data.requestsErr)}
	case s.data.requestsAt.IsZero():
		return []string{"Loading " + s.theme.glyphs.ellipsis}
	}
	return []string{"No requests yet", "requests appear here as they arrive, with the reason for their routing"}
}

// requestCells returns the cells of a request.
func (s *screen) requestCells(r *RequestRow) []cellValue {
	at := r.At.In(s.snapshot.At.Location())
	when := textCell(at.Format(time.TimeOnly), roleMuted)
	state := textCell(s.theme.text(stateText(r)), requestRole(r))
	if r.Status >= 400 {
		state.text += " " + strconv.Itoa(r.Status)
	}
	target := textCell(orUnknown(s.theme.text(r.Target)), roleText)
	if r.Forwarded {
		target.text, target.role = s.theme.glyphs.arrow+" "+target.text, roleAccent
	}
	return []cellValue{
		when, state,
		textCell(s.theme.text(r.Region.ShortName()), roleText),
		textCell(orUnknown(s.theme.text(shortModel(r.Model))), roleText),
		textCell(s.theme.text(r.Tier.Word()), roleMuted),
		target,
		matchCell(r),
		numberCell(r.QueuedMillis, millis(r.QueuedMillis), queuedRole(r.QueuedMillis)),
		optionalCell(r.TTFTMillis, func(ms *float64) string { return millis(*ms) }),
		optionalCell(r.E2EMillis, func(ms *float64) string { return millis(*ms) }),
		optionalCell(r.OutputTokens, func(n *int) string { return count(int64(*n)) }),
		textCell(s.theme.text(shortReason(r.Why)), roleMuted),
	}
}

// shortReason returns the first clause of a reason; the details show the whole reason.
func shortReason(why string) string {
	if i := strings.IndexAny(why, ";:"); i > 0 {
		return why[:i]
	}
	return why
}

// matchCell returns the share of the prompt expected to be cached at the target.
func matchCell(r *RequestRow) cellValue {
	if r.PromptBytes == 0 || r.Target == "" {
		return unknownCell()
	}
	share := float64(r.MatchBytes) / float64(r.PromptBytes)
	return numberCell(share, percent(&share), roleText)
}

// longQueue is the queueing time from which a request is highlighted, in milliseconds.
const longQueue = 1000

func queuedRole(ms float64) role {
	if ms >= longQueue {
		return roleWarn
	}
	return roleText
}

// stateText returns the displayed state of a request: "sent" means that its response is not complete.
func stateText(r *RequestRow) string {
	if r.State == "sent" {
		return "in flight"
	}
	return r.State
}

// requestRole returns the role of a request's state.
func requestRole(r *RequestRow) role {
	switch r.State {
	case "finished":
		return roleGood
	case "queued", "bounced":
		return roleWarn
	case "rejected", "failed":
		return roleBad
	case "cancelled":
		return roleMuted
	}
	return roleAccent
}

// requestDetails returns the details of a request that have no column.
func (s *screen) requestDetails(r *RequestRow) []string {
	line := "request " + r.Request + " at " + r.Balancer
	if r.From != "" {
		line += ", forwarded by " + r.From
	}
	if r.Tenant != "" {
		line += ", tenant " + r.Tenant
	}
	line += fmt.Sprintf(", policy %s, %s", orUnknown(r.Policy), printable.Count(r.Tries, "attempt"))
	if r.PromptTokens != nil {
		line += ", " + printable.Count(*r.PromptTokens, "prompt token")
		if r.CachedTokens != nil {
			line += fmt.Sprintf(", %d cached", *r.CachedTokens)
		}
	}
	return []string{s.theme.text(line), s.theme.text(r.Why)}
}

// selectedRequest returns the selected request.
func (s *screen) selectedRequest() (r *RequestRow, ok bool) {
	id, ok := s.lists[viewRequests].selection()
	for i := range s.data.requests {
		if r := &s.data.requests[i]; ok && r.Request+"@"+r.Balancer == id {
			return r, true
		}
	}
	return nil, false
}
