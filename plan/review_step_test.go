package plan

import (
	"strings"
	"testing"
	"time"

	"skyserve/internal/service"
	"skyserve/internal/telemetry"
	measured "skyserve/internal/telemetry/demand"
	"skyserve/internal/telemetry/demand/demandtest"
)

// Averaging over longer steps reduces the effect of outlier minutes; the planned load is never
// below its mean.
func TestReviewWithLongerSteps(t *testing.T) {
	var points []telemetry.Point
	for m := reviewAt.Unix()/60 - 1500; m < reviewAt.Unix()/60; m++ {
		tps := int64(2000)
		if m%10 == 3 {
			tps = 7000
		}
		points = append(points, telemetry.Point{Minute: m, Balancer: "lb", Region: "local/us", Model: "chat-small", Tier: service.TierFast, PromptTokens: 60 * tps})
	}
	h, err := measured.Traffic(points)
	if err != nil {
		t.Fatal(err)
	}
	peak := func(o ReviewOptions) float64 {
		r, err := Review(demandtest.Parse(t, reviewYAML), nil, h, reviewAt, o)
		if err != nil {
			t.Fatal(err)
		}
		if l := r.Forecasts[0]; l.TargetStep()*time.Duration(len(l.MeanRates(l.Forecast.Mean))) != time.Hour || r.Deviations(h, reviewAt)[0].Message != "" {
			t.Errorf("step %s: reported in steps of %s", o.Step, l.TargetStep())
		}
		got, _ := r.LoadCurves[0].Peak()
		return got
	}
	if minute, ten := peak(ReviewOptions{}), peak(ReviewOptions{Step: 10 * time.Minute}); minute < 5000 || ten < 2499 || ten > 3000 {
		t.Errorf("peaks of %.0f by the minute and %.0f by ten minutes, want about 7000 and 2500", minute, ten)
	}
}

// A history that is too short for steps is forecast by the minute; steps that do not divide the
// horizon are rejected.
func TestStepsMustDivideTheHorizon(t *testing.T) {
	spec := demandtest.Parse(t, reviewYAML)
	r, err := Review(spec, nil, demandtest.Constant(t, 30, 6000, 0, 0), reviewAt, ReviewOptions{Step: 10 * time.Minute})
	if err != nil || r.Targets()[0].PeakTPS < 5999 {
		t.Errorf("%+v, %v", r, err)
	}
	for _, step := range []time.Duration{90 * time.Second, 7 * time.Minute, -time.Minute, 2 * time.Hour} {
		if _, err := Review(spec, nil, nil, reviewAt, ReviewOptions{Step: step}); err == nil || !strings.Contains(err.Error(), "step: must be whole minutes that divide the horizon of 1h") {
			t.Errorf("%s: got %v", step, err)
		}
	}
}
