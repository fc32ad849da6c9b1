package telemetry

import (
	"cmp"
	"encoding/json"
	"fmt"
	"math"
	"strings"
	"time"

	"skyserve/internal/service"
)

// Review is the controller's latest forecast and plan. The controller writes it to the store, and every
// balancer includes it in its snapshot.
type Review struct {
	// Token is the fencing token of the controller that wrote it.
	Token    uint64         `json:"token"`
	Forecast []LoadForecast `json:"forecast"`
	Plan     *PlanSummary   `json:"plan"`
	// PlanEvent is the time of the plan whose event describes the capacity of Plan: Plan itself, or the first of the
	// plans with the same capacity before it. It is zero where an older controller wrote the review.
	PlanEvent time.Time `json:"plan_event"`
	// Strategy is the value of autoscale.strategy at the time of the review; Targets are for the
	// time from From to Until.
	Strategy string            `json:"strategy"`
	From     time.Time         `json:"from"`
	Until    time.Time         `json:"until"`
	Targets  []PlannedCapacity `json:"targets"`
	// Prices are the prices that the plan is based on.
	Prices []Price `json:"prices"`
}

// Price is the on-demand price of one replica on a GPU type in a region, in USD per hour;
// the spot or reserved price if the GPU type is not offered on demand. Static machines have no price.
type Price struct {
	Region     service.Region `json:"region"`
	GPU        string         `json:"gpu"`
	USDPerHour float64        `json:"usd_per_hour"`
}

// Current reports whether the targets still apply. After Until they apply for at most the length of
// the plan: if there is no newer plan by then, planning fails repeatedly.
func (r *Review) Current(now time.Time) bool {
	return r != nil && now.Sub(r.Until) <= r.Until.Sub(r.From)
}

// PlannedCapacity is the planned capacity of one model in one region.
type PlannedCapacity struct {
	Model  string         `json:"model"`
	Region service.Region `json:"region"`
	Count  int            `json:"count"`
	// ReplicaTPS is the capacity of one replica, PeakTPS the planned load: uncached prompt
	// tokens per second.
	ReplicaTPS float64 `json:"replica_tps"`
	PeakTPS    float64 `json:"peak_tps"`
	// Replicas is the count by GPU and capacity type.
	Replicas []TargetReplicas `json:"replicas"`
	// StabilizationSeconds is how long replicas are kept for the highest load under the strategy
	// predictive; 0 = as the threshold rule of plan backtest keeps them.
	StabilizationSeconds float64 `json:"stabilization_s"`
	// Headroom is the least capacity under predictive, as a multiple of the level of the load in the last hour;
	// 0 = none.
	Headroom float64 `json:"headroom"`
	// StartUpSeconds is the time until a new replica is ready, as planned for.
	StartUpSeconds float64 `json:"start_up_s"`
	// OverloadTolerance is service.yaml's autoscale.overload_tolerance, 0..1.
	OverloadTolerance float64 `json:"overload_tolerance"`
}

// TargetReplicas is the planned number of replicas of one GPU and capacity type.
type TargetReplicas struct {
	// GPU and GPUs are the GPU type and count per replica; empty and 0 if the model states
	// none.
	GPU  string `json:"gpu"`
	GPUs int    `json:"gpus"`
	// Capacity is empty for machines that are not rented.
	Capacity service.CapacityType `json:"capacity"`
	Count    int                  `json:"count"`
}

// ReviewPrefix is the prefix of the store keys of reviews.
const ReviewPrefix = "review."

// ReviewKey returns the store key of a service's Review.
func ReviewKey(service string) string { return ReviewPrefix + service }

// LoadForecast is the forecast of one model's interactive load in one region:
// uncached prompt tokens a second.
type LoadForecast struct {
	Model  string         `json:"model"`
	Region service.Region `json:"region"`
	// Forecaster is the name of the forecaster.
	Forecaster string `json:"forecaster"`
	// At is the start of the first step, StepSeconds the length of each.
	At          time.Time `json:"at"`
	StepSeconds float64   `json:"step_s"`
	// MeanTPS is the expected load of each step; Lo90TPS and Hi90TPS are the limits of the
	// 90 % interval of its minutes, averaged.
	MeanTPS []float64 `json:"mean_tps"`
	Lo90TPS []float64 `json:"lo90_tps"`
	Hi90TPS []float64 `json:"hi90_tps"`
	// EarlierTPS is the load that earlier forecasts expected in each of the steps before At, oldest first, each by
	// the newest forecast made before the step; nil = unknown. There are at most MaxEarlierSteps.
	EarlierTPS []*float64 `json:"earlier_tps"`
	// Peak is the distribution of the greatest minute of the whole forecast.
	Peak Peak `json:"peak_tps"`
	// Deviation describes how the load deviates from this forecast; empty if it does not.
	Deviation string `json:"deviation"`
}

// MaxEarlierSteps is the maximum length of LoadForecast.EarlierTPS: six hours of steps of five minutes.
const MaxEarlierSteps = 72

// After sets EarlierTPS from the previous forecast of the same model and region. Forecasts whose steps have
// another length are not comparable.
func (f *LoadForecast) After(previous *LoadForecast) {
	f.EarlierTPS = []*float64{}
	if previous == nil || previous.StepSeconds != f.StepSeconds || f.StepSeconds <= 0 || f.At.Before(previous.At) {
		return
	}
	f.EarlierTPS = append(f.EarlierTPS, previous.EarlierTPS...)
	elapsed := int(math.Round(f.At.Sub(previous.At).Seconds() / f.StepSeconds))
	for i := range min(elapsed, MaxEarlierSteps+len(previous.MeanTPS)) {
		var expected *float64
		if i < len(previous.MeanTPS) {
			expected = &previous.MeanTPS[i]
		}
		f.EarlierTPS = append(f.EarlierTPS, expected)
	}
	f.EarlierTPS = f.EarlierTPS[max(len(f.EarlierTPS)-MaxEarlierSteps, 0):]
}

// MarshalJSON adds the former key of Deviation.
func (f LoadForecast) MarshalJSON() ([]byte, error) {
	type plain LoadForecast
	return json.Marshal(struct {
		plain
		OldDeviation string `json:"left"`
	}{plain(f), f.Deviation})
}

// UnmarshalJSON also reads the former key of Deviation, which older controllers store.
func (f *LoadForecast) UnmarshalJSON(data []byte) error {
	type plain LoadForecast
	var read struct {
		plain
		OldDeviation string `json:"left"`
	}
	if err := json.Unmarshal(data, &read); err != nil {
		return err
	}
	*f = LoadForecast(read.plain)
	f.Deviation = cmp.Or(read.Deviation, read.OldDeviation)
	return nil
}

// Peak is the distribution of the greatest value over a time.
type Peak struct {
	Mean float64 `json:"mean"`
	P05  float64 `json:"p05"`
	P50  float64 `json:"p50"`
	P90  float64 `json:"p90"`
	P95  float64 `json:"p95"`
	P99  float64 `json:"p99"`
}

// PlanSummary summarises the last plan.
type PlanSummary struct {
	At time.Time `json:"at"`
	// Status is optimal, feasible, infeasible or unknown.
	Status string `json:"status"`
	// Changes are the replica counts that the plan changes.
	Changes     []PlanChange `json:"changes"`
	CostPerHour PlanCost     `json:"cost_per_hour"`
	// Assumed lists the assumptions for unknown inputs, Infeasible the requirements that
	// cannot be met.
	Assumed    []string `json:"assumed"`
	Infeasible []string `json:"infeasible"`
	// BudgetPerHour is the service's budget in USD per hour; 0 = none. OverBudget lists the replicas that the
	// plan would add beyond it.
	BudgetPerHour float64  `json:"budget_per_hour"`
	OverBudget    []string `json:"over_budget"`
	// Error is the error of planning since At; empty without an error.
	Error string `json:"error"`
	// Waiting is the reason that there is no plan yet while the service starts; else empty.
	Waiting string `json:"waiting"`
}

// MarshalJSON adds the former key of OverBudget.
func (p PlanSummary) MarshalJSON() ([]byte, error) {
	type plain PlanSummary
	return json.Marshal(struct {
		plain
		OldOverBudget []string `json:"cut"`
	}{plain(p), p.OverBudget})
}

// UnmarshalJSON also reads the former key of OverBudget, which older controllers store.
func (p *PlanSummary) UnmarshalJSON(data []byte) error {
	type plain PlanSummary
	var read struct {
		plain
		OldOverBudget []string `json:"cut"`
	}
	if err := json.Unmarshal(data, &read); err != nil {
		return err
	}
	*p = PlanSummary(read.plain)
	if p.OverBudget == nil {
		p.OverBudget = read.OldOverBudget
	}
	return nil
}

// PlanCost is the cost of the service's replicas in USD per hour; nil = unknown.
type PlanCost struct {
	Current *float64 `json:"now"`
	Planned *float64 `json:"then"`
}

// PlanChange is the change of the replica count of one model, region and GPU type.
type PlanChange struct {
	Model  string         `json:"model"`
	Region service.Region `json:"region"`
	GPU    string         `json:"gpu"`
	// Capacity is the capacity type; empty if unknown.
	Capacity service.CapacityType `json:"capacity"`
	Current  int                  `json:"now"`
	Delta    int                  `json:"delta"`
	Planned  int                  `json:"then"`
	Reason   string               `json:"reason"`
}

// PlanLine returns the changes of the last plan in one line, such as "plan of 01:00: us +2 L4,
// eu -1 L4; $3.22/h -> $4.02/h", with its time in zone; empty without a plan.
func (s *Snapshot) PlanLine(zone *time.Location) string {
	p := s.Plan
	if p == nil {
		return ""
	}
	text := "no change"
	switch {
	case p.Status == "" && p.Waiting != "":
		return "planning: " + p.Waiting
	case p.Status == "" && p.Error != "":
		return "plan: " + p.Error
	case p.Status == "infeasible" || p.Status == "unknown":
		text = p.Status
		if len(p.Infeasible) > 0 {
			text += ": " + p.Infeasible[0]
		}
	case len(p.Changes) > 0:
		text = s.describeChanges()
	}
	if unmet := s.UnmetLine(); unmet != "" {
		text += "; " + unmet
	}
	if len(p.OverBudget) > 0 {
		text += "; not added because of the budget: " + strings.Join(p.OverBudget, ", ")
	}
	if p.Error != "" {
		text += "; later planning failed: " + strings.Join(strings.Fields(p.Error), " ")
	}
	return fmt.Sprintf("plan of %s: %s", p.At.In(zone).Format("15:04"), text)
}

// describeChanges lists the plan's changes, and the cost if there is one.
func (s *Snapshot) describeChanges() string {
	models := map[string]bool{}
	for _, c := range s.Plan.Changes {
		models[c.Model] = true
	}
	var words []string
	for _, c := range s.Plan.Changes {
		text := fmt.Sprintf("%s %+d ", c.Region.ShortName(), c.Delta)
		if c.Capacity != service.CapacityOnDemand && c.Capacity != "" { // on demand is the default
			text += string(c.Capacity) + " "
		}
		text += c.GPU
		if len(models) > 1 {
			text = c.Model + " " + text
		}
		words = append(words, text)
	}
	text := strings.Join(words, ", ")
	if c := s.Plan.CostPerHour; c.Current != nil && c.Planned != nil && (*c.Current != 0 || *c.Planned != 0) {
		text += fmt.Sprintf("; $%.2f/h -> $%.2f/h", *c.Current, *c.Planned)
	}
	return text
}

// PeakLine returns the 95th percentiles of the forecast peaks in one line, such as "forecast for the next 1h: peak p95
// us 3400, eu 120 uncached prompt tok/s"; empty without a forecast.
func (s *Snapshot) PeakLine() string {
	peaks := s.byRegion(func(f LoadForecast) string { return fmt.Sprintf("%.0f", f.Peak.P95) })
	if peaks == "" {
		return ""
	}
	f := s.Forecast[0]
	ahead := time.Duration(f.StepSeconds * float64(len(f.MeanTPS)) * float64(time.Second))
	return fmt.Sprintf("forecast for the next %s: peak p95 %s uncached prompt tok/s", service.FormatDuration(ahead.Round(time.Minute)), peaks)
}

// DeviationLine returns the loads that deviate from their forecasts in one line; empty if none
// does.
func (s *Snapshot) DeviationLine() string {
	deviations := s.byRegion(func(f LoadForecast) string { return f.Deviation })
	if deviations == "" {
		return ""
	}
	return "load deviates from forecast: " + deviations
}

// byRegion joins the texts that describe returns for the forecasts, each after its region, and after
// its model if there are several.
func (s *Snapshot) byRegion(describe func(LoadForecast) string) string {
	models := map[string]bool{}
	for _, f := range s.Forecast {
		models[f.Model] = true
	}
	var words []string
	for _, f := range s.Forecast {
		text := describe(f)
		if text == "" {
			continue
		}
		where := f.Region.ShortName()
		if len(models) > 1 {
			where = f.Model + " " + where
		}
		words = append(words, where+" "+text)
	}
	return strings.Join(words, ", ")
}
