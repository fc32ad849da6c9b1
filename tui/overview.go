package tui

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"skyserve/internal/service"
	"skyserve/internal/telemetry"
)

// overview is the pane with one line a region.
type overview struct {
	width, height int // height counts the title; 0 = as high as needed
}

// SetSize says how much room the pane has; a height of 0 is unlimited.
func (o *overview) SetSize(width, height int) { o.width, o.height = width, height }

// overviewFacts is what the pane draws.
type overviewFacts struct {
	regions  []*telemetry.RegionSnapshot
	previous *telemetry.Snapshot
	history  *history // nil = no sparkline
	since    time.Duration
	focus    service.Region
	current  service.Region // the region that must stay in sight
}

// The overview's columns, in order.
const (
	ovRegion = iota
	ovState
	ovReady
	ovQueued
	ovRequests
	ovTokens
	ovP50
	ovP90
	ovHit
	ovForwarded
	ovRTT
	ovAge
	ovSpark
)

// Render draws the title and the regions that fit, and says how many do not.
func (o *overview) Render(t *Theme, f overviewFacts) []string {
	g := fitGrid(o.columns(f), o.width)
	lines := []string{g.line(t, func(i, w int) (string, paint) {
		if i == ovSpark {
			return sparkSpan(w), t.heading
		}
		return g.columns[i].title, t.heading
	})}
	peak := 0.0
	if f.history != nil {
		peak = f.history.peak(f.regions, g.widths[ovSpark])
	}
	first, n := o.window(f)
	for _, r := range f.regions[first : first+n] {
		lines = append(lines, g.line(t, func(i, w int) (string, paint) { return o.cell(t, f, r, peak, i, w) }))
	}
	if hidden := len(f.regions) - n; hidden > 0 {
		lines = append(lines, t.muted.over(t.cut(fmt.Sprintf("+ %s out of sight", plural(hidden, "region")), o.width)))
	}
	return lines
}

// rows is the height that the pane would like for n regions.
func (o *overview) rows(n int) int { return n + 1 }

// window chooses the regions in sight: all, or those around the current one
// with a line left for saying that there are more.
func (o *overview) window(f overviewFacts) (first, n int) {
	if o.height <= 0 || o.rows(len(f.regions)) <= o.height {
		return 0, len(f.regions)
	}
	n = max(o.height-2, 0)
	for i, r := range f.regions {
		if r.Name == f.current {
			first = i - n/2
		}
	}
	return min(max(first, 0), len(f.regions)-n), n
}

// columns sizes the columns for these regions.
func (o *overview) columns(f overviewFacts) []column {
	region, state, replicas, forwarded, stale := 6, 7, 4, 7, false
	for _, r := range f.regions {
		region = max(region, 1+width(clean(o.name(f, r)))) // one for the cursor
		state = max(state, 2+width(balancersState(r.Balancers)))
		replicas = max(replicas, len(readyShare(r)))
		forwarded = max(forwarded, len(forwards(r)))
		if ms, known := figuresAge(r); known && ms > staleAfter.Milliseconds() {
			stale = true
		}
	}
	ready, p50, p90, fwd := "REPL", "TTFT50", "TTFT90", "IN/OUT"
	if o.width <= 0 || o.width >= wideEnough {
		ready, p50, p90, fwd = "REPLICAS", "TTFT P50", "TTFT P90", "FWD IN/OUT"
	}
	columns := []column{
		ovRegion:    {title: "REGION", least: min(region, 20), most: min(region, 28)},
		ovState:     {title: "STATE", least: min(state, 13), most: state},
		ovReady:     {title: ready, least: replicas, right: true, rank: 1},
		ovQueued:    {title: "QUEUE", least: 6, right: true, rank: 2},
		ovRequests:  {title: "REQ/S", least: 5, right: true, rank: 4},
		ovTokens:    {title: "TOK/S", least: 5, right: true, rank: 3},
		ovP50:       {title: p50, least: 6, right: true, rank: 5},
		ovP90:       {title: p90, least: 6, right: true, rank: 7},
		ovHit:       {title: "HIT", least: 4, right: true, rank: 6},
		ovForwarded: {title: fwd, least: forwarded, right: true, rank: 9},
		ovRTT:       {title: "RTT", least: 5, right: true, rank: 11},
		ovAge:       {title: "AGE", least: 4, right: true, rank: 10},
		ovSpark:     {least: 8, most: maxSpark, rank: 8},
	}
	if stale { // a figure that is old must say so even where room is short
		columns[ovAge].rank = 2
	}
	if f.history == nil {
		columns = columns[:ovSpark]
	}
	return columns
}

// longRegion is the length of a name that is worth shortening.
const longRegion = 12

// name is a region's name: on a narrow screen without its cloud, as long as
// that is not what tells two regions apart.
func (o *overview) name(f overviewFacts, r *telemetry.RegionSnapshot) string {
	if o.width <= 0 || o.width >= roomy || len(r.Name) <= longRegion {
		return string(r.Name)
	}
	for _, other := range f.regions {
		if other != r && other.Name.Place() == r.Name.Place() {
			return string(r.Name)
		}
	}
	return r.Name.Place()
}

// maxSpark is the widest sparkline: five minutes.
const maxSpark = 60

// cell is one figure of one region.
func (o *overview) cell(t *Theme, f overviewFacts, r *telemetry.RegionSnapshot, peak float64, i, w int) (string, paint) {
	switch i {
	case ovRegion:
		if r.Name == f.focus {
			return t.glyphs.cursor + t.text(o.name(f, r)), t.title
		}
		return t.text(o.name(f, r)), t.accent
	case ovState:
		sign, p := t.balancersMark(r.Balancers)
		return sign + " " + t.text(balancersState(r.Balancers)), p
	case ovReady:
		return readyCell(t, r)
	case ovQueued:
		return queuedCell(t, r, findRegion(f.previous, r.Name))
	case ovAge:
		return ageCell(t, r, f.since)
	case ovSpark:
		return strings.TrimRight(f.history.spark(r.Name, w, peak, t.glyphs), " "), t.accent
	}
	return figureCell(r, i), paint{}
}

// figureCell is a plain figure of a region.
func figureCell(r *telemetry.RegionSnapshot, i int) string {
	switch i {
	case ovRequests:
		return rate(r.RequestsPerSecond)
	case ovTokens:
		return rate(r.OutputTokensPerSecond)
	case ovHit:
		return percent(r.PrefixHitRate)
	case ovForwarded:
		return forwards(r)
	case ovRTT:
		if rtt := nearestRTT(r); rtt != nil {
			return millis(*rtt)
		}
	case ovP50:
		if r.TTFT != nil {
			return millis(r.TTFT.P50)
		}
	case ovP90:
		if r.TTFT != nil {
			return millis(r.TTFT.P90)
		}
	}
	return unknown
}

// forwards is what came in from peers and went out to them.
func forwards(r *telemetry.RegionSnapshot) string {
	return count(r.ForwardedIn) + "/" + count(r.ForwardedOut)
}

// readyShare is how many replicas are ready, of how many.
func readyShare(r *telemetry.RegionSnapshot) string {
	return strconv.Itoa(readyCount(r.Replicas)) + "/" + strconv.Itoa(len(r.Replicas))
}

// readyCell is readyShare, painted when some are not.
func readyCell(t *Theme, r *telemetry.RegionSnapshot) (string, paint) {
	s, ready := readyShare(r), readyCount(r.Replicas)
	switch {
	case ready == 0 && len(r.Replicas) > 0:
		return s, t.bad
	case ready < len(r.Replicas):
		return s, t.warn
	}
	return s, paint{}
}

// queuedCell is the queue with a sign for where it goes.
func queuedCell(t *Theme, r, before *telemetry.RegionSnapshot) (string, paint) {
	s := count(int64(r.Queued))
	switch {
	case before != nil && r.Queued > before.Queued:
		return s + t.glyphs.up, t.warn
	case before != nil && r.Queued < before.Queued:
		return s + t.glyphs.down, paint{}
	}
	return s + " ", paint{}
}

// ageCell is the age of a region's figures, painted when they are old.
func ageCell(t *Theme, r *telemetry.RegionSnapshot, since time.Duration) (string, paint) {
	ms, known := figuresAge(r)
	if !known {
		return unknown, paint{}
	}
	if ms > staleAfter.Milliseconds() {
		return maybeAge(&ms, since), t.warn
	}
	return maybeAge(&ms, since), t.muted
}
