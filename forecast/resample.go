package forecast

import (
	"fmt"
	"time"
)

// StepError is the error of a step that does not suit a series.
type StepError struct{ Problem string }

// Error returns the problem.
func (e *StepError) Error() string { return "step: " + e.Problem }

// Resample returns the series in longer steps, which begin at multiples of their length since the
// Unix epoch: counts are summed, rates averaged. A step with any unknown part is unknown; a step at
// either end that the series covers only partly is omitted. It fails with a *StepError when the new step is not a
// multiple of the old one and of a minute, and with another error when the steps do not align or the series covers no
// whole step.
func Resample(s Series, step time.Duration) (Series, error) {
	if s.Step <= 0 || step < s.Step || step%s.Step != 0 {
		return s, &StepError{fmt.Sprintf("must be a multiple of the history's step of %s, got %s", ShortDuration(s.Step), step)}
	}
	if step%time.Minute != 0 {
		return s, &StepError{fmt.Sprintf("must be whole minutes, got %s", step)}
	}
	parts := int(step / s.Step)
	skip := 0 // to the first multiple of the new step
	start := time.Duration(s.Start) * time.Minute
	if over := start % step; over != 0 {
		if (step-over)%s.Step != 0 {
			return s, fmt.Errorf("resampling %s: steps of %s do not align with steps of %s: the first begins at %s", s.Name, s.Step, step, s.At(0).Format(time.RFC3339))
		}
		skip = int((step - over) / s.Step)
		start += step - over
	}
	n := max(0, len(s.Values)-skip) / parts
	if n == 0 {
		return s, fmt.Errorf("resampling %s: %s of history has no whole step of %s", s.Name, s.formatSteps(len(s.Values)), ShortDuration(step))
	}
	out := s
	out.Step, out.Start, out.Values = step, int64(start/time.Minute), make([]float64, n)
	for i := range out.Values {
		for _, v := range s.Values[skip+i*parts : skip+(i+1)*parts] {
			out.Values[i] += v // NaN stays NaN
		}
		if s.Unit.IsRate() {
			out.Values[i] /= float64(parts)
		}
	}
	return out, nil
}
