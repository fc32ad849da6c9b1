package plan

import (
	"fmt"
	"time"

	"skyserve/forecast"
	"skyserve/internal/catalogue"
	"skyserve/internal/service"
)

// reserveStep is the interval over which load is averaged before its peak is computed.
const reserveStep = 5 * time.Minute

// CompareReservations compares reservations for the load of a history between two times; a zero time is the
// history's first or last. The options provide LocalShare, Gap, Effort, Interrupt, prices and notes. It fails when the history
// has no data in that period, and with ErrInfeasible or ErrNoCounts.
func CompareReservations(spec *service.Spec, h *forecast.History, from, to time.Time, o ReviewOptions) (*ReservedComparison, error) {
	r := review{spec: spec, options: o.WithDefaults(spec), assumptions: append([]string(nil), o.Notes...)}
	r.findOfferings()
	first, end := h.First, h.End()
	if !from.IsZero() {
		first = max(first, from.Unix()/60)
	}
	if !to.IsZero() {
		end = min(end, to.Unix()/60)
	}
	if steps := (end - first) * int64(time.Minute) / int64(reserveStep); steps < 1 {
		return nil, fmt.Errorf("comparing reservations for %s: history: must have at least %s between %s and %s; provide a longer history", spec.Name, forecast.ShortDuration(reserveStep), formatMinute(first), formatMinute(end))
	}
	p, reserved := r.onDemandProblem()
	load := r.averageLoads(h, first, end)
	if len(load[0][0]) == 0 {
		return nil, fmt.Errorf("comparing reservations for %s: the history has no data for its models and regions between %s and %s; provide a history of this service", spec.Name, formatMinute(first), formatMinute(end))
	}
	p.LoadTPS, p.LocalShare = load, r.options.LocalShare
	out, err := compareReservations(p, reserved, time.Unix(first*60, 0).UTC(), reserveStep, SolveOptions{Gap: r.options.Gap, Effort: r.options.Effort, Interrupt: r.options.Interrupt})
	if err != nil {
		return nil, fmt.Errorf("comparing reservations for %s: %w", spec.Name, err)
	}
	r.assume("each region serves at least %.0f %% of its own peak; maxima are ignored", 100*r.options.LocalShare)
	out.Assumed = append(out.Assumed, r.assumptions...)
	return out, nil
}

// onDemandProblem returns the problem with each GPU class at its on-demand price, without capacity types, and the
// reserved price of a replica on each.
func (r *review) onDemandProblem() (*Problem, []float64) {
	p := &Problem{Models: r.problem.Models, Regions: r.problem.Regions, ReplicaTPS: make([][]float64, len(r.problem.Models))}
	seen := map[gpuClass]bool{}
	var reserved []float64
	var classes []gpuClass
	for k, o := range r.offerings {
		if seen[o.gpuClass] {
			continue
		}
		seen[o.gpuClass] = true
		classes = append(classes, o.gpuClass)
		p.GPUs = append(p.GPUs, o.gpuClass.String())
		p.PricePerHour = append(p.PricePerHour, r.meanOnDemandPrice(k))
		reserved = append(reserved, r.reservationPrice(o.gpuClass, p.PricePerHour[len(p.PricePerHour)-1]))
		for i := range r.problem.Models {
			p.ReplicaTPS[i] = append(p.ReplicaTPS[i], r.problem.ReplicaTPS[i][k])
		}
	}
	for range r.problem.Models {
		p.Current, p.StartCostUSD = append(p.Current, make([][]int, len(p.Regions))), append(p.StartCostUSD, make([]float64, len(p.GPUs)))
	}
	for j := range p.Regions {
		row := make([]*int, len(classes))
		for k, c := range classes {
			if c.cloud != r.spec.Regions[j].Name.Cloud() { // a region has only the GPUs of its cloud
				row[k] = new(int)
			}
		}
		p.Capacity = append(p.Capacity, row)
		for i := range p.Current {
			p.Current[i][j] = make([]int, len(p.GPUs))
		}
	}
	return p, reserved
}

// meanOnDemandPrice returns the on-demand price of a replica on an offering's GPUs, the mean over the
// regions of its cloud.
func (r *review) meanOnDemandPrice(k int) float64 {
	onDemand := r.newPriceTable()
	for j, region := range r.spec.Regions {
		if region.Name.Cloud() == r.offerings[k].cloud {
			onDemand[j][k] = r.onDemandPrice(region.Name, r.offerings[k].gpuClass)
		}
	}
	return r.commonPrice(onDemand, k)
}

// reservationPrice returns the mean price of the service's reservations of a class, else a share of its
// on-demand price.
func (r *review) reservationPrice(c gpuClass, onDemand float64) float64 {
	var sum, n float64
	for j := range r.spec.Regions {
		region := &r.spec.Regions[j]
		if held := r.reservedReplicas(region, c); region.Name.Cloud() == c.cloud && held > 0 {
			if each := r.regionReservedPrice(region, c); each > 0 {
				sum, n = sum+each*float64(held), n+float64(held)
			}
		}
	}
	if n > 0 {
		r.assume("%s in %s: $%.4g per hour reserved, as set in regions[].reserved", c, c.cloud, sum/n)
		return sum / n
	}
	r.assume("%s in %s: reserved price unknown: assuming %.1f %% of the on-demand price, as for a p5.48xlarge reserved for three years", c, c.cloud, 100*catalogue.ReservedShare)
	return catalogue.ReservedShare * onDemand
}

// averageLoads returns the load by model, region and step; nil where none is known. Unknown load of a
// single model or region counts as no load.
func (r *review) averageLoads(h *forecast.History, first, end int64) [][][]float64 {
	per := int(reserveStep / time.Minute)
	steps := int(end-first) / per
	minutes := make([][][]float64, len(r.problem.Models))
	out := make([][][]float64, len(r.problem.Models))
	for i := range minutes {
		out[i] = make([][]float64, len(r.problem.Regions))
		for j := range r.problem.Regions {
			minutes[i] = append(minutes[i], r.arrivedLoad(h, i, j, first, end))
		}
	}
	lost := 0
	for s := range steps {
		if !anyKnown(minutes, s*per, (s+1)*per) {
			lost++
		}
		for i := range minutes {
			for j := range minutes[i] {
				out[i][j] = append(out[i][j], meanKnown(minutes[i][j][s*per:(s+1)*per]))
			}
		}
	}
	if lost == steps {
		for i := range out {
			for j := range out[i] {
				out[i][j] = nil
			}
		}
	} else if lost > 0 {
		r.assume("%d of %d steps have no data: they count as no load", lost, steps)
	}
	return out
}

func anyKnown(minutes [][][]float64, from, to int) bool {
	for i := range minutes {
		for j := range minutes[i] {
			if !allUnknown(minutes[i][j][from:to]) {
				return true
			}
		}
	}
	return false
}
