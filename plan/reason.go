package plan

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
)

// reasonWriter writes the reasons for counts x of a problem; flows are those of the current model.
type reasonWriter struct {
	*Problem
	ProposalContext
	x           [][][]int
	constraints *constraintChecker
	flows       []flow
}

// gpu returns the name of the GPU of offering k.
func (w *reasonWriter) gpu(k int) string {
	if w.GPUNames != nil {
		return w.GPUNames[k]
	}
	return w.Problem.GPUs[k]
}

// capacityTypeOf returns the capacity type of offering k, empty if it is unknown.
func (w *reasonWriter) capacityTypeOf(k int) string {
	if w.CapacityType != nil && w.CapacityType[k] != "" {
		return w.CapacityType[k]
	}
	return w.ProposalContext.DefaultCapacityType
}

// offeringGroups returns the offerings with current or planned replicas of model i in region j. Those with the same GPU
// and capacity type are one group.
func (w *reasonWriter) offeringGroups(i, j int) [][]int {
	var out [][]int
	for k := range w.Problem.GPUs {
		if w.Current[i][j][k] == 0 && w.x[i][j][k] == 0 {
			continue
		}
		same := slices.IndexFunc(out, func(g []int) bool { return w.gpu(g[0]) == w.gpu(k) && w.capacityTypeOf(g[0]) == w.capacityTypeOf(k) })
		if same < 0 {
			out = append(out, []int{k})
		} else {
			out[same] = append(out[same], k)
		}
	}
	return out
}

// changeOf returns the change of model i in region j on a group of offerings.
func (w *reasonWriter) changeOf(i, j int, offerings []int) ReplicaChange {
	p := w.Problem
	ch := ReplicaChange{
		Model: p.Models[i], Region: p.Regions[j], GPU: w.gpu(offerings[0]), CapacityType: optional(w.capacityTypeOf(offerings[0])), PlannedPeakTPS: p.RegionPeak(i, j),
		ForwardedTPS: w.flows[j].forwarded, ReceivedTPS: w.flows[j].received, PeakAt: w.peakAt(w.flows[j].peak), Binding: []string{},
	}
	donated := 0
	var binding []bindingRow
	for _, k := range offerings {
		n, then := p.Current[i][j][k], w.x[i][j][k]
		ch.Current, ch.Planned = ch.Current+n, ch.Planned+then
		ch.CapacityTPS += p.ReplicaTPS[i][k] * float64(then)
		if !p.Reserved(k) {
			ch.CostChangePerHour += w.price(p, j, k) * float64(then-n)
		}
		if w.Donated != nil {
			donated += w.Donated[i][j][k]
		}
		ch.SwitchedVMs += p.switchedVMs(w.x, j, k)[i]
		for _, b := range append(p.bindingRows(w.x, i, j, k), w.bindingCovers(i, j, k)...) {
			if !slices.Contains(binding, b) {
				binding, ch.Binding = append(binding, b), append(ch.Binding, b.String())
			}
		}
	}
	ch.Delta = ch.Planned - ch.Current
	if all := p.regionThroughput(w.x, i, j); all > 0 {
		u := ch.PlannedPeakTPS / all
		ch.Utilisation = &u
	}
	if ch.Delta < 0 && w.Donate[p.Regions[j]] {
		ch.Donate = -ch.Delta
	}
	ch.Reclaim = min(max(0, ch.Delta), donated)
	ch.Reason = w.reason(ch, binding, i, j)
	return ch
}

// bindingCovers returns the coverage rows over some of the regions that one replica fewer would violate: those for the
// loss of a region, and those for the maximum round trip.
func (w *reasonWriter) bindingCovers(i, j, k int) (out []bindingRow) {
	for _, c := range w.constraints.covers[i] {
		if w.x[i][j][k] == 0 || !c.regions.has(j) || c.regions.size() == len(w.Regions) {
			continue
		}
		served := -w.ReplicaTPS[i][k]
		for r := range w.Regions {
			if c.regions.has(r) {
				served += w.regionThroughput(w.x, i, r)
			}
		}
		switch {
		case meetsNeed(served, c.need):
		case c.lost >= 0:
			out = append(out, bindingRow{name: "survival of the loss of " + w.Regions[c.lost]})
		default:
			out = append(out, bindingRow{name: "maximum round-trip time"})
		}
	}
	return out
}

// peakAt returns the start of window number peak, nil when the time of the plan is unknown or there is
// no peak.
func (w *reasonWriter) peakAt(peak int) *time.Time {
	windows := len(w.LoadTPS[0][0])
	if w.At.IsZero() || peak < 0 || windows == 0 {
		return nil
	}
	t := w.At.Add(w.Horizon / time.Duration(windows) * time.Duration(peak))
	return &t
}

// reason returns a sentence on why the count changes or stays.
func (w *reasonWriter) reason(c ReplicaChange, binding []bindingRow, i, j int) string {
	peak := "planned load 0"
	if c.PlannedPeakTPS > 0 {
		peak = fmt.Sprintf("peak of %s uncached prompt tokens/s", formatRate(c.PlannedPeakTPS))
		if c.PeakAt != nil {
			peak += c.PeakAt.Format(" at 15:04")
		}
	}
	after := formatRate(w.regionThroughput(w.x, i, j))
	if len(w.offeringGroups(i, j)) > 1 {
		after += " in total"
	}
	var do string
	switch {
	case c.Delta > 0:
		do = fmt.Sprintf("add %d for a capacity of %s%s%s", c.Delta, after, describeNewReplicas(c), w.describeCostChange(c))
	case c.Delta < 0:
		verb := "remove"
		if c.Donate > 0 {
			verb = "donate"
		}
		do = fmt.Sprintf("%s %d, capacity %s remains%s", verb, -c.Delta, after, w.describeCostChange(c))
	default:
		do = fmt.Sprintf("keep %d", c.Planned)
	}
	why := "; no constraint requires more"
	if len(binding) > 0 {
		why = "; determined by " + bindingText(binding)
	}
	return fmt.Sprintf("%s; %s: %s%s%s", peak, w.describeCurrent(c, i, j), do, w.describeForwarding(j), why)
}

// bindingText describes the constraints that determine a number of replicas. In a region with a fixed number of machines,
// the user has set none of the limits.
func bindingText(binding []bindingRow) string {
	var texts []string
	for i := 0; i < len(binding); i++ {
		b, rest := binding[i], binding[i:]
		switch {
		case len(rest) >= 3 && slices.Equal(rest[:3], []bindingRow{{rowMin, b.limit}, {rowMax, b.limit}, {rowCapacity, b.limit}}):
			texts = append(texts, fmt.Sprintf("the minimum, maximum and offering's limit, all %d (in a static region by default the number of endpoints)", b.limit))
			i += 2
		case limitWords[b.name] != "":
			texts = append(texts, fmt.Sprintf("%s %d", limitWords[b.name], b.limit))
		default:
			texts = append(texts, b.name)
		}
	}
	return strings.Join(texts, ", ")
}

// describeCurrent describes the current capacity.
func (w *reasonWriter) describeCurrent(c ReplicaChange, i, j int) string {
	has := w.regionThroughput(w.Current, i, j)
	own := 0.0
	if c.Current > 0 {
		for _, group := range w.offeringGroups(i, j) {
			if w.gpu(group[0]) == c.GPU && (c.CapacityType == nil || w.capacityTypeOf(group[0]) == *c.CapacityType) {
				for _, k := range group {
					own += w.ReplicaTPS[i][k] * float64(w.Current[i][j][k])
				}
			}
		}
	}
	switch {
	case has == 0:
		return "0 running"
	case own == has:
		verb := "serve"
		if c.Current == 1 {
			verb = "serves"
		}
		return fmt.Sprintf("%d x %s %s up to %s", c.Current, c.GPU, verb, formatRate(has))
	}
	return fmt.Sprintf("all replicas there serve up to %s", formatRate(has))
}

// describeNewReplicas describes which new replicas do not need a new VM.
func describeNewReplicas(c ReplicaChange) string {
	s := ""
	if c.Reclaim > 0 {
		s += fmt.Sprintf(", %d of them reclaimed", c.Reclaim)
	}
	if c.SwitchedVMs > 0 {
		s += fmt.Sprintf(", %d of them on machines that other models free", min(c.SwitchedVMs, c.Delta))
	}
	return s
}

// describeCostChange describes the change in cost.
func (w *reasonWriter) describeCostChange(c ReplicaChange) string {
	switch {
	case c.CostChangePerHour > 0:
		return fmt.Sprintf(", $%.2f/h more", c.CostChangePerHour)
	case c.CostChangePerHour < 0:
		return fmt.Sprintf(", $%.2f/h less", -c.CostChangePerHour)
	case c.CapacityType != nil && *c.CapacityType == "reserved":
		return ", already paid"
	}
	return ""
}

// describeForwarding describes the load that region j sends to others at its peak, and serves for others.
func (w *reasonWriter) describeForwarding(j int) string {
	f, s := w.flows[j], ""
	if f.forwarded > 0 && len(f.to) > 0 {
		s += fmt.Sprintf("; %s of the peak is served by %s", formatRate(f.forwarded), w.regionNames(f.to))
	}
	if f.received > 0 {
		s += fmt.Sprintf("; serves up to %s of %s's load", formatRate(f.received), w.regionNames(f.from))
	}
	return s
}

func (w *reasonWriter) regionNames(regions []int) string {
	var out []string
	for _, j := range regions {
		out = append(out, w.Regions[j])
	}
	return strings.Join(out, " and ")
}

// flow is the load of one model that a region exchanges with others.
type flow struct {
	// peak is the window of the region's highest load, -1 for no load.
	peak int
	// forwarded is the part of the peak above the region's capacity; to are the regions that serve
	// it.
	forwarded float64
	to        []int
	// received is the highest load that the region serves for others in any window; from are the
	// regions of that load.
	received float64
	from     []int
}

// flows places the load above each region's capacity, window by window, in the region within reach
// with the most free capacity.
func (p *Problem) flows(x [][][]int, i int) []flow {
	out := make([]flow, len(p.Regions))
	for j := range out {
		out[j].peak = -1
		for w, v := range p.LoadTPS[i][j] {
			if v > 0 && (out[j].peak < 0 || v > p.LoadTPS[i][j][out[j].peak]) {
				out[j].peak = w
			}
		}
	}
	for w := range p.LoadTPS[i][0] {
		p.placeWindow(out, x, i, w)
	}
	return out
}

// placeWindow places the load of one window.
func (p *Problem) placeWindow(out []flow, x [][][]int, i, w int) {
	free := make([]float64, len(out))
	received, from := make([]float64, len(out)), make([][]int, len(out))
	for j := range out {
		free[j] = p.regionThroughput(x, i, j) - p.LoadTPS[i][j][w]
	}
	for j := range out {
		beyond := -free[j]
		if meetsNeed(0, beyond) || beyond < 1e-6*p.LoadTPS[i][j][w] {
			continue
		}
		if w == out[j].peak {
			out[j].forwarded = beyond
		}
		near := p.withinReach(j)
		for beyond > 0 {
			to := -1
			for r := range out {
				if near.has(r) && free[r] > 0 && (to < 0 || free[r] > free[to]) {
					to = r
				}
			}
			if to < 0 {
				break
			}
			part := math.Min(beyond, free[to])
			free[to], beyond = free[to]-part, beyond-part
			received[to], from[to] = received[to]+part, append(from[to], j)
			if w == out[j].peak {
				out[j].to = append(out[j].to, to)
			}
		}
	}
	for j := range out {
		if received[j] > out[j].received {
			out[j].received, out[j].from = received[j], from[j]
		}
	}
}

// switchedVMs returns the number of VMs with GPU k in region j that each model takes over from others.
func (p *Problem) switchedVMs(x [][][]int, j, k int) []int {
	share := make([]int, len(p.Models))
	if p.SwitchCostUSD != nil {
		p.reuseSavings(j, k, func(i int) int { return x[i][j][k] }, share)
	}
	return share
}

// formatRate formats a rate with about three digits.
func formatRate(v float64) string {
	for _, u := range []struct {
		size float64
		name string
	}{{1e9, "G"}, {1e6, "M"}, {1e3, "k"}} {
		if v >= 10*u.size || u.size > 1e3 && v >= u.size {
			return strconv.FormatFloat(v/u.size, 'f', decimals(v/u.size), 64) + u.name
		}
	}
	if v >= 100 || v == math.Trunc(v) {
		return fmt.Sprintf("%.0f", v)
	}
	return fmt.Sprintf("%.3g", v)
}

// decimals returns the number of decimals of v at three digits.
func decimals(v float64) int {
	switch {
	case v == math.Trunc(v) || v >= 100:
		return 0
	case v >= 10:
		return 1
	}
	return 2
}
