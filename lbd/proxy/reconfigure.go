package proxy

import (
	"reflect"

	"skyserve/lbd/core"
)

// Reconfigure makes cfg the configuration of the decisions from now on, without
// touching a request in flight, and records it: see core.Balancer.Reconfigure.
// It reports whether that changes anything; if not, nothing is done.
func (r *Runtime) Reconfigure(cfg core.Config) (changed bool) {
	r.subs.publish(r.locked(func() {
		if changed = !sameConfig(&r.coreCfg, &cfg); !changed {
			return
		}
		now := r.Elapsed()
		actions := r.core.Reconfigure(now, cfg)
		r.coreCfg = cfg
		for i := range actions {
			r.carryOut(now, &actions[i])
		}
		r.record.reconfigured(now, &cfg, actions)
	}))
	return changed
}

// SetContinue lets another replica go on with a stream whose replica failed, or
// not; it holds for requests that come from now on.
func (r *Runtime) SetContinue(on bool) { r.noContinue.Store(!on) }

// sameConfig compares two configurations; a policy is its name.
func sameConfig(a, b *core.Config) bool {
	return reflect.DeepEqual(newRecordConfig(a), newRecordConfig(b))
}

// forwards says whether requests may be sent to peers.
func (r *Runtime) forwards() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.coreCfg.Forward
}
