package eval

import (
	"fmt"
	"math"
	"testing"
	"time"

	"skyserve/internal/service"
)

// Balancers release deferred work by the rule that the simulation uses, with the same defaults up to
// rounding of percentages.
func TestDeferredRuleMatchesBalancers(t *testing.T) {
	for _, strategy := range []string{"lt-ua", "auto"} {
		spec, err := service.Parse("service.yaml", fmt.Appendf(nil, "name: chat\nmodels: [{name: m}]\nregions: [{name: local/us}]\nautoscale: {strategy: %s}\n", strategy))
		if err != nil {
			t.Fatal(err)
		}
		rule, b := deferredOf(strategy), spec.Balancer
		if one := int(rule.ReleaseOneBelow*100 + 0.5); b.DeferredMemoryPercent != one {
			t.Errorf("%s: balancers release below %d %%, the simulator below %d %%", strategy, b.DeferredMemoryPercent, one)
		}
		day := 24 * time.Hour
		if hours, want := float64(b.DeferredWaitPercent)/100*day.Hours(), rule.UrgentAfter(day).Hours(); math.Abs(hours-want) > 0.1 {
			t.Errorf("%s: balancers wait for %.1f h, the simulator for %.1f h", strategy, hours, want)
		}
	}
}
