package forecast

import "time"

// Unit is the unit of a series' values. The empty unit is a count per step of something unnamed.
type Unit string

// The units of load.
const (
	// PromptTokens are counted in each step.
	PromptTokens Unit = "prompt tokens"
	// Requests are counted in each step.
	Requests Unit = "requests"
	// RequestRate is the mean of a step, in requests per second.
	RequestRate Unit = "requests/s"
)

// IsRate reports whether the unit is a mean over the step instead of a count.
func (u Unit) IsRate() bool { return u == RequestRate }

// PerSecond returns the unit per second for tables and plots: tok/s, req/s.
func (u Unit) PerSecond() string {
	switch u {
	case PromptTokens:
		return "tok/s"
	case Requests, RequestRate:
		return "req/s"
	}
	return "/s"
}

// combine combines a source's samples within a step to one value.
func (u Unit) combine(samples []Sample) float64 {
	var sum float64
	for _, s := range samples {
		sum += s.Value
	}
	if u.IsRate() {
		return sum / float64(len(samples))
	}
	return sum
}

// PerSecond converts a value of the series to a rate per second.
func (s Series) PerSecond(value float64) float64 {
	if s.Unit.IsRate() {
		return value
	}
	return value / s.Step.Seconds()
}

// At returns the start of step i, whether the series contains it or not.
func (s Series) At(i int) time.Time {
	return time.Unix(s.Start*60, 0).UTC().Add(time.Duration(i) * s.Step)
}

// End returns the end of the series' last step.
func (s Series) End() time.Time { return s.At(len(s.Values)) }
