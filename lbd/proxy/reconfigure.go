package proxy

import (
	"reflect"

	"skyserve/lbd/core"
	"skyserve/lbd/openai"
	"skyserve/lbd/record"
)

// Reconfigure applies a new configuration of the decisions without affecting requests in flight, and
// records it: see core.Balancer.Reconfigure. It reports whether the configuration differs; if not, it
// does nothing.
func (r *Runtime) Reconfigure(cfg core.Config) (changed bool) {
	r.subs.publish(r.withLock(func() {
		if changed = !sameConfig(&r.coreCfg, &cfg); !changed {
			return
		}
		now := r.Elapsed()
		actions := r.core.Reconfigure(now, cfg)
		r.coreCfg = cfg
		r.sendsHeartbeats.Store(len(cfg.ScaleToZero) > 0)
		for i := range actions {
			r.deliverAction(now, &actions[i])
		}
		r.record.recordConfig(now, &cfg, actions)
	}))
	return changed
}

// SetContinuation sets whether another replica continues a stream whose replica failed. Turned on, it applies
// to requests that arrive later; turned off, also to chats in flight whose replica fails later.
func (r *Runtime) SetContinuation(on bool) { r.noContinue.Store(!on) }

// sameConfig compares two configurations; policies are compared by name.
func sameConfig(a, b *core.Config) bool {
	return reflect.DeepEqual(record.NewConfig(a), record.NewConfig(b))
}

// forwards reports whether requests may be sent to peers.
func (r *Runtime) forwards() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.coreCfg.Forward
}

// SetAllowedParameters sets the guarded parameters that later requests may use. Guarded parameters are dangerous
// for engines and rejected by default: see service.GuardedParameter.
func (r *Runtime) SetAllowedParameters(names []string) {
	r.allowedParameters.Store(uint32(openai.ParseParameters(names)))
}

// refuseGuarded rejects a call with a guarded parameter that is not allowed. For a forwarded
// request, the balancer that received it from the client has checked this.
func (x *exchange) refuseGuarded(c *openai.Call) *openai.Error {
	if x.from != "" {
		return nil
	}
	return c.RefuseGuarded(x.answer.Rendering, openai.Parameters(x.rt.allowedParameters.Load()))
}
