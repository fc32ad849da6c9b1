package forecast

import "time"

// Unit is what the values of a series count. No unit is a count in a step of
// something that has no name.
type Unit string

// The units of demand.
const (
	// PromptTokens are counted in each step.
	PromptTokens Unit = "prompt tokens"
	// Requests are counted in each step.
	Requests Unit = "requests"
	// RequestRate is the mean of a step, in requests a second.
	RequestRate Unit = "requests/s"
)

// Rate tells a mean over the step from what was counted in it.
func (u Unit) Rate() bool { return u == RequestRate }

// PerSecond is the unit by the second, as tables and plots write it: tok/s, req/s.
func (u Unit) PerSecond() string {
	switch u {
	case PromptTokens:
		return "tok/s"
	case Requests, RequestRate:
		return "req/s"
	}
	return "/s"
}

// join makes one value of what a source said within a step.
func (u Unit) join(samples []Sample) float64 {
	var sum float64
	for _, s := range samples {
		sum += s.Value
	}
	if u.Rate() {
		return sum / float64(len(samples))
	}
	return sum
}

// PerSecond turns a value of the series into what came a second.
func (s Series) PerSecond(value float64) float64 {
	if s.Unit.Rate() {
		return value
	}
	return value / s.Step.Seconds()
}

// At is when the step i begins, whether the series holds it or not.
func (s Series) At(i int) time.Time {
	return time.Unix(s.Start*60, 0).UTC().Add(time.Duration(i) * s.Step)
}

// End is when the series' last step ends.
func (s Series) End() time.Time { return s.At(len(s.Values)) }
