package telemetry

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"skyserve/internal/service"
)

// Review is what the controller made of the service's load: it keeps the newest in
// the store, and every balancer shows it in its snapshot.
type Review struct {
	// Token is the fencing token of the controller that made it.
	Token    uint64         `json:"token"`
	Forecast []LoadForecast `json:"forecast"`
	Plan     *PlanSummary   `json:"plan"`
	// Strategy is the word of autoscale.strategy that carries the plan out; From and
	// Until bound the time that Targets are for.
	Strategy string    `json:"strategy"`
	From     time.Time `json:"from"`
	Until    time.Time `json:"until"`
	Targets  []Target  `json:"targets"`
	// Prices is what the replicas that it planned with are billed.
	Prices []Price `json:"prices"`
}

// Price is what one replica on a kind of GPU is billed in a region on demand, in USD
// an hour; on spot or reserved where it is never on demand. Machines of one's own have
// none.
type Price struct {
	Region     service.Region `json:"region"`
	GPU        string         `json:"gpu"`
	USDPerHour float64        `json:"usd_per_hour"`
}

// Holds tells whether what the review wants still counts: a plan that is older than
// twice its time says nothing any more, for something keeps a newer one from being made.
func (r *Review) Holds(now time.Time) bool {
	return r != nil && now.Sub(r.Until) <= r.Until.Sub(r.From)
}

// Target is what a plan wants of one model in one region.
type Target struct {
	Model  string         `json:"model"`
	Region service.Region `json:"region"`
	Count  int            `json:"count"`
	// ReplicaTPS is what one replica carries, PeakTPS the load that was planned for:
	// uncached prompt tokens a second.
	ReplicaTPS float64 `json:"replica_tps"`
	PeakTPS    float64 `json:"peak_tps"`
	// Replicas is the count by GPU and capacity type.
	Replicas []TargetReplicas `json:"replicas"`
}

// TargetReplicas is how many replicas a plan wants on one kind of GPU, paid for in one way.
type TargetReplicas struct {
	// GPU and GPUs are what each has of them; empty and 0 where the model states none.
	GPU  string `json:"gpu"`
	GPUs int    `json:"gpus"`
	// Capacity is empty where nothing is rented.
	Capacity service.CapacityType `json:"capacity"`
	Count    int                  `json:"count"`
}

// ReviewPrefix begins the keys of reviews in the store.
const ReviewPrefix = "review."

// ReviewKey is where a service's newest Review is kept in the store.
func ReviewKey(service string) string { return ReviewPrefix + service }

// LoadForecast is the forecast of one model's interactive load in one region:
// uncached prompt tokens a second.
type LoadForecast struct {
	Model  string         `json:"model"`
	Region service.Region `json:"region"`
	// Forecaster is the model that was used, as it calls itself.
	Forecaster string `json:"forecaster"`
	// At is when the first step begins, StepSeconds how long each is.
	At          time.Time `json:"at"`
	StepSeconds float64   `json:"step_s"`
	// MeanTPS is the expected load of each step; Lo90TPS and Hi90TPS are the ends of
	// the 90 % interval of its minutes, averaged.
	MeanTPS []float64 `json:"mean_tps"`
	Lo90TPS []float64 `json:"lo90_tps"`
	Hi90TPS []float64 `json:"hi90_tps"`
	// Peak is the greatest minute of the whole time.
	Peak Peak `json:"peak_tps"`
	// Left says how the load left this forecast; empty while it keeps to it.
	Left string `json:"left"`
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

// PlanSummary is the last proposal, in short.
type PlanSummary struct {
	At time.Time `json:"at"`
	// Status is optimal, feasible, infeasible or unknown.
	Status string `json:"status"`
	// Changes are the counts that would change.
	Changes     []PlanChange `json:"changes"`
	CostPerHour PlanCost     `json:"cost_per_hour"`
	// Assumed says in words what was not known, Infeasible what cannot be had.
	Assumed    []string `json:"assumed"`
	Infeasible []string `json:"infeasible"`
	// Error is why there is no newer one although there should be; empty when
	// nothing went wrong.
	Error string `json:"error"`
	// Waiting is what the first plan waits for while the service starts; empty otherwise.
	Waiting string `json:"waiting"`
}

// PlanCost is what the service's replicas are billed, in USD an hour; nil = unknown.
type PlanCost struct {
	Now  *float64 `json:"now"`
	Then *float64 `json:"then"`
}

// PlanChange is the count of one model in one region on one kind of GPU.
type PlanChange struct {
	Model  string         `json:"model"`
	Region service.Region `json:"region"`
	GPU    string         `json:"gpu"`
	// Capacity is the capacity type; empty where it is not known.
	Capacity service.CapacityType `json:"capacity"`
	Now      int                  `json:"now"`
	Delta    int                  `json:"delta"`
	Then     int                  `json:"then"`
	Reason   string               `json:"reason"`
}

// PlanLine says in a line what the last plan proposes, such as "plan 01:00: us +2
// L4, eu -1 L4; $3.22/h -> $4.02/h", its time in zone; empty without a plan.
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
		text = s.changesInWords()
	}
	if unmet := s.UnmetLine(); unmet != "" {
		text += "; " + unmet
	}
	if p.Error != "" {
		text += "; none since: " + p.Error
	}
	return fmt.Sprintf("plan %s: %s", p.At.In(zone).Format("15:04"), text)
}

// changesInWords lists the plan's changes, and the cost where there is one.
func (s *Snapshot) changesInWords() string {
	models := map[string]bool{}
	for _, c := range s.Plan.Changes {
		models[c.Model] = true
	}
	var words []string
	for _, c := range s.Plan.Changes {
		text := fmt.Sprintf("%s %+d ", c.Region.Place(), c.Delta)
		if c.Capacity != service.CapacityOnDemand && c.Capacity != "" { // on demand goes without saying
			text += string(c.Capacity) + " "
		}
		text += c.GPU
		if len(models) > 1 {
			text = c.Model + " " + text
		}
		words = append(words, text)
	}
	text := strings.Join(words, ", ")
	if c := s.Plan.CostPerHour; c.Now != nil && c.Then != nil && (*c.Now != 0 || *c.Then != 0) {
		text += fmt.Sprintf("; $%.2f/h -> $%.2f/h", *c.Now, *c.Then)
	}
	return text
}

// PeakLine says in a line which peaks are expected, such as "next 1h: peak us 3400,
// eu 120 tokens/s"; empty without a forecast.
func (s *Snapshot) PeakLine() string {
	peaks := s.byRegion(func(f LoadForecast) string { return fmt.Sprintf("%.0f", f.Peak.Mean) })
	if peaks == "" {
		return ""
	}
	f := s.Forecast[0]
	ahead := time.Duration(f.StepSeconds * float64(len(f.MeanTPS)) * float64(time.Second))
	text := strings.TrimSuffix(strings.TrimSuffix(ahead.Round(time.Minute).String(), "0s"), "0m")
	return fmt.Sprintf("next %s: peak %s tokens/s", cmp.Or(text, "0m"), peaks)
}

// LeftLine says in a line which loads left their forecasts; empty when none did.
func (s *Snapshot) LeftLine() string {
	left := s.byRegion(func(f LoadForecast) string { return f.Left })
	if left == "" {
		return ""
	}
	return "load deviates from forecast: " + left
}

// byRegion lists what say has to say of each forecast, after its region, and its
// model where there are several.
func (s *Snapshot) byRegion(say func(LoadForecast) string) string {
	models := map[string]bool{}
	for _, f := range s.Forecast {
		models[f.Model] = true
	}
	var words []string
	for _, f := range s.Forecast {
		text := say(f)
		if text == "" {
			continue
		}
		where := f.Region.Place()
		if len(models) > 1 {
			where = f.Model + " " + where
		}
		words = append(words, where+" "+text)
	}
	return strings.Join(words, ", ")
}
