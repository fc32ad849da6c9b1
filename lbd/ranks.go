package lbd

import (
	"skyserve/internal/service"
	"skyserve/lbd/core"
	"skyserve/lbd/policy"
)

// viewOf returns core's view of a replica, its ranks combined; nil if core does not have it.
func viewOf(cfg service.ReplicaConfig, views map[string]core.ReplicaView) *core.ReplicaView {
	var whole *core.ReplicaView
	for rank := range cfg.Ranks() {
		v, known := views[cfg.RankID(rank)]
		switch {
		case !known:
		case whole == nil:
			v.ID = cfg.ID
			whole = &v
		default:
			joinRank(whole, &v)
		}
	}
	if n := cfg.Ranks(); n > 1 && whole != nil {
		whole.KV.Value /= float64(n)
	}
	return whole
}

// joinRank combines the view of a rank with those before it. The engine is ready only if all ranks are
// ready. A figure that one rank does not report is unknown for the whole.
func joinRank(whole, v *core.ReplicaView) {
	if whole.Ready && !v.Ready {
		whole.Ready, whole.Reason = false, v.Reason
	}
	whole.Reported = whole.Reported && v.Reported
	whole.Available = whole.Available || v.Available
	whole.Draining = whole.Draining && v.Draining
	whole.Outstanding += v.Outstanding
	whole.HeldRequests += v.HeldRequests
	whole.Tokens += v.Tokens
	whole.Age = max(whole.Age, v.Age)
	whole.Pace = max(whole.Pace, v.Pace)
	whole.Pending = sum(whole.Pending, v.Pending)
	whole.Running = sum(whole.Running, v.Running)
	whole.KV = sum(whole.KV, v.KV)
}

func sum[T int | float64](a, b policy.Maybe[T]) policy.Maybe[T] {
	if !a.Known || !b.Known {
		return policy.Maybe[T]{}
	}
	return policy.Known(a.Value + b.Value)
}
