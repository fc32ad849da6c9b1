package provision

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"

	"skyserve/internal/service"
)

// runningWeight is the number of recent events that a spot replica in a zone counts as: a zone with two
// replicas is as bad as one with an event just now.
const runningWeight = 0.5

// SpotFacts are the facts by which spot offerings are ordered.
type SpotFacts struct {
	// Events is the number of recent interruptions and capacity errors: SpotHistory.RecentEvents.
	Events float64
	// Running is the number of the service's spot replicas in its zone.
	Running int
	// Score is CapacityAdvice.Score; nil = unknown.
	Score *float64
}

// weight returns the number of recent events, in which the replicas of the zone count too.
func (f SpotFacts) weight() float64 { return f.Events + runningWeight*float64(f.Running) }

// OrderSpot orders the spot offerings of a region among themselves: those with the fewest recent events first,
// then those with the best score, unknown ones last, then the cheapest. Once an offering has had an event,
// each replica of a zone counts as half an event: otherwise all replicas would be launched in the zone with the
// fewest events, and its next interruption would affect all of them. Equal offerings keep their order.
// Offerings of other capacity types keep their positions.
func (os Offerings) OrderSpot(facts func(Offering) SpotFacts) Offerings {
	out := slices.Clone(os)
	for begin := 0; begin < len(out); {
		end := begin + 1
		for end < len(out) && out[end].Capacity == out[begin].Capacity && out[end].Region == out[begin].Region {
			end++
		}
		if out[begin].Capacity == service.CapacitySpot {
			sortSpot(out[begin:end], facts)
		}
		begin = end
	}
	return out
}

// sortSpot sorts the spot offerings of a region.
func sortSpot(spot Offerings, facts func(Offering) SpotFacts) {
	calm := !slices.ContainsFunc(spot, func(o Offering) bool { return facts(o).Events > 0 })
	slices.SortStableFunc(spot, func(a, b Offering) int {
		fa, fb := facts(a), facts(b)
		if calm {
			fa.Running, fb.Running = 0, 0
		}
		return cmp.Or(compareWeights(fa.weight(), fb.weight()), compareScores(fa.Score, fb.Score), comparePrices(a.PricePerHour, b.PricePerHour))
	})
}

// compareScores orders the better score first, and unknown ones last.
func compareScores(a, b *float64) int {
	switch {
	case a == nil && b == nil:
		return 0
	case a == nil:
		return 1
	case b == nil:
		return -1
	}
	return cmp.Compare(*b, *a)
}

// compareWeights compares weights, rounded to hundredths of an event.
func compareWeights(a, b float64) int {
	const step = 0.01
	return int(math.Round(a/step)) - int(math.Round(b/step))
}

// maxExplained is the number of zones in the reason of a choice.
const maxExplained = 4

// ExplainSpot returns why the first of some ordered offerings is preferred, for display; empty where nothing is
// known about its zones, or it is not spot.
func (os Offerings) ExplainSpot(facts func(Offering) SpotFacts) string {
	if len(os) == 0 || os[0].Capacity != service.CapacitySpot {
		return ""
	}
	var parts []string
	known := false
	for _, o := range os {
		if o.Capacity != service.CapacitySpot || o.Type != os[0].Type || o.Region != os[0].Region {
			continue
		}
		f := facts(o)
		known = known || f.Events > 0 || f.Score != nil
		if len(parts) < maxExplained {
			parts = append(parts, o.Zone+" ("+f.String()+")")
		}
	}
	if !known {
		return ""
	}
	return "spot zones: " + strings.Join(parts, ", ")
}

// String formats the facts for display: 1.5 recent events, score 0.9.
func (f SpotFacts) String() string {
	text := "no recent events"
	if f.Events > 0 {
		text = fmt.Sprintf("%.2g recent events", f.Events)
	}
	if f.Score != nil {
		text += fmt.Sprintf(", score %.2g", *f.Score)
	}
	return text
}
