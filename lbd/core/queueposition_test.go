package core

import (
	"testing"
	"time"

	"skyserve/internal/service"
)

// The earlier of two positions follows from the definition of the order.
func TestQueuePositions(t *testing.T) {
	const fast, normal, deferred = service.TierFast, service.TierNormal, service.TierDeferred
	type who struct {
		tier    service.Tier
		arrived time.Duration
	}
	now := time.Hour
	for _, c := range []struct {
		order         QueueOrder
		first, second who
	}{
		{OrderFCFS, who{normal, now - 2}, who{fast, now - 1}},
		{OrderEDF, who{fast, now - time.Second}, who{normal, now - 30*time.Second}},
		{OrderEDF, who{normal, now - 60*time.Second}, who{fast, now}},
		{OrderPF, who{fast, now}, who{normal, now - time.Minute}},
		{OrderPF, who{normal, now}, who{deferred, now - time.Hour}},
		{OrderDPA, who{normal, now - 70*time.Second}, who{fast, now}},                         // severely expired
		{OrderDPA, who{fast, now}, who{normal, now - 10*time.Second}},                         // urgent, not urgent
		{OrderDPA, who{normal, now - 10*time.Second}, who{fast, now - 1500*time.Millisecond}}, // recently expired
	} {
		position := func(w who) QueuePosition {
			return QueuePositionOf(c.order, TierDeadlines{}, 5*time.Second, time.Second, w.tier, w.arrived, now)
		}
		if a, b := position(c.first), position(c.second); !a.Before(b) || b.Before(a) || a.Before(a) {
			t.Errorf("%s: %+v should go before %+v: %+v, %+v", c.order, c.first, c.second, a, b)
		}
	}
}
