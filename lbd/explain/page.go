package explain

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"skyserve/internal/printable"
	"skyserve/lbd/core"
	"skyserve/lbd/record"
)

// Bounds of the page width: longer lines are hard to read, and a table does not fit into shorter
// ones.
const (
	maxWidth = 100
	minWidth = 40
)

// page is the text of an explanation, while it is written.
type page struct {
	strings.Builder
	width int
	zone  *time.Location
	// shown and dropped are the columns that its tables include and omit.
	shown, dropped []string
}

// WriteText formats the explanation as text, in lines of at most width columns (clamped to 40..100) and
// with times in zone.
func (s *Explanation) WriteText(w io.Writer, width int, zone *time.Location) error {
	p := &page{width: max(minWidth, min(width, maxWidth)), zone: zone}
	for i := range s.Parts {
		part := &s.Parts[i]
		if part.From == "" || i == 0 {
			p.writeHeader(s, part, i > 0)
		}
		p.writePart(s, part)
		if i+1 == len(s.Parts) || s.Parts[i+1].From == "" {
			p.writeFooter(s.requestParts(i))
		}
	}
	p.writeLegend()
	for _, b := range s.Balancers {
		if b.Error != "" {
			p.writeLine("")
			p.writeWrapped("", "  ", "A balancer did not respond, so parts may be missing: "+b.Error)
		}
	}
	_, err := io.WriteString(w, printable.Text(p.String()))
	return err
}

// requestParts returns the parts of one request; last is the position of the last part.
func (s *Explanation) requestParts(last int) []record.RequestRecord {
	first := last
	for first > 0 && s.Parts[first].From != "" {
		first--
	}
	return s.Parts[first : last+1]
}

// isLost reports whether an attempt was forwarded to a peer that has no record of it.
func (s *Explanation) isLost(d *record.RequestRecord, t *record.Attempt) bool {
	return t.Kind == core.ActionForward && t.Failure == "" &&
		!slices.ContainsFunc(s.Parts, func(p record.RequestRecord) bool { return follows(&p, d, t) })
}

func (p *page) writeLine(format string, args ...any) {
	fmt.Fprintf(p, format, args...)
	p.WriteByte('\n')
}

// writeWrapped writes wrapped words: the first line after prefix first, the others after rest.
func (p *page) writeWrapped(first, rest, words string) {
	line, blank := first, true
	for word := range strings.FieldsSeq(words) {
		switch {
		case blank:
			line += word
		case len(line)+1+len(word) > p.width:
			p.writeLine("%s", line)
			line = rest + word
		default:
			line += " " + word
		}
		blank = false
	}
	p.writeLine("%s", line)
}

// writeField writes a labelled value.
func (p *page) writeField(name, words string) {
	p.writeWrapped(fmt.Sprintf("  %-8s ", name), strings.Repeat(" ", 11), words)
}

// writeHeader writes the properties of a request.
func (p *page) writeHeader(s *Explanation, d *record.RequestRecord, again bool) {
	if again {
		p.writeLine("")
		p.writeWrapped("", "", "Another request with the same id:")
		p.writeLine("")
	}
	title := "request " + s.Request
	if s.Service != "" {
		title += " of " + s.Service
	}
	p.writeWrapped("", "", title)
	p.writeField("arrived", fmt.Sprintf("%s at %s in %s", d.At.In(p.zone).Format("2006-01-02 15:04:05.000 MST"), d.Balancer, d.Region))
	if d.Split != "" {
		p.writeField("model", d.Model+", of split "+d.Split)
	} else {
		p.writeField("model", d.Model)
	}
	p.writeField("tier", d.Tier.Word())
	if d.Tenant != "" {
		p.writeField("tenant", d.Tenant)
	}
	if d.Session != "" {
		p.writeField("session", d.Session)
	}
	p.writeField("prompt", fmt.Sprintf("%s, about %d tokens", printable.Bytes(d.PromptBytes), d.PromptEstimate))
}

// writePart writes the actions of one balancer.
func (p *page) writePart(s *Explanation, d *record.RequestRecord) {
	p.writeLine("")
	from := "from a client"
	if d.From != "" {
		from = "forwarded by " + d.From
	}
	p.writeWrapped("", "  ", fmt.Sprintf("%s (%s), %s", d.Balancer, d.Region, from))
	queuedAt := 0.0 // when the request was last queued, in milliseconds after its arrival
	for i := range d.Attempts {
		p.writeAttempt(&d.Attempts[i], i, queuedAt)
		if s.isLost(d, &d.Attempts[i]) {
			p.writeDetail("The peer has no record of it.")
		}
		if ended := d.Attempts[i].EndedMillis; ended != nil {
			queuedAt = *ended
		}
	}
	if d.State == "queued" || d.State == "sent" && lastFailed(d.Attempts) {
		state := "still queued"
		if d.HeldFor != "" {
			state += ", for replica " + d.HeldFor
		} else if d.Reason == core.QueuedForStart {
			state += ": " + waitsForStart
		} else if d.Reason == core.QueuedForPrefill {
			state += ": " + waitsForPrefill
		}
		p.writeAction(state)
	}
}

// lastFailed reports whether the latest attempt failed.
func lastFailed(tries []record.Attempt) bool {
	return len(tries) > 0 && tries[len(tries)-1].Failure != ""
}

// writeAction writes one action of a balancer.
func (p *page) writeAction(words string) { p.writeWrapped("  - ", "    ", words) }

// writeDetail writes details of an item.
func (p *page) writeDetail(words string) { p.writeWrapped("    ", "    ", words) }

// writeAttempt writes one decision; queuedAt is when the request was last queued, in milliseconds.
func (p *page) writeAttempt(t *record.Attempt, n int, queuedAt float64) {
	at := "at " + millis(t.AtMillis)
	then := ""
	if n > 0 {
		then = "then "
	}
	fallback := ""
	if t.Model != "" {
		fallback = " as fallback " + t.Model
	}
	switch t.Kind {
	case core.ActionDispatch:
		p.writeAction(fmt.Sprintf("%s %ssent to replica %s%s", at, then, t.Target, fallback))
	case core.ActionForward:
		p.writeAction(fmt.Sprintf("%s %sforwarded to peer %s%s", at, then, t.Target, fallback))
	case core.ActionReject:
		p.writeAction(fmt.Sprintf("%s rejected%s: %s", at, fallback, because(rejectedBecause, t.Reason)))
		if len(t.Engines) > 0 {
			p.writeDetail("Engines that died: " + strings.Join(t.Engines, ", ") + ".")
		}
		return
	case core.ActionBounce:
		p.writeAction(fmt.Sprintf("%s returned to %s: %s", at, t.Target, noLiveReplica))
		return
	default:
		p.writeAction(fmt.Sprintf("%s %s %s %s", at, t.Kind, t.Target, t.Reason))
	}
	if t.Decision != nil {
		p.writeDecision(t, t.AtMillis-queuedAt)
	}
	if t.Failure != "" {
		p.writeDetail("Failed" + failedAfter(t) + ": " + t.Failure + ".")
	}
}

// failedAfter returns the duration of a failed attempt.
func failedAfter(t *record.Attempt) string {
	if t.EndedMillis == nil {
		return ""
	}
	return " after " + millis(*t.EndedMillis-t.AtMillis)
}

// minShownWait is the queue time, in milliseconds, from which it is explained. A shorter time is
// the balancer's own processing.
const minShownWait = 1

// writeDecision writes the reason for the choice of a target, and the candidates.
func (p *page) writeDecision(t *record.Attempt, waited float64) {
	d := t.Decision
	if waited >= minShownWait {
		p.writeDetail(fmt.Sprintf("Queued for %s: %s.", millis(waited), whyWaiting(d.Policy, t.HeldFor, t.Cold, t.SharedPrefill)))
	} else {
		p.writeDetail("Not queued.")
	}
	p.writeDetail(fmt.Sprintf("Policy %s chose %s: %s (%s).", d.Policy, t.Target, whyChosen(d.Policy, d.Reason), d.Reason))
	if d.PromptBytes > 0 {
		p.writeDetail(fmt.Sprintf("Expected prefix hit: %s of the prompt's full 64-byte blocks (%s of %s).",
			percent(d.MatchBytes, d.PromptBytes), printable.Bytes(d.MatchBytes), printable.Bytes(d.PromptBytes)))
	}
	p.writeCandidates(d, t.Target)
}

// writeFooter writes the result of a request with these parts.
func (p *page) writeFooter(parts []record.RequestRecord) {
	d := &parts[0]
	p.writeLine("")
	p.writeWrapped("", "  ", outcome(d))
	if d.PromptTokens != nil || d.OutputTokens != nil {
		p.writeWrapped("  ", "  ", fmt.Sprintf("Tokens counted by the engine: %s prompt (%s cached), %s output.",
			count(d.PromptTokens), count(d.CachedTokens), count(d.OutputTokens)))
	}
	if words := compareHits(d, servingAttempt(parts)); words != "" {
		p.writeWrapped("  ", "  ", words)
	}
}

// endings describes each final state of a request.
var endings = map[string]string{
	"finished":  "Finished",
	"rejected":  "Rejected",
	"cancelled": "Cancelled (client disconnected or request stopped)",
	"bounced":   "Returned to the forwarding peer",
	"failed":    "Response interrupted",
}

// outcome describes the result of a request.
func outcome(d *record.RequestRecord) string {
	if d.E2EMillis == nil {
		return "Still in progress."
	}
	state := cmp.Or(endings[d.State], d.State)
	words := fmt.Sprintf("%s: status %d after %s", state, d.Status, millis(*d.E2EMillis))
	if d.TTFTMillis != nil {
		words += ", first token after " + millis(*d.TTFTMillis)
	}
	return words + "."
}

// servingAttempt returns the attempt at the replica that served the request; nil if there is none.
func servingAttempt(parts []record.RequestRecord) *record.Attempt {
	for i := len(parts) - 1; i >= 0; i-- {
		for j := len(parts[i].Attempts) - 1; j >= 0; j-- {
			if t := &parts[i].Attempts[j]; t.Kind == core.ActionDispatch && t.Failure == "" {
				return t
			}
		}
	}
	return nil
}

// hitTolerance is the minimum reported difference between the expected prefix hit and the engine's,
// in percent of the prompt.
const hitTolerance = 20

// compareHits compares the engine's prefix hit with the expected one; empty if either is unknown.
func compareHits(d *record.RequestRecord, t *record.Attempt) string {
	if t == nil || t.Decision == nil || t.Decision.PromptBytes == 0 || d.CachedTokens == nil || d.PromptTokens == nil || *d.PromptTokens == 0 {
		return ""
	}
	expected := 100 * float64(t.Decision.MatchBytes) / float64(t.Decision.PromptBytes)
	reported := 100 * float64(*d.CachedTokens) / float64(*d.PromptTokens)
	words := fmt.Sprintf("Expected prefix hit at %s: %.0f%%; reported by the engine: %.0f%%", t.Target, expected, reported)
	switch {
	case reported < expected-hitTolerance:
		words += " (lower: the expectation counts whole blocks of text, or the engine has evicted some)"
	case reported > expected+hitTolerance:
		words += " (higher: it has cached prefixes that this balancer does not track)"
	}
	return words + "."
}

// count formats a figure of the engine.
func count(n *int) string {
	if n == nil {
		return "unknown"
	}
	return fmt.Sprint(*n)
}

// percent formats part of whole.
func percent(part, whole int) string {
	if whole <= 0 {
		return "-"
	}
	return fmt.Sprintf("%.0f%%", 100*float64(part)/float64(whole))
}

// millis formats milliseconds in a suitable unit.
func millis(ms float64) string {
	switch {
	case ms < 10:
		return fmt.Sprintf("%.1f ms", ms)
	case ms < 1000:
		return fmt.Sprintf("%.0f ms", ms)
	}
	return fmt.Sprintf("%.2f s", ms/1000)
}
