package deploy

import (
	"maps"
	"testing"
	"time"
)

// A replica that its balancer reports ready is unknown to the balancers of other regions until its balancer's next
// report reaches them. No other replica is drained in its favour before that, unless they stay cut off from each other.
func TestReplicaIsReadyOnceAllBalancersKnowIt(t *testing.T) {
	now := time.Unix(1000, 0)
	rc := &Reconciler{Now: func() time.Time { return now }}
	for _, step := range []struct {
		name            string
		passed          time.Duration
		own, everywhere string
		want            string
	}{
		{"one is known", 0, "a0 a1", "a0", "a0"},
		{"both are known", time.Second, "a0 a1", "a0 a1", "a0 a1"},
		{"one is forgotten elsewhere", 28 * time.Second, "a0 a1", "a0", "a0"},
		{"cut off for long", time.Second, "a0 a1", "a0", "a0 a1"},
		{"not ready at its own balancer", time.Second, "a0", "a0 a1", "a0"},
		{"ready again", time.Second, "a0 a1", "a0", "a0"},
	} {
		now = now.Add(step.passed)
		if got := rc.confirmedReady(setOf(step.own), setOf(step.everywhere)); !maps.Equal(got, setOf(step.want)) {
			t.Errorf("%s: %v, want %q", step.name, got, step.want)
		}
	}
}
