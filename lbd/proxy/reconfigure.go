package proxy

import (
	"reflect"

	"skyserve/lbd/core"
	"skyserve/lbd/openai"
	"skyserve/lbd/record"
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
	return reflect.DeepEqual(record.NewConfig(a), record.NewConfig(b))
}

// forwards says whether requests may be sent to peers.
func (r *Runtime) forwards() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.coreCfg.Forward
}

// SetAllowedParameters sets the guarded parameters that requests may have from now on.
func (r *Runtime) SetAllowedParameters(names []string) {
	r.allowed.Store(uint32(openai.ParseParameters(names)))
}

// RefuseGuarded refuses a call that has a guarded parameter which is not allowed. A peer
// has checked the requests that it forwards.
func (x *exchange) refuseGuarded(c *openai.Call) *openai.Error {
	if x.from != "" {
		return nil
	}
	return c.RefuseGuarded(x.answer.Rendering, openai.Parameters(x.rt.allowed.Load()))
}
