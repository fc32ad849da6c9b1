package sim

import (
	"errors"
	"slices"
	"time"

	"skyserve/internal/service"
	"skyserve/lbd/policy"
)

// backlog is a FIFO queue of calls.
type backlog struct {
	calls []int32
	head  int
}

func (b *backlog) len() int     { return len(b.calls) - b.head }
func (b *backlog) front() int32 { return b.calls[b.head] }

func (b *backlog) pushRequest(i int32) {
	if b.head > 1024 && b.head > len(b.calls)/2 {
		b.calls, b.head = append(b.calls[:0], b.calls[b.head:]...), 0
	}
	b.calls = append(b.calls, i)
}

func (b *backlog) pop() int32 {
	i := b.calls[b.head]
	b.head++
	return i
}

// utilisation returns an endpoint's effective memory utilisation (SageServe section 6.1).
func (e *endpoint) utilisation() float64 {
	if e.capacity == 0 {
		return 1
	}
	return float64(e.kv) / float64(e.capacity)
}

// enter counts a request that waits for its first token, leave one that no longer does.
func (e *endpoint) enter(c *call) {
	if c.tier != deferredTier {
		e.waiting++
	}
}

func (e *endpoint) leave(c *call) {
	if c.tier != deferredTier {
		e.waiting--
	}
}

// arrive handles a request of a region's client: interactive ones are routed at once, deferred ones
// wait for capacity or go to their silo.
func (f *fleet) arrive(q *arrival) {
	i := f.newCall(q)
	home := f.endpoint(int(q.model), int(q.region), false)
	f.issued(q)
	if f.balancer != nil {
		f.balance(i, home)
		return
	}
	if q.tier != deferredTier {
		home.interactive += int64(q.prompt)
		f.sendRequest(i, home)
		return
	}
	if f.s.Silo > 0 {
		silo := f.endpoint(int(q.model), int(q.region), true)
		silo.deferredTokens += int64(q.prompt)
		f.sendRequest(i, silo)
		return
	}
	home.deferredTokens += int64(q.prompt)
	home.backlog.pushRequest(i)
}

// signal reports each endpoint's utilisation to the deferred queue, and sends the requests that it, or
// their age, releases.
func (f *fleet) signal() {
	urgent := f.setup.Deferred.UrgentAfter(f.s.Deadlines.For(service.TierDeferred))
	for _, e := range f.endpoints {
		for e.backlog.len() > 0 && f.now-f.calls[e.backlog.front()].at >= urgent {
			f.sendRequest(e.backlog.pop(), e)
		}
		if e.backlog.len() == 0 {
			continue
		}
		for range min(f.setup.Deferred.ReleaseCount(e.utilisation()), e.backlog.len()) {
			i := e.backlog.pop()
			f.calls[i].priority = 1
			f.dispatch(i, e, e)
		}
	}
}

// sendRequest chooses a region and a replica with the production policy: the client's region while its memory
// utilisation is below 70 %, otherwise another one below it, otherwise the least utilised; there, the
// replica with the fewest tokens to process.
func (f *fleet) sendRequest(i int32, home *endpoint) {
	own := len(home.ready)
	for k, peer := range home.peers {
		c := &home.candidates[own+k]
		c.Available, c.KV = len(peer.ready) > 0, policy.Known(peer.utilisation())
		c.Replicas = len(peer.ready)
	}
	f.facts.Now, f.facts.Candidates = f.now, home.candidates
	choice := home.router.Choose(&f.facts)
	switch {
	case choice.Index == policy.Wait:
		f.failed = errors.New("no region has a ready replica")
	case choice.Index < own:
		f.start(i, home.ready[choice.Index], home)
	default:
		f.dispatch(i, home, home.peers[choice.Index-own])
	}
}

// dispatch chooses a replica of an endpoint.
func (f *fleet) dispatch(i int32, home, to *endpoint) {
	f.facts.Now, f.facts.Candidates = f.now, to.candidates[:len(to.ready)]
	choice := to.router.Choose(&f.facts)
	if choice.Index == policy.Wait {
		f.failed = errors.New("the policy chose a region without a replica")
		return
	}
	f.start(i, to.ready[choice.Index], home)
}

// start sends a request to a replica. Between regions that takes half an RTT.
func (f *fleet) start(i int32, v *vm, home *endpoint) {
	c := &f.calls[i]
	c.vm, c.away = v, v.endpoint.region != home.region
	v.inFlight++
	if f.balancer == nil {
		v.endpoint.enter(c)
	}
	v.remaining += int(c.prompt) + f.responses[c.model]
	v.endpoint.candidates[v.at].RemainingTokens = v.remaining
	if c.away {
		f.rerouted(c)
		f.queue.pushEvent(event{at: f.now + f.s.RTT/2, kind: fleetSubmit, index: i})
		return
	}
	f.submit(i)
}

// rebuildCandidates rebuilds an endpoint's candidates after a change of its replicas.
func (f *fleet) rebuildCandidates(e *endpoint) {
	slices.SortFunc(e.ready, func(a, b *vm) int { return int(a.index - b.index) })
	e.candidates, e.kv, e.capacity = e.candidates[:0], 0, 0
	for at, v := range e.ready {
		v.at = at
		capacity := v.engine.Profile().KVTokens
		e.kv += v.kv
		e.capacity += capacity
		e.candidates = append(e.candidates, policy.Candidate{
			ID: v.id, Live: true, Available: true, RemainingTokens: v.remaining, KV: policy.Known(float64(v.kv) / float64(capacity)),
		})
	}
	for _, peer := range e.peers {
		e.candidates = append(e.candidates, policy.Candidate{ID: f.s.Regions[peer.region], Peer: true, Live: true, RTT: f.distance(e, peer)})
	}
}

// distance orders the other regions: the next one in the scenario's order is the nearest, so that
// overflow spreads over regions.
func (f *fleet) distance(from, to *endpoint) time.Duration {
	n := len(f.s.Regions)
	return f.s.RTT + time.Duration((to.region-from.region+n)%n)
}
