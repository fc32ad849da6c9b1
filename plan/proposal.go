package plan

import (
	"encoding/json"
	"fmt"
	"time"

	"skyserve/forecast"
)

// Proposal is a plan for people and tools. Unknown fields are nil.
type Proposal struct {
	At         *time.Time `json:"at"`
	Horizon    *string    `json:"horizon"`
	Forecaster *string    `json:"forecaster"`
	// TotalCostUSD is the cost that the plan minimises (Problem.Cost), in USD for the hour: with the costs of starts,
	// switches and egress, and without reserved capacity, which is paid anyway. LowerBoundUSD is a proven lower bound of
	// this cost for any plan, Gap their relative difference.
	TotalCostUSD  *float64 `json:"objective"`
	LowerBoundUSD *float64 `json:"bound"`
	Gap           *float64 `json:"gap"`
	// SolveMillis is the duration of solving; the caller measures it.
	SolveMillis float64         `json:"solve_ms"`
	Status      SolveStatus     `json:"status"`
	Changes     []ReplicaChange `json:"changes"`
	CostPerHour CostPerHour     `json:"cost_per_hour"`
	// Infeasible lists the constraints that cannot be met, Assumed the assumptions for unknown
	// values.
	Infeasible []string `json:"infeasible"`
	Assumed    []string `json:"assumed"`
	// BudgetPerHour is the service's budget for all its machines, in USD per hour; 0 = none. OverBudget lists the
	// replicas that the plan would add beyond it.
	BudgetPerHour float64  `json:"budget_per_hour"`
	OverBudget    []string `json:"over_budget"`
}

// MarshalJSON adds the former key of OverBudget.
func (p Proposal) MarshalJSON() ([]byte, error) {
	type plain Proposal
	return json.Marshal(struct {
		plain
		OldOverBudget []string `json:"cut"`
	}{plain(p), p.OverBudget})
}

// CostPerHour is the billed price of the replicas, in USD per hour, without start-up costs. Reserved capacity is
// included whether used or not.
type CostPerHour struct {
	Current *float64 `json:"now"`
	Planned *float64 `json:"then"`
}

// ReplicaChange is the change of one model in one region on one GPU and capacity type.
type ReplicaChange struct {
	Model  string `json:"model"`
	Region string `json:"region"`
	GPU    string `json:"gpu"`
	// CapacityType is the planned capacity type; nil if unknown, as in a problem that was read from a file.
	CapacityType *string `json:"capacity"`
	Current      int     `json:"now"`
	Delta        int     `json:"delta"`
	Planned      int     `json:"then"`
	// PlannedPeakTPS is the peak load of the model in the region that the plan provides for, in uncached prompt
	// tokens a second: the chosen quantile of the forecast peak, plus the planned share of batch load and the backlog
	// of accepted batches.
	PlannedPeakTPS float64 `json:"forecast_peak_tps"`
	// CapacityTPS is the planned throughput of the replicas of this change.
	CapacityTPS float64 `json:"capacity_tps"`
	// Utilisation is the region's peak divided by its whole capacity for the model. Above 1, the
	// excess goes to other regions. Nil without capacity.
	Utilisation *float64 `json:"utilisation"`
	// Donate is the number of replicas that are donated to other work instead of removed. Reclaim is the number of new
	// replicas that were donated and are reclaimed.
	Donate  int `json:"donate"`
	Reclaim int `json:"reclaim"`
	// SwitchedVMs is the number of new replicas on VMs that other models free.
	SwitchedVMs int `json:"switched"`
	// PeakAt is the time of the planned peak; nil when unknown.
	PeakAt *time.Time `json:"peak_at"`
	// ForwardedTPS is the part of its peak that the region sends to others, ReceivedTPS the maximum that it
	// serves for others; both over all its replicas of the model.
	ForwardedTPS float64 `json:"forwarded_tps"`
	ReceivedTPS  float64 `json:"received_tps"`
	// CostChangePerHour is the change of the billed price of these replicas, in USD per hour; below 0
	// for a saving.
	CostChangePerHour float64 `json:"cost_change_per_hour"`
	// Binding names the constraints that keep the count from being lower, or higher.
	Binding []string `json:"binding"`
	Reason  string   `json:"reason"`
}

// MarshalJSON adds the former keys of ForwardedTPS and ReceivedTPS.
func (c ReplicaChange) MarshalJSON() ([]byte, error) {
	type plain ReplicaChange
	return json.Marshal(struct {
		plain
		OldForwardedTPS float64 `json:"sent_tps"`
		OldReceivedTPS  float64 `json:"taken_tps"`
	}{plain(c), c.ForwardedTPS, c.ReceivedTPS})
}

// ProposalContext is the part of a Proposal beyond the problem and its solution. The zero value is for a
// problem that was read from a file.
type ProposalContext struct {
	At         time.Time // zero = unknown
	Horizon    time.Duration
	Forecaster string
	// Donate contains the regions whose excess replicas are donated, not removed.
	Donate map[string]bool
	// Donated is the number of donated replicas by model, region and GPU; nil = none.
	Donated [][][]int
	// DefaultCapacityType is the capacity type of offerings without one; empty = unknown.
	DefaultCapacityType string
	// GPUNames is the GPU of each offering (index k), where the problem's own names also contain the capacity
	// type. Offerings with the same name and capacity type are shown as one. Nil = the problem's
	// names.
	GPUNames []string
	// Billed is the billed price of a replica in region j on GPU k, in USD per hour, where it differs from the
	// problem's; nil = Problem.RegionPricePerHour, or else PricePerHour.
	Billed  [][]float64
	Assumed []string
	// Budget and OverBudget are Proposal.BudgetPerHour and Proposal.OverBudget.
	Budget     float64
	OverBudget []string
}

// Propose converts a result to a proposal.
func Propose(p *Problem, r Solution, c ProposalContext) Proposal {
	out := Proposal{
		Horizon: optional(forecast.ShortDuration(c.Horizon)), Forecaster: optional(c.Forecaster), Status: r.Status, Changes: []ReplicaChange{},
		Infeasible: append([]string{}, r.Infeasible...), Assumed: append([]string{}, c.Assumed...),
		BudgetPerHour: c.Budget, OverBudget: append([]string{}, c.OverBudget...),
	}
	if !c.At.IsZero() {
		out.At = &c.At
	}
	now := c.billed(p, p.Current)
	out.CostPerHour.Current = &now
	if r.Status != StatusInfeasible {
		out.LowerBoundUSD = &r.Bound
	}
	if r.Counts == nil {
		return out
	}
	then := c.billed(p, r.Counts)
	out.TotalCostUSD, out.Gap, out.CostPerHour.Planned = &r.Objective, &r.Gap, &then
	if len(c.OverBudget) > 0 { // the bound is of a plan without the budget
		cost := p.Cost(r.Counts)
		out.TotalCostUSD, out.Gap, out.LowerBoundUSD, out.Status = &cost, nil, nil, StatusFeasible
	}
	w := reasonWriter{Problem: p, ProposalContext: c, x: r.Counts, constraints: newConstraintChecker(p)}
	for i := range p.Models {
		w.flows = p.flows(r.Counts, i)
		for j := range p.Regions {
			for _, offerings := range w.offeringGroups(i, j) {
				out.Changes = append(out.Changes, w.changeOf(i, j, offerings))
			}
		}
	}
	return out
}

// Changed reports whether the proposal changes any count.
func (p Proposal) Changed() bool {
	for _, c := range p.Changes {
		if c.Delta != 0 {
			return true
		}
	}
	return false
}

// optional returns nil for the empty string, which means unknown.
func optional(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}

// billed returns the billed price of counts x, in USD per hour. Reserved capacity is billed whole.
func (c ProposalContext) billed(p *Problem, x [][][]int) float64 {
	var sum float64
	for j := range p.Regions {
		for k := range p.GPUs {
			count := 0
			for i := range x {
				count += x[i][j][k]
			}
			if p.Reserved(k) {
				count = limitOr(p.Capacity, j, k, count)
			}
			sum += c.price(p, j, k) * float64(count)
		}
	}
	return sum
}

// price returns the billed price of a replica on GPU k in region j.
func (c ProposalContext) price(p *Problem, j, k int) float64 {
	switch {
	case c.Billed != nil:
		return c.Billed[j][k]
	case p.RegionPricePerHour != nil:
		return p.RegionPricePerHour[j][k]
	}
	return p.PricePerHour[k]
}

// regionThroughput returns the throughput of counts x of model i in region j.
func (p *Problem) regionThroughput(x [][][]int, i, j int) float64 { return p.Throughput(i, x[i][j]) }

// bindingRow is a constraint that keeps a number of replicas from being lower, or higher.
type bindingRow struct {
	name  string // one of the names below, or a demand
	limit int    // the limit of rowMin, rowMax and rowCapacity
}

// The names of the constraints with a limit.
const (
	rowMin      = "min"
	rowMax      = "max"
	rowCapacity = "capacity"
)

// limitWords describe these constraints in a reason.
var limitWords = map[string]string{rowMin: "the minimum of", rowMax: "the maximum of", rowCapacity: "the offering's limit of"}

// String returns the element of ReplicaChange.Binding.
func (b bindingRow) String() string {
	if limitWords[b.name] == "" {
		return b.name
	}
	return fmt.Sprintf("%s %d", b.name, b.limit)
}

// bindingRows returns the constraints that one replica fewer, or one more, of model i in region j on GPU k would violate.
func (p *Problem) bindingRows(x [][][]int, i, j, k int) (out []bindingRow) {
	count, used := 0, 0
	for _, n := range x[i][j] {
		count += n
	}
	for m := range x {
		used += x[m][j][k]
	}
	tps := p.ReplicaTPS[i][k]
	if x[i][j][k] > 0 {
		if !meetsNeed(p.regionThroughput(x, i, j)-tps, p.LocalDemand(i, j)) {
			out = append(out, bindingRow{name: "local demand"})
		}
		var all float64
		for r := range p.Regions {
			all += p.regionThroughput(x, i, r)
		}
		if !meetsNeed(all-tps, p.GlobalDemand(i)) {
			out = append(out, bindingRow{name: "demand over all regions"})
		}
		if minimum := limitOr(p.Min, i, j, 0); count <= minimum {
			out = append(out, bindingRow{rowMin, minimum})
		}
	}
	if maximum := limitOr(p.Max, i, j, unlimited); count >= maximum {
		out = append(out, bindingRow{rowMax, maximum})
	}
	if limit := limitOr(p.Capacity, j, k, unlimited); used >= limit {
		out = append(out, bindingRow{rowCapacity, limit})
	}
	return out
}
