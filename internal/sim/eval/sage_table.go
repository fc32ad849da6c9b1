package eval

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"skyserve/forecast"
	"skyserve/internal/printable"
	"skyserve/plan"
)

// SageSummary is one strategy and case over the seeds, by model.
type SageSummary struct {
	Strategy string             `json:"strategy"`
	Case     string             `json:"case,omitempty"`
	Models   []SageModelSummary `json:"models"`
}

// SageModelSummary holds the mean over the seeds and its spread.
type SageModelSummary struct {
	Model  string       `json:"model"`
	Mean   SageFigures  `json:"mean"`
	Spread *SageFigures `json:"spread"` // standard deviation; null for one seed
}

// SageFigures are the figures for comparing strategies. Figures that were not measured are null.
type SageFigures struct {
	InstanceHours        float64  `json:"instance_hours"`
	GPUHours             float64  `json:"gpu_hours"`
	WastedInstanceHours  float64  `json:"wasted_instance_hours"`
	WastedGPUHours       float64  `json:"wasted_gpu_hours"`
	DonatedInstanceHours float64  `json:"donated_instance_hours"`
	OwedInstanceHours    float64  `json:"owed_instance_hours"` // for the deferred requests that wait at the end
	OwedGPUHours         float64  `json:"owed_gpu_hours"`
	TTFTP75Fast          *float64 `json:"iw_f_ttft_p75_ms"`
	TTFTP95Fast          *float64 `json:"iw_f_ttft_p95_ms"`
	TTFTP75Normal        *float64 `json:"iw_n_ttft_p75_ms"`
	TTFTP95Normal        *float64 `json:"iw_n_ttft_p95_ms"`
	ViolationsFast       *float64 `json:"iw_f_sla_violations"`
	ViolationsNormal     *float64 `json:"iw_n_sla_violations"`
	ViolationsDeferred   *float64 `json:"niw_sla_violations"`
	DeferredP95          *float64 `json:"niw_e2e_p95_ms"`
	Starts               float64  `json:"starts"`
	Redeployed           float64  `json:"redeployed"`
	Launched             float64  `json:"launched"`
	Rerouted             float64  `json:"rerouted"`         // share of all requests
	Waiting              float64  `json:"waiting_requests"` // over all models, at the end
}

// fields returns the optional figures; nil = not measured.
func (f *SageFigures) fields() []**float64 {
	return []**float64{
		&f.TTFTP75Fast, &f.TTFTP95Fast, &f.TTFTP75Normal, &f.TTFTP95Normal, &f.ViolationsFast, &f.ViolationsNormal, &f.ViolationsDeferred, &f.DeferredP95,
	}
}

func (f *SageFigures) sums() []*float64 {
	return []*float64{
		&f.InstanceHours, &f.GPUHours, &f.WastedInstanceHours, &f.WastedGPUHours, &f.DonatedInstanceHours, &f.OwedInstanceHours, &f.OwedGPUHours,
		&f.Starts, &f.Redeployed, &f.Launched, &f.Rerouted, &f.Waiting,
	}
}

// sageFigures returns the figures of a model's row.
func sageFigures(row *SageRow, m *SageModelRow) SageFigures {
	f := SageFigures{
		InstanceHours: m.InstanceHours, GPUHours: m.GPUHours, WastedInstanceHours: m.WastedInstanceHours, WastedGPUHours: m.WastedGPUHours,
		DonatedInstanceHours: m.DonatedInstanceHours, OwedInstanceHours: m.OwedInstanceHours, OwedGPUHours: m.OwedGPUHours, Starts: float64(m.Starts), Redeployed: float64(m.Redeployed), Launched: float64(m.Launched),
		Waiting: float64(row.Waiting),
	}
	fast, normal, deferred := &m.Tiers[0], &m.Tiers[1], &m.Tiers[2]
	f.ViolationsFast, f.ViolationsNormal, f.ViolationsDeferred = fast.Violations, normal.Violations, deferred.Violations
	if fast.TTFT != nil {
		f.TTFTP75Fast, f.TTFTP95Fast = &fast.TTFT.P75, &fast.TTFT.P95
	}
	if normal.TTFT != nil {
		f.TTFTP75Normal, f.TTFTP95Normal = &normal.TTFT.P75, &normal.TTFT.P95
	}
	if deferred.E2E != nil {
		f.DeferredP95 = &deferred.E2E.P95
	}
	if all := fast.Requests + normal.Requests + deferred.Requests; all > 0 {
		f.Rerouted = float64(fast.Reroutes+normal.Reroutes+deferred.Reroutes) / float64(all)
	}
	return f
}

// summariseSage aggregates the seeds of each strategy and case.
func summariseSage(rows []SageRow) []SageSummary {
	var out []SageSummary
	for from := 0; from < len(rows); {
		to := from + 1
		for to < len(rows) && rows[to].Seed > rows[to-1].Seed {
			to++
		}
		s := SageSummary{Strategy: rows[from].Strategy, Case: rows[from].Case}
		for m := range rows[from].Models {
			var seeds []SageFigures
			for i := from; i < to; i++ {
				seeds = append(seeds, sageFigures(&rows[i], &rows[i].Models[m]))
			}
			s.Models = append(s.Models, aggregateSeeds(rows[from].Models[m].Model, seeds))
		}
		out = append(out, s)
		from = to
	}
	return out
}

// aggregateSeeds returns the mean and spread of figures; a figure unknown for any seed is unknown.
func aggregateSeeds(model string, seeds []SageFigures) SageModelSummary {
	out := SageModelSummary{Model: model}
	spread := &SageFigures{}
	each := func(get func(*SageFigures) *float64, to, deviationTo func(float64)) {
		var values []float64
		for i := range seeds {
			v := get(&seeds[i])
			if v == nil {
				return
			}
			values = append(values, *v)
		}
		to(mean(values))
		deviationTo(deviation(values))
	}
	for k := range out.Mean.sums() {
		each(func(f *SageFigures) *float64 { return f.sums()[k] },
			func(v float64) { *out.Mean.sums()[k] = v }, func(v float64) { *spread.sums()[k] = v })
	}
	for k := range out.Mean.fields() {
		each(func(f *SageFigures) *float64 { return *f.fields()[k] },
			func(v float64) { *out.Mean.fields()[k] = &v }, func(v float64) { *spread.fields()[k] = &v })
	}
	if len(seeds) > 1 {
		out.Spread = spread
	}
	return out
}

// sageColumn is a table column: its heading and how it formats a model with a strategy.
type sageColumn struct {
	head string
	cell func(s *SageSummary, m *SageModelSummary) string
}

// WriteTable prints means over the seeds with their spread, in one block per model.
func (r *SageReport) WriteTable(w io.Writer) error {
	if _, err := fmt.Fprintf(w, "%s: %s\n%s\n", r.Scenario, r.Title, r.basis()); err != nil {
		return err
	}
	t := printable.NewTable(w)
	header, rows := r.table()
	t.Row(header...)
	for _, row := range rows {
		t.Row(row...)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	for _, note := range r.notes() {
		if _, err := fmt.Fprintln(w, note); err != nil {
			return err
		}
	}
	return nil
}

// basis describes the parameters common to all runs in one line.
func (r *SageReport) basis() string {
	c := &r.Constants
	seeds := seedRange(r.Rows[0].Seed, len(r.Rows)/len(r.Summary))
	load := "a generated week"
	if c.Trace != "" {
		load = c.Trace
	}
	return fmt.Sprintf("%s from hour %.0f for %.0f h, %s, %d VMs per model and region, at least %d replicas; %s%s",
		load, c.FromHours, c.DurationHours, strings.Join(c.Regions, ", "), c.VMs, c.Min, seeds, r.planning())
}

// planning describes the planner's parameters, if a strategy follows a plan.
func (r *SageReport) planning() string {
	p := &r.Constants.Planner
	if !slices.ContainsFunc(r.Summary, func(s SageSummary) bool { return s.Strategy != "fixed" && plan.UsesPlan(s.Strategy) }) {
		return ""
	}
	return fmt.Sprintf("; plan horizon %s: forecaster %s, %s peak over %s steps, epsilon %g", forecast.ShortDuration(time.Duration(p.HorizonSeconds*1e9)),
		p.Forecaster, p.Peak, forecast.ShortDuration(time.Duration(p.StepSeconds*1e9)), p.Epsilon)
}

// table returns the report's header and cells.
func (r *SageReport) table() (header []string, rows [][]string) {
	for _, c := range r.columns {
		header = append(header, c.head)
	}
	for m := range r.Constants.Models {
		for i := range r.Summary {
			var cells []string
			for _, c := range r.columns {
				cells = append(cells, c.cell(&r.Summary[i], &r.Summary[i].Models[m]))
			}
			rows = append(rows, cells)
		}
	}
	return header, rows
}

// notes summarise all models, and the deferred work remaining at the end.
func (r *SageReport) notes() []string {
	var out []string
	firstHours, firstGPUs := r.Summary[0].hours()
	for i := range r.Summary {
		s := &r.Summary[i]
		hours, gpus := s.hours()
		text := fmt.Sprintf("%s: %.1f instance-hours in total, %.1f of them owed", s.name(), hours, s.owed())
		if i > 0 && firstHours > 0 {
			text += fmt.Sprintf(" (%+.1f%%; GPU-hours %+.1f%%", 100*(hours/firstHours-1), 100*(gpus/firstGPUs-1))
			if p := r.paperOf(s, &SageModelSummary{}); p != nil && p.GPUHoursSaved != nil {
				text += fmt.Sprintf(", paper %+.1f%%", -100**p.GPUHoursSaved)
			}
			text += ")"
		}
		text += fmt.Sprintf(", %.0f deferred requests remain at the end", s.Models[0].Mean.Waiting)
		if late := r.highestLate(s); late != nil {
			text += fmt.Sprintf(", at most %.2f%% of a model's fast requests late in any seed", 100**late)
		}
		out = append(out, text)
	}
	return out
}

// hours returns the instance-hours and GPU-hours of all models, with those owed for the deferred requests that
// wait at the end.
func (s *SageSummary) hours() (instances, gpus float64) {
	for i := range s.Models {
		instances += s.Models[i].Mean.InstanceHours + s.Models[i].Mean.OwedInstanceHours
		gpus += s.Models[i].Mean.GPUHours + s.Models[i].Mean.OwedGPUHours
	}
	return instances, gpus
}

// owed returns the instance-hours owed by all models.
func (s *SageSummary) owed() float64 {
	sum := 0.0
	for i := range s.Models {
		sum += s.Models[i].Mean.OwedInstanceHours
	}
	return sum
}

// highestLate returns the highest share of late IW-F requests of any model and seed; nil without requests.
func (r *SageReport) highestLate(s *SageSummary) *float64 {
	var top *float64
	for i := range r.Rows {
		row := &r.Rows[i]
		if row.Strategy != s.Strategy || row.Case != s.Case {
			continue
		}
		for m := range row.Models {
			if v := row.Models[m].Tiers[0].Violations; v != nil && (top == nil || *v > *top) {
				top = v
			}
		}
	}
	return top
}

// name returns a summary's case or, without one, its strategy.
func (s *SageSummary) name() string {
	if s.Case != "" {
		return s.Case
	}
	return s.Strategy
}

// withSpread formats a mean with its spread over the seeds.
func withSpread(m *SageModelSummary, format string, unit float64, get func(*SageFigures) *float64) string {
	v := get(&m.Mean)
	if v == nil {
		return "-"
	}
	text := fmt.Sprintf(format, *v/unit)
	if m.Spread != nil {
		text += " ±" + fmt.Sprintf(format, *get(m.Spread)/unit)
	}
	return text
}

func figureColumn(head, format string, unit float64, get func(*SageFigures) *float64) sageColumn {
	return sageColumn{head, func(_ *SageSummary, m *SageModelSummary) string { return withSpread(m, format, unit, get) }}
}

// modelColumn and strategyColumn identify the row.
func modelColumn() sageColumn {
	return sageColumn{"MODEL", func(_ *SageSummary, m *SageModelSummary) string { return m.Model }}
}

func strategyColumn(head string) sageColumn {
	return sageColumn{head, func(s *SageSummary, _ *SageModelSummary) string { return s.name() }}
}

// paperOf returns the paper's values for a strategy, or case, and a model.
func (r *SageReport) paperOf(s *SageSummary, m *SageModelSummary) *SagePaper {
	i := slices.IndexFunc(r.Paper, func(p SagePaper) bool { return p.Strategy == s.name() && p.Model == m.Model })
	if i < 0 {
		return nil
	}
	return &r.Paper[i]
}

// hoursColumn shows instance-hours, with the paper's value in brackets.
func hoursColumn(r *SageReport) sageColumn {
	return sageColumn{"INSTANCE-HOURS", func(s *SageSummary, m *SageModelSummary) string {
		text := withSpread(m, "%.1f", 1, func(f *SageFigures) *float64 { return &f.InstanceHours })
		if p := r.paperOf(s, m); p != nil && p.InstanceHours != nil {
			text += fmt.Sprintf(" (%.4g)", *p.InstanceHours)
		}
		return text
	}}
}

// owedColumn shows the instance-hours for the deferred requests that wait at the end.
func owedColumn() sageColumn {
	return figureColumn("OWED H", "%.1f", 1, func(f *SageFigures) *float64 { return &f.OwedInstanceHours })
}

// versusFirst shows instance-hours, with those owed, relative to the first row.
func versusFirst(r *SageReport) sageColumn {
	return sageColumn{"VS " + strings.ToUpper(r.Summary[0].name()), func(s *SageSummary, m *SageModelSummary) string {
		i := slices.IndexFunc(r.Summary[0].Models, func(o SageModelSummary) bool { return o.Model == m.Model })
		first := r.Summary[0].Models[i].Mean.InstanceHours + r.Summary[0].Models[i].Mean.OwedInstanceHours
		if s.name() == r.Summary[0].name() || first == 0 {
			return "-"
		}
		text := fmt.Sprintf("%+.1f%%", 100*((m.Mean.InstanceHours+m.Mean.OwedInstanceHours)/first-1))
		if p, q := r.paperOf(s, m), r.paperOf(&r.Summary[0], m); p != nil && q != nil && p.InstanceHours != nil && q.InstanceHours != nil {
			text += fmt.Sprintf(" (%+.1f%%)", 100*(*p.InstanceHours / *q.InstanceHours - 1))
		}
		return text
	}}
}

func dayColumns(r *SageReport) []sageColumn {
	head := "STRATEGY"
	if r.Summary[0].Case != "" {
		head = "POOLS"
	}
	return []sageColumn{
		modelColumn(), strategyColumn(head), hoursColumn(r), owedColumn(), versusFirst(r),
		figureColumn("STARTING H", "%.2f", 1, func(f *SageFigures) *float64 { return &f.WastedInstanceHours }),
		figureColumn("DONATED H", "%.0f", 1, func(f *SageFigures) *float64 { return &f.DonatedInstanceHours }),
		figureColumn("FAST TTFT P95 S", "%.2f", 1000, func(f *SageFigures) *float64 { return f.TTFTP95Fast }),
		figureColumn("FAST SLO MISS", "%.2f%%", 0.01, func(f *SageFigures) *float64 { return f.ViolationsFast }),
		figureColumn("NORMAL SLO MISS", "%.2f%%", 0.01, func(f *SageFigures) *float64 { return f.ViolationsNormal }),
		figureColumn("DEFERRED SLO MISS", "%.2f%%", 0.01, func(f *SageFigures) *float64 { return f.ViolationsDeferred }),
		figureColumn("DEFERRED E2E P95 H", "%.1f", 3.6e6, func(f *SageFigures) *float64 { return f.DeferredP95 }),
		figureColumn("REROUTED", "%.1f%%", 0.01, func(f *SageFigures) *float64 { return &f.Rerouted }),
	}
}

// scarceColumns add the origin of replicas.
func scarceColumns(r *SageReport) []sageColumn {
	return append(dayColumns(r)[:6],
		figureColumn("STARTS", "%.0f", 1, func(f *SageFigures) *float64 { return &f.Starts }),
		figureColumn("REDEPLOYED", "%.0f", 1, func(f *SageFigures) *float64 { return &f.Redeployed }),
		figureColumn("NEW VMS", "%.0f", 1, func(f *SageFigures) *float64 { return &f.Launched }),
		figureColumn("FAST TTFT P95 S", "%.2f", 1000, func(f *SageFigures) *float64 { return f.TTFTP95Fast }),
		figureColumn("FAST SLO MISS", "%.2f%%", 0.01, func(f *SageFigures) *float64 { return f.ViolationsFast }),
	)
}

func burstColumns(r *SageReport) []sageColumn {
	of := func(s *SageSummary, get func(*SageRow) *float64) (values []float64, all bool) {
		all = true
		for i := range r.Rows {
			if row := &r.Rows[i]; row.Strategy == s.Strategy && row.Case == s.Case {
				if v := get(row); v != nil {
					values = append(values, *v)
				} else {
					all = false
				}
			}
		}
		return values, all
	}
	return []sageColumn{
		strategyColumn("STRATEGY"),
		{"PEAK UTILISATION", func(s *SageSummary, _ *SageModelSummary) string {
			peaks, _ := of(s, func(row *SageRow) *float64 { return &row.Burst.PeakUtilisation })
			return fmt.Sprintf("%.0f%%", 100*mean(peaks))
		}},
		{"RECOVERY (<70%)", func(s *SageSummary, _ *SageModelSummary) string {
			times, all := of(s, func(row *SageRow) *float64 { return row.Burst.RecoverySeconds })
			if !all {
				return fmt.Sprintf("not recovered in %d of %d", len(r.Rows)/len(r.Summary)-len(times), len(r.Rows)/len(r.Summary))
			}
			return fmt.Sprintf("%.0f min", mean(times)/60)
		}},
		{"RECOVERED IN BURST", func(s *SageSummary, _ *SageModelSummary) string {
			inside, _ := of(s, func(row *SageRow) *float64 {
				if row.Burst.RecoveredInBurst {
					return row.Burst.RecoverySeconds
				}
				return nil
			})
			return fmt.Sprintf("%d of %d", len(inside), len(r.Rows)/len(r.Summary))
		}},
		hoursColumn(r),
		owedColumn(),
		figureColumn("FAST TTFT P75 S", "%.2f", 1000, func(f *SageFigures) *float64 { return f.TTFTP75Fast }),
		figureColumn("P95", "%.1f", 1000, func(f *SageFigures) *float64 { return f.TTFTP95Fast }),
		figureColumn("FAST SLO MISS", "%.1f%%", 0.01, func(f *SageFigures) *float64 { return f.ViolationsFast }),
		figureColumn("NORMAL SLO MISS", "%.1f%%", 0.01, func(f *SageFigures) *float64 { return f.ViolationsNormal }),
		figureColumn("REROUTED", "%.1f%%", 0.01, func(f *SageFigures) *float64 { return &f.Rerouted }),
	}
}

func tierColumns(r *SageReport) []sageColumn {
	beside := func(head, format string, unit float64, get func(*SageFigures) *float64, paper func(*SagePaper) *float64) sageColumn {
		return sageColumn{head, func(s *SageSummary, m *SageModelSummary) string {
			text := withSpread(m, format, unit, get)
			if p := r.paperOf(s, m); p != nil && paper(p) != nil {
				text += fmt.Sprintf(" (%.3g)", *paper(p)/unit)
			}
			return text
		}}
	}
	return []sageColumn{
		strategyColumn("ORDER"),
		beside("FAST TTFT P75 S", "%.2f", 1000, func(f *SageFigures) *float64 { return f.TTFTP75Fast }, func(p *SagePaper) *float64 { return p.TTFTP75Fast }),
		beside("NORMAL TTFT P75 S", "%.2f", 1000, func(f *SageFigures) *float64 { return f.TTFTP75Normal }, func(p *SagePaper) *float64 { return p.TTFTP75Normal }),
		beside("FAST SLO MISS %", "%.1f", 0.01, func(f *SageFigures) *float64 { return f.ViolationsFast }, func(p *SagePaper) *float64 { return p.ViolationsFast }),
		beside("NORMAL SLO MISS %", "%.1f", 0.01, func(f *SageFigures) *float64 { return f.ViolationsNormal }, func(p *SagePaper) *float64 { return p.ViolationsNormal }),
	}
}
