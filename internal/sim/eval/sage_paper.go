package eval

import "encoding/json"

// SagePaper holds the values that SageServe's paper reports for a strategy or case and a model. Values
// that it does not report are null.
type SagePaper struct {
	// Strategy is a strategy or a case.
	Strategy         string   `json:"strategy"`
	Model            string   `json:"model,omitempty"` // empty = all models
	InstanceHours    *float64 `json:"instance_hours,omitempty"`
	TTFTP75Fast      *float64 `json:"iw_f_ttft_p75_ms,omitempty"`
	TTFTP75Normal    *float64 `json:"iw_n_ttft_p75_ms,omitempty"`
	ViolationsFast   *float64 `json:"iw_f_sla_violations,omitempty"`
	ViolationsNormal *float64 `json:"iw_n_sla_violations,omitempty"`
	// GPUHoursSaved is the saving relative to the reactive strategy's GPU-hours, over all models.
	GPUHoursSaved *float64 `json:"gpu_hours_saved,omitempty"`
}

// MarshalJSON adds the former key of Strategy.
func (p SagePaper) MarshalJSON() ([]byte, error) {
	type plain SagePaper
	return json.Marshal(struct {
		plain
		OldStrategy string `json:"of"`
	}{plain(p), p.Strategy})
}

func paperHours(of, model string, hours float64) SagePaper {
	return SagePaper{Strategy: of, Model: model, InstanceHours: &hours}
}

// dayPaper returns figure 11: Llama 2 on the peak day, over three regions.
func dayPaper() []SagePaper {
	return []SagePaper{
		paperHours("reactive", "llama2-70b", 362.25), paperHours("lt-i", "llama2-70b", 274.5),
		paperHours("lt-u", "llama2-70b", 291), paperHours("lt-ua", "llama2-70b", 277.5),
	}
}

// tracePaper returns section 7.2.7: Llama 2 on a peak day of the authors' published trace of November
// 2024.
func tracePaper() []SagePaper {
	return []SagePaper{
		paperHours("reactive", "llama2-70b", 302), paperHours("lt-i", "llama2-70b", 227),
		paperHours("lt-u", "llama2-70b", 248), paperHours("lt-ua", "llama2-70b", 233),
	}
}

// savedPaper returns the saving of LT-UA relative to reactive in appendix A.
func savedPaper(share float64) []SagePaper {
	return []SagePaper{{Strategy: "lt-ua", GPUHoursSaved: &share}}
}

// siloPaper returns figure 8: a Tuesday in one region.
func siloPaper() []SagePaper {
	var out []SagePaper
	for _, p := range []struct {
		model           string
		unified, siloed float64
	}{{"bloom-176b", 148, 199.2}, {"llama2-70b", 96.8, 137.2}, {"llama3.1-8b", 53, 101}, {"llama3.2-3b", 53, 101}} {
		out = append(out, paperHours("unified", p.model, p.unified), paperHours("siloed", p.model, p.siloed))
	}
	return out
}

// tierPaper returns figure 15.
func tierPaper() []SagePaper {
	var out []SagePaper
	for _, p := range []struct {
		order                              string
		fast, normal, fastLate, normalLate float64
	}{{"fcfs", 5600, 5600, .45, .25}, {"edf", 2400, 6100, .31, .34}, {"pf", 900, 12_100, .24, .60}, {"dpa", 2100, 7900, .28, .38}} {
		out = append(out, SagePaper{
			Strategy: p.order, Model: "llama2-70b", TTFTP75Fast: &p.fast, TTFTP75Normal: &p.normal, ViolationsFast: &p.fastLate, ViolationsNormal: &p.normalLate,
		})
	}
	return out
}
