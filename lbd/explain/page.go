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

// Widths of a page. Wider lines are hard to read, narrower ones hold no table.
const (
	maxWidth = 100
	minWidth = 40
)

// page is a story being written.
type page struct {
	strings.Builder
	width int
	zone  *time.Location
	// shown and dropped are the columns that its tables have and have not.
	shown, dropped []string
}

// WriteText writes the story for a person, in lines of at most width columns
// (40 at least, 100 at most) and with times of zone.
func (s *Story) WriteText(w io.Writer, width int, zone *time.Location) error {
	p := &page{width: max(minWidth, min(width, maxWidth)), zone: zone}
	for i := range s.Parts {
		part := &s.Parts[i]
		if part.From == "" || i == 0 {
			p.beginning(s, part, i > 0)
		}
		p.part(s, part)
		if i+1 == len(s.Parts) || s.Parts[i+1].From == "" {
			p.ending(s.journey(i))
		}
	}
	p.legend()
	for _, b := range s.Balancers {
		if b.Error != "" {
			p.line("")
			p.text("", "  ", "No answer from a balancer, so something may be missing: "+b.Error)
		}
	}
	_, err := io.WriteString(w, printable.Text(p.String()))
	return err
}

// journey is the parts of one request, the last of which is at position last.
func (s *Story) journey(last int) []record.Request {
	first := last
	for first > 0 && s.Parts[first].From != "" {
		first--
	}
	return s.Parts[first : last+1]
}

// lost says whether a try went to a peer that tells nothing of it.
func (s *Story) lost(d *record.Request, t *record.Try) bool {
	return t.Kind == core.ActionForward && t.Failure == "" &&
		!slices.ContainsFunc(s.Parts, func(p record.Request) bool { return follows(&p, d, t) })
}

func (p *page) line(format string, args ...any) {
	fmt.Fprintf(p, format, args...)
	p.WriteByte('\n')
}

// text writes words in lines of the page's width: the first after first, the
// others after rest.
func (p *page) text(first, rest, words string) {
	line, blank := first, true
	for word := range strings.FieldsSeq(words) {
		switch {
		case blank:
			line += word
		case len(line)+1+len(word) > p.width:
			p.line("%s", line)
			line = rest + word
		default:
			line += " " + word
		}
		blank = false
	}
	p.line("%s", line)
}

// fact writes a named fact.
func (p *page) fact(name, words string) {
	p.text(fmt.Sprintf("  %-8s ", name), strings.Repeat(" ", 11), words)
}

// beginning writes what is known of a request itself.
func (p *page) beginning(s *Story, d *record.Request, again bool) {
	if again {
		p.line("")
		p.text("", "", "The same id, another request:")
		p.line("")
	}
	title := "request " + s.Request
	if s.Service != "" {
		title += " of " + s.Service
	}
	p.text("", "", title)
	p.fact("arrived", fmt.Sprintf("%s at %s in %s", d.At.In(p.zone).Format("2006-01-02 15:04:05.000 MST"), d.Balancer, d.Region))
	p.fact("model", d.Model)
	p.fact("tier", string(d.Tier))
	if d.Tenant != "" {
		p.fact("tenant", d.Tenant)
	}
	if d.Session != "" {
		p.fact("session", d.Session)
	}
	p.fact("prompt", fmt.Sprintf("%s, about %d tokens", size(d.PromptBytes), d.PromptEstimate))
}

// part writes what one balancer did.
func (p *page) part(s *Story, d *record.Request) {
	p.line("")
	from := "from a client"
	if d.From != "" {
		from = "forwarded by " + d.From
	}
	p.text("", "  ", fmt.Sprintf("%s (%s), %s", d.Balancer, d.Region, from))
	free := 0.0 // when the request was in the queue again
	for i := range d.Tries {
		p.try(&d.Tries[i], i, free)
		if s.lost(d, &d.Tries[i]) {
			p.more("What became of it there is not remembered.")
		}
		if ended := d.Tries[i].EndedMillis; ended != nil {
			free = *ended
		}
	}
	if d.State == "queued" || d.State == "sent" && lastFailed(d.Tries) {
		still := "it waits in the queue still"
		if d.KeptFor != "" {
			still += ", for replica " + d.KeptFor
		}
		p.item(still)
	}
}

// lastFailed says whether the latest try is over.
func lastFailed(tries []record.Try) bool {
	return len(tries) > 0 && tries[len(tries)-1].Failure != ""
}

// item writes one thing that a balancer did.
func (p *page) item(words string) { p.text("  - ", "    ", words) }

// more writes what belongs to an item.
func (p *page) more(words string) { p.text("    ", "    ", words) }

// try writes one decision; the request was in the queue since free.
func (p *page) try(t *record.Try, n int, free float64) {
	at := "at " + millis(t.AtMillis)
	then := ""
	if n > 0 {
		then = "then "
	}
	switch t.Kind {
	case core.ActionDispatch:
		p.item(fmt.Sprintf("%s it %swent to replica %s", at, then, t.Target))
	case core.ActionForward:
		p.item(fmt.Sprintf("%s it was %sforwarded to peer %s", at, then, t.Target))
	case core.ActionReject:
		p.item(fmt.Sprintf("%s it was refused: %s", at, because(rejectedBecause, t.Reason)))
		if len(t.Engines) > 0 {
			p.more("Engines that died: " + strings.Join(t.Engines, ", ") + ".")
		}
		return
	case core.ActionBounce:
		p.item(fmt.Sprintf("%s it was given back to %s: %s", at, t.Target, noReplicaLeft))
		return
	default:
		p.item(fmt.Sprintf("%s %s %s %s", at, t.Kind, t.Target, t.Reason))
	}
	if t.Decision != nil {
		p.decision(t, t.AtMillis-free)
	}
	if t.Failure != "" {
		p.more("It failed" + after(t) + ": " + t.Failure + ".")
	}
}

// after says how long a try went on that ended without serving its request.
func after(t *record.Try) string {
	if t.EndedMillis == nil {
		return ""
	}
	return " after " + millis(*t.EndedMillis-t.AtMillis)
}

// waitWorthTelling is the wait, in milliseconds, from which it is explained:
// less is the balancer's own work.
const waitWorthTelling = 1

// decision writes why a place was chosen, and from which.
func (p *page) decision(t *record.Try, waited float64) {
	d := t.Decision
	if waited >= waitWorthTelling {
		p.more(fmt.Sprintf("It had waited %s: %s.", millis(waited), whyWaiting(d.Policy, t.KeptFor)))
	} else {
		p.more("It did not wait.")
	}
	p.more(fmt.Sprintf("Policy %s chose %s: %s (%s).", d.Policy, t.Target, whyChosen(d.Policy, d.Reason), d.Reason))
	if d.PromptBytes > 0 {
		p.more(fmt.Sprintf("Believed cached there: %s of the prompt (%s of %s).",
			percent(d.MatchBytes, d.PromptBytes), size(d.MatchBytes), size(d.PromptBytes)))
	}
	p.candidates(d, t.Target)
}

// ending writes how a request ended that passed these parts.
func (p *page) ending(parts []record.Request) {
	d := &parts[0]
	p.line("")
	p.text("", "  ", outcome(d))
	if d.PromptTokens != nil || d.OutputTokens != nil {
		p.text("  ", "  ", fmt.Sprintf("Tokens as the engine counted them: %s prompt, %s of them cached, %s output.",
			count(d.PromptTokens), count(d.CachedTokens), count(d.OutputTokens)))
	}
	if words := belief(d, served(parts)); words != "" {
		p.text("  ", "  ", words)
	}
}

// endings is each state in which a request can end, in words.
var endings = map[string]string{
	"finished":  "It was served",
	"rejected":  "It was refused",
	"cancelled": "Its client left, or it was stopped",
	"bounced":   "It was given back to the peer that it came from",
	"failed":    "Its answer broke off",
}

// outcome says how a request ended.
func outcome(d *record.Request) string {
	if d.E2EMillis == nil {
		return "It has not ended yet."
	}
	state := cmp.Or(endings[d.State], d.State)
	words := fmt.Sprintf("%s: status %d after %s", state, d.Status, millis(*d.E2EMillis))
	if d.TTFTMillis != nil {
		words += ", the first token after " + millis(*d.TTFTMillis)
	}
	return words + "."
}

// served is the try at the replica that served the request; nil where there is none.
func served(parts []record.Request) *record.Try {
	for i := len(parts) - 1; i >= 0; i-- {
		for j := len(parts[i].Tries) - 1; j >= 0; j-- {
			if t := &parts[i].Tries[j]; t.Kind == core.ActionDispatch && t.Failure == "" {
				return t
			}
		}
	}
	return nil
}

// beliefOff is how far, in percent of the prompt, the engine's cache must be
// from what was believed to be worth a remark.
const beliefOff = 20

// belief compares what the engine found cached with what was believed; empty
// where one of them is not known.
func belief(d *record.Request, t *record.Try) string {
	if t == nil || t.Decision == nil || t.Decision.PromptBytes == 0 || d.CachedTokens == nil || d.PromptTokens == nil || *d.PromptTokens == 0 {
		return ""
	}
	believed := 100 * float64(t.Decision.MatchBytes) / float64(t.Decision.PromptBytes)
	found := 100 * float64(*d.CachedTokens) / float64(*d.PromptTokens)
	words := fmt.Sprintf("Of the prompt %.0f%% was believed cached at %s; the engine found %.0f%%", believed, t.Target, found)
	switch {
	case found < believed-beliefOff:
		words += ", less: it may have given some up since"
	case found > believed+beliefOff:
		words += ", more: it holds what this balancer did not send there or has forgotten"
	}
	return words + "."
}

// count is a figure of the engine, or that it told none.
func count(n *int) string {
	if n == nil {
		return "unknown"
	}
	return fmt.Sprint(*n)
}

// percent is part of whole.
func percent(part, whole int) string {
	if whole <= 0 {
		return "-"
	}
	return fmt.Sprintf("%.0f%%", 100*float64(part)/float64(whole))
}

// millis writes milliseconds in the unit that reads best.
func millis(ms float64) string {
	switch {
	case ms < 10:
		return fmt.Sprintf("%.1f ms", ms)
	case ms < 1000:
		return fmt.Sprintf("%.0f ms", ms)
	}
	return fmt.Sprintf("%.2f s", ms/1000)
}

// size writes bytes in the unit that reads best.
func size(n int) string {
	switch {
	case n < 1000:
		return fmt.Sprintf("%d bytes", n)
	case n < 1000_000:
		return fmt.Sprintf("%.1f KB", float64(n)/1000)
	}
	return fmt.Sprintf("%.1f MB", float64(n)/1e6)
}
