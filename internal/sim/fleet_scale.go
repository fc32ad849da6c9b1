package sim

import (
	"fmt"
	"math"
	"slices"
	"time"

	"skyserve/lbd/core"
)

// endState ends a VM's state and counts its time for its endpoint. A new VM has no state.
func (f *fleet) endState(v *vm) {
	if v.state < vmStates {
		v.endpoint.counts[v.state]--
		v.endpoint.hours[v.state] += f.now - v.since
	}
	v.state = vmStates
}

// setState changes a VM's state.
func (f *fleet) setState(v *vm, state VMState) {
	f.endState(v)
	e := v.endpoint
	v.state, v.since = state, f.now
	e.counts[state]++
	if f.setup.OnVMChange != nil {
		f.setup.OnVMChange(VMChange{At: f.now, VM: int(v.index), Endpoint: e.index, State: state})
	}
}

// runScaler calls the scaler and applies its changes.
func (f *fleet) runScaler() {
	for i, e := range f.endpoints {
		donated := e.counts[VMDonated]
		if f.s.ReclaimDraining {
			donated += e.counts[VMDraining]
		}
		f.view.Endpoints[i] = EndpointView{
			Model: e.model, Region: e.region, Deferred: e.deferred,
			Ready: e.counts[VMReady], Starting: e.counts[VMStarting], Draining: e.counts[VMDraining], Donated: donated,
			Utilisation: e.utilisation(), Waiting: e.waiting, FirstTokens: e.firsts, Late: e.late, Interactive: e.interactive, DeferredTokens: e.deferredTokens, Minutes: e.minutes,
		}
	}
	changes, err := f.setup.Scaler.Step(f.now, &f.view)
	if err != nil {
		f.failed = err
		return
	}
	for i := range changes {
		if err := f.scale(&changes[i]); err != nil {
			f.failed = fmt.Errorf("scaling endpoint %d: %w", changes[i].Endpoint, err)
			return
		}
	}
}

// scale applies one change; an impossible change is an error.
func (f *fleet) scale(c *FleetChange) error {
	if c.Endpoint < 0 || c.Endpoint >= len(f.endpoints) {
		return fmt.Errorf("must be below %d", len(f.endpoints))
	}
	e := f.endpoints[c.Endpoint]
	if c.Reclaim < 0 || c.Reclaim > len(e.donated) {
		return fmt.Errorf("reclaim %d: only %d are donated", c.Reclaim, len(e.donated))
	}
	if c.Donate < 0 || c.Donate > 0 && c.Donate >= len(e.ready) {
		return fmt.Errorf("donate %d: only %d are ready, and one must remain", c.Donate, len(e.ready))
	}
	if c.Launch < 0 || c.Launch > f.spare[e.region] {
		return fmt.Errorf("launch %d: only %d spare VMs in the region", c.Launch, f.spare[e.region])
	}
	for range c.Reclaim {
		f.startOn(e, e, f.reclaimTime())
	}
	for _, l := range c.Redeploy {
		if l.Endpoint < 0 || l.Endpoint >= len(f.endpoints) || f.endpoints[l.Endpoint].region != e.region {
			return fmt.Errorf("redeploy from endpoint %d: not in this region", l.Endpoint)
		}
		from := f.endpoints[l.Endpoint]
		if l.Count < 0 || l.Count > len(from.donated) {
			return fmt.Errorf("redeploy %d from endpoint %d: only %d are donated", l.Count, l.Endpoint, len(from.donated))
		}
		for range l.Count {
			f.startOn(from, e, f.redeployTime(from, e))
		}
	}
	for range c.Launch {
		if err := f.launch(e); err != nil {
			return err
		}
	}
	if c.Donate > 0 {
		f.drain(e, c.Donate)
	}
	return nil
}

// reclaimTime returns the time to reclaim a VM from the spot pool.
func (f *fleet) reclaimTime() time.Duration {
	s := &f.s.Starts
	factor := math.Exp(s.ReclaimSigma * f.starts.NormFloat64())
	return min(time.Duration(float64(s.Reclaim)*factor), s.ReclaimMax)
}

// redeployTime returns the time until a donated VM serves another endpoint: with the same model it
// already has the weights.
func (f *fleet) redeployTime(from, to *endpoint) time.Duration {
	if from.model == to.model {
		return f.reclaimTime()
	}
	return f.weightsTime(to)
}

// weightsTime returns the time to load a model's weights onto a VM, from the region's storage or
// another region's.
func (f *fleet) weightsTime(e *endpoint) time.Duration {
	if f.remote[e.model][e.region] {
		return f.s.Starts.Fetch
	}
	return f.s.Starts.Redeploy
}

// startOn starts a replica of an endpoint on the VM donated last.
func (f *fleet) startOn(from, to *endpoint, after time.Duration) {
	last := len(from.donated) - 1
	v := from.donated[last]
	from.donated = from.donated[:last]
	f.endState(v)
	v.endpoint = to
	if from.model != to.model {
		to.redeployed++
		v.fetches = f.remote[to.model][to.region]
		if err := f.loadModel(v, to.model); err != nil {
			f.failed = err
		}
	}
	f.startReplica(v, after)
}

// launch starts a replica of an endpoint on a new VM.
func (f *fleet) launch(e *endpoint) error {
	v, err := f.newVM(e)
	if err != nil {
		return err
	}
	f.spare[e.region]--
	e.launched++
	v.fetches = f.remote[e.model][e.region]
	f.startReplica(v, f.s.Starts.Launch+f.weightsTime(e))
	return nil
}

// startReplica starts a replica of its endpoint on a VM.
func (f *fleet) startReplica(v *vm, after time.Duration) {
	f.setState(v, VMStarting)
	v.endpoint.starts++
	f.queue.pushEvent(event{at: f.now + after, kind: fleetReady, index: v.index})
}

// markReady marks a started replica as ready. Weights that it fetched from another region are in this
// region's storage from then on.
func (f *fleet) markReady(v *vm) {
	if v.fetches {
		v.fetches, f.remote[v.endpoint.model][v.endpoint.region] = false, false
	}
	f.setState(v, VMReady)
	v.endpoint.ready = append(v.endpoint.ready, v)
	f.rebuildCandidates(v.endpoint)
	f.attach(v)
}

// drain drains n replicas, those with the fewest requests, and donates them once they are idle.
func (f *fleet) drain(e *endpoint, n int) {
	order := slices.Clone(e.ready)
	slices.SortStableFunc(order, func(a, b *vm) int { return a.inFlight - b.inFlight })
	for _, v := range order[:n] {
		f.setState(v, VMDraining)
		if f.balancer != nil {
			f.balancer.due = append(f.balancer.due, core.Event{Kind: core.EventReplicaDraining, Target: v.id})
		}
		e.ready = slices.DeleteFunc(e.ready, func(r *vm) bool { return r == v })
	}
	f.rebuildCandidates(e)
	for _, v := range order[:n] {
		if f.s.ReclaimDraining {
			e.donated = append(e.donated, v)
		}
		f.advanceVM(v)
	}
}
