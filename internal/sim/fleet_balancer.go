package sim

import (
	"fmt"
	"strconv"
	"time"

	"skyserve/lbd/core"
	"skyserve/lbd/policy"
)

// fleetBalancer is the production balancer of a fleet in one region, which has no network delay to its replicas. Its
// events are queued until the engine call that caused them has ended.
type fleetBalancer struct {
	core     *core.Balancer
	interval time.Duration // between two probes of the replicas
	due      []core.Event
	calls    map[string]int32 // requests that have not ended, by ID
	vms      map[string]*vm
	requests uint64 // so far: the number of the last one
}

func newFleetBalancer(c core.Config) *fleetBalancer {
	return &fleetBalancer{core: core.New(c), interval: c.ProbeInterval, calls: map[string]int32{}, vms: map[string]*vm{}}
}

// balance sends a request to the balancer.
func (f *fleet) balance(i int32, e *endpoint) {
	b, c := f.balancer, &f.calls[i]
	e.enter(c)
	if c.tier == deferredTier {
		e.deferredTokens += int64(c.prompt)
	} else {
		e.interactive += int64(c.prompt)
	}
	b.requests++
	c.id = strconv.FormatUint(b.requests, 10)
	b.calls[c.id] = i
	b.due = append(b.due, core.Event{Kind: core.EventArrived, Request: &core.Request{
		ID: c.id, Model: f.s.Models[c.model].Name, Tier: tierOrder[c.tier], PromptTokens: int(c.prompt), MaxTokens: int(c.output),
	}})
}

// stepBalancer processes the balancer's events, and those that its actions cause.
func (f *fleet) stepBalancer() {
	b := f.balancer
	for b != nil && len(b.due) > 0 {
		ev := b.due[0]
		b.due = b.due[1:]
		for _, a := range b.core.Step(f.now, ev) {
			f.executeAction(&a)
		}
	}
}

func (f *fleet) executeAction(a *core.Action) {
	i, known := f.balancer.calls[a.ID]
	switch a.Kind {
	case core.ActionQueue:
	case core.ActionDispatch:
		v := f.balancer.vms[a.Target]
		if !known || v == nil {
			f.failed = fmt.Errorf("the balancer sent request %q to replica %q", a.ID, a.Target)
			return
		}
		f.start(i, v, v.endpoint)
	case core.ActionReject:
		if c := &f.calls[i]; known {
			f.rejected++
			f.countUnserved(c)
			f.endpoint(int(c.model), 0, false).leave(c)
			delete(f.balancer.calls, a.ID)
			f.release(i)
		}
	default:
		f.failed = fmt.Errorf("unexpected action %s of the balancer", a.Kind)
	}
}

// attach adds a ready replica to the balancer, detach removes it.
func (f *fleet) attach(v *vm) {
	if b := f.balancer; b != nil {
		b.vms[v.id] = v
		b.due = append(b.due, core.Event{Kind: core.EventReplicaAdded, Replica: &core.ReplicaInfo{ID: v.id, Model: f.s.Models[v.endpoint.model].Name}}, probeVM(v))
	}
}

func (f *fleet) detach(v *vm) {
	if b := f.balancer; b != nil {
		delete(b.vms, v.id)
		b.due = append(b.due, core.Event{Kind: core.EventReplicaRemoved, Target: v.id})
	}
}

// observeEngine reports an engine's event about a request to the balancer.
func (f *fleet) observeEngine(c *call, kind core.EventKind) {
	if f.balancer == nil {
		return
	}
	ev := core.Event{Kind: kind, ID: c.id}
	if kind == core.EventFinished {
		ev.Outcome = &core.Outcome{PromptTokens: policy.Known(int(c.prompt)), CachedTokens: policy.Known(0), OutputTokens: policy.Known(int(c.output))}
		delete(f.balancer.calls, c.id)
	}
	f.balancer.due = append(f.balancer.due, ev)
}

// probeReplicas reports the load of all attached replicas, and advances the balancer's time.
func (f *fleet) probeReplicas() {
	b := f.balancer
	for _, v := range f.vms {
		if b.vms[v.id] != v {
			continue
		}
		f.advanceVM(v)
		if tokens := v.engine.Load().GeneratedTokens; tokens > v.reported {
			b.due = append(b.due, core.Event{Kind: core.EventProgress, Target: v.id, Tokens: int(tokens - v.reported)})
			v.reported = tokens
		}
		b.due = append(b.due, probeVM(v))
	}
	b.due = append(b.due, core.Event{Kind: core.EventTick})
}

// probeVM returns the report of a replica's load.
func probeVM(v *vm) core.Event {
	l := v.engine.Load()
	return core.Event{Kind: core.EventReplicaReport, Target: v.id, Report: &core.ProbeReport{
		Ready: true, Pending: policy.Known(l.Pending), Running: policy.Known(l.Running), KV: policy.Known(float64(l.KVActive) / float64(l.KVCapacity)),
	}}
}
