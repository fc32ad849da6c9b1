package lbd

import (
	"cmp"
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"sync"
	"time"

	"skyserve/internal/service"
	"skyserve/lbd/admin"
	"skyserve/lbd/core"
	"skyserve/lbd/probe"
	"skyserve/lbd/proxy"
)

// fleet contains the replicas of a balancer. Replicas with a known model are added to the runtime. The
// others are only probed until they report their model.
//
// A replica that a controller has assigned to this balancer has the number of that assignment, its epoch, which increases
// with each assignment; 0 = no controller has assigned it. Changes of an earlier epoch are rejected, because they were
// delayed.
type fleet struct {
	self    service.BalancerConfig
	runtime *proxy.Runtime
	prober  *probe.Prober
	caches  *cacheFeed
	log     *slog.Logger

	mu       sync.Mutex
	keys     engineKeys
	attached map[string]service.ReplicaConfig // every replica as it was attached, by id
	origins  map[string]string                // what attached each of them: see originConfig
	// conflicts contains, by replica, the sorted origins that list the replica although another origin has attached it. They
	// are sources (files and DNS names); the configuration too, if a source has attached the replica.
	conflicts map[string][]string
	// removing are the replicas to remove once their requests have finished.
	removing map[string]bool
	unserved map[string]bool   // the declared adapters that no replica served, as last logged
	drained  map[string]string // the program that drained a replica, by the replica's id; "" = an operator
	ctx      context.Context   // of the goroutines in removals
	cancel   context.CancelFunc
	removals sync.WaitGroup

	discovering sync.Mutex                         // held while discovered or configured replicas are applied
	discovered  map[string][]service.ReplicaConfig // the last list of each source, and of the last reload
}

func newFleet(self service.BalancerConfig, runtime *proxy.Runtime, log *slog.Logger, seed uint64, allow func(netip.Addr) error, secure *tls.Config) *fleet {
	f := &fleet{self: self, runtime: runtime, log: log, attached: map[string]service.ReplicaConfig{}, removing: map[string]bool{}, drained: map[string]string{}}
	f.origins, f.conflicts, f.discovered = map[string]string{}, map[string][]string{}, map[string][]service.ReplicaConfig{}
	f.ctx, f.cancel = context.WithCancel(context.Background())
	f.caches = newCacheFeed(runtime, log, allow, secure)
	f.prober = probe.New(probe.Options{Sink: runtime.Step, Identified: f.applyFound, Listed: f.applyListed, Seed: seed, Logger: log, Allow: allow, TLS: secure})
	return f
}

// suspect makes the next probes of a replica check its health.
func (f *fleet) suspect(id string) { f.prober.Suspect(id) }

// recheck makes the next probe of a replica read its model list.
func (f *fleet) recheck(id string) { f.prober.Recheck(id) }

// size returns the number of attached replicas.
func (f *fleet) size() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.attached)
}

// hasReplica reports whether a replica is attached with this configuration, regardless of its origin.
func (f *fleet) hasReplica(cfg service.ReplicaConfig) bool {
	cfg.ID, cfg.Region = replicaID(cfg), cmp.Or(cfg.Region, f.self.Region)
	f.mu.Lock()
	defer f.mu.Unlock()
	held, known := f.attached[cfg.ID]
	held.Epoch, held.Key = cfg.Epoch, cfg.Key
	return known && reflect.DeepEqual(held, cfg) && !f.removing[cfg.ID]
}

// Add attaches a replica for the admin API, or updates an attached one.
func (f *fleet) Add(cfg service.ReplicaConfig) (added bool, err error) {
	return f.attach(cfg, originAPI)
}

// attach attaches a replica, or updates an attached one. origin is what attaches it.
func (f *fleet) attach(cfg service.ReplicaConfig, origin string) (added bool, err error) {
	cfg.ID = replicaID(cfg)
	cfg.Region = cmp.Or(cfg.Region, f.self.Region)
	f.mu.Lock()
	defer f.mu.Unlock()
	old, held := f.attached[cfg.ID]
	sameURL := held && old.URL == cfg.URL
	configured := sameURL && origin == originConfig
	if configured {
		cfg.Epoch = old.Epoch // a reload changes the settings of a replica, not the controller's assignment
	}
	if held && cfg.Epoch < old.Epoch {
		return false, fmt.Errorf("adding replica %q: epoch %d, current %d: %w", cfg.ID, cfg.Epoch, old.Epoch, proxy.ErrOlderEpoch)
	}
	if origin == originAPI && sameURL && cfg.Epoch == old.Epoch {
		cfg = f.withoutReported(cfg, old)
	}
	if origin, err = f.checkOrigin(cfg, origin); err != nil {
		return false, err
	}
	if cfg, err = f.keys.readKey(cfg, old, origin); err != nil {
		return false, err
	}
	draining := f.remainsDrained(cfg.ID, sameURL && (cfg.Epoch > old.Epoch || configured))
	if err := f.updateRuntime(cfg, sameURL, draining); err != nil {
		return false, err
	}
	f.attached[cfg.ID], f.origins[cfg.ID] = cfg, origin
	delete(f.removing, cfg.ID)
	if !draining {
		delete(f.drained, cfg.ID)
	}
	f.prober.Start(cfg)
	f.caches.start(f.withReportedModel(cfg))
	return !held, nil
}

// withoutReported returns a configuration without a model and a kind that were not configured but reported by the
// replica: the objects that List returns contain them, and attaching such an object again must not make them settings.
func (f *fleet) withoutReported(cfg, old service.ReplicaConfig) service.ReplicaConfig {
	reported := f.runtimeConfig(cfg.ID)
	if old.Model == "" && cfg.Model == reported.Model {
		cfg.Model = ""
	}
	if old.Kind == "" && cfg.Kind == reported.Kind {
		cfg.Kind = ""
	}
	return cfg
}

// remainsDrained decides whether a replica remains drained when it is attached again. Attaching it ends the
// drain, unless a controller only reassigns it, or a reload only changes its settings: then an operator's drain remains.
func (f *fleet) remainsDrained(id string, same bool) bool {
	by, drains := f.drained[id]
	return drains && by == "" && same
}

// isDraining reports whether a replica receives no new requests, because it is drained or being removed.
func (f *fleet) isDraining(id string) bool {
	_, drains := f.drained[id]
	return drains || f.removing[id]
}

// updateRuntime updates a replica in the runtime. A replica without a configured model or kind keeps the
// ones that it reported at the same URL. At another URL it must report them first.
func (f *fleet) updateRuntime(cfg service.ReplicaConfig, sameURL, draining bool) error {
	if sameURL {
		reported := f.runtimeConfig(cfg.ID)
		cfg.Model, cfg.Kind = cmp.Or(cfg.Model, reported.Model), cmp.Or(cfg.Kind, reported.Kind)
	}
	var err error
	switch {
	case cfg.Model != "":
		err = f.addToRuntime(cfg, draining)
	case !sameURL:
		_, err = f.runtime.RemoveReplica(cfg.ID, 0)
	}
	return err
}

// addToRuntime adds a replica to the runtime, or updates it there. If it drains, it receives no new requests.
func (f *fleet) addToRuntime(cfg service.ReplicaConfig, draining bool) (err error) {
	if draining {
		_, err = f.runtime.AddDrainingReplica(cfg)
	} else {
		_, err = f.runtime.AddReplica(cfg)
	}
	return err
}

// runtimeConfig returns the runtime's configuration of a replica; empty if the runtime does not have it.
func (f *fleet) runtimeConfig(id string) service.ReplicaConfig {
	for _, r := range f.runtime.Replicas() {
		if r.ID == id {
			return r
		}
	}
	return service.ReplicaConfig{}
}

// applyFound adds a replica that reported its model or its kind. It remains drained if it is: an engine that
// restarts is identified again.
func (f *fleet) applyFound(cfg service.ReplicaConfig) {
	f.mu.Lock()
	defer f.mu.Unlock()
	attached, held := f.attached[cfg.ID]
	if !held || attached.URL != cfg.URL || (attached.Model != "" && attached.Kind != "") {
		return // detached or changed meanwhile
	}
	attached.Model, attached.Kind = cmp.Or(attached.Model, cfg.Model), cmp.Or(attached.Kind, cfg.Kind)
	if err := f.addToRuntime(attached, f.isDraining(cfg.ID)); err != nil {
		f.log.Error("attaching a replica failed", "replica", cfg.ID, "err", err)
		f.dropReplica(cfg.ID)
		return
	}
	f.caches.start(attached)
}

// withReportedModel returns a configuration with the model that the replica reported, if none is
// configured.
func (f *fleet) withReportedModel(cfg service.ReplicaConfig) service.ReplicaConfig {
	cfg.Model = cmp.Or(cfg.Model, f.runtimeConfig(cfg.ID).Model)
	return cfg
}

// Remove detaches a replica; its outstanding requests continue.
func (f *fleet) Remove(id string, epoch uint64) (removed bool, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	attached, held := f.attached[id]
	if !held {
		return false, nil
	}
	if epoch != 0 && epoch < attached.Epoch {
		return false, fmt.Errorf("removing replica %q: epoch %d, current %d: %w", id, epoch, attached.Epoch, proxy.ErrOlderEpoch)
	}
	if by := f.origins[id]; epoch == 0 && isDiscovered(by) {
		return false, ownedError(id, by)
	}
	if _, err := f.runtime.RemoveReplica(id, epoch); err != nil {
		return false, err
	}
	f.dropReplica(id)
	return true, nil
}

// dropReplica removes a replica that is not in the runtime any more.
func (f *fleet) dropReplica(id string) {
	delete(f.attached, id)
	delete(f.origins, id)
	delete(f.removing, id)
	delete(f.drained, id)
	f.prober.Stop(id)
	f.caches.stop(id)
}

// removeWhenIdle removes a replica of an origin once its requests have finished; no new ones are sent to it. held is
// false if it is unknown. owned is false if another origin has attached it; then it is not removed.
func (f *fleet) removeWhenIdle(id, origin string) (held, owned bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, held = f.attached[id]; !held || f.origins[id] != origin {
		return held, false
	}
	for _, other := range f.conflicts[id] {
		if other != origin {
			f.origins[id] = other // this source lists it too: retryConflicts then applies its settings
			return true, true
		}
	}
	if !f.runtime.DrainReplica(id) { // it has no requests, because its model is unknown
		f.dropReplica(id)
		return true, true
	}
	f.removing[id] = true
	f.removals.Go(func() { f.waitUntilIdle(id) })
	return true, true
}

// removeInterval is the interval of checks of a draining replica.
const removeInterval = 100 * time.Millisecond

// waitUntilIdle removes a replica when it has no outstanding requests. A replica that was attached again
// or removed meanwhile is not changed.
func (f *fleet) waitUntilIdle(id string) {
	ctx, done := context.WithCancel(f.ctx)
	defer done()
	runEvery(ctx, removeInterval, func() {
		busy := f.outstanding(id) > 0
		f.mu.Lock()
		defer f.mu.Unlock()
		if f.removing[id] && busy {
			return
		}
		done()
		if !f.removing[id] {
			return
		}
		if _, err := f.runtime.RemoveReplica(id, 0); err != nil {
			f.log.Error("removing a replica failed", "replica", id, "err", err)
			return
		}
		f.dropReplica(id)
	})
}

// outstanding returns the outstanding requests of a replica over all its ranks.
func (f *fleet) outstanding(id string) int {
	for _, r := range f.List() {
		if r.ID == id && r.View != nil {
			return r.View.Outstanding
		}
	}
	return 0
}

// Drain drains a replica. If its model is unknown, it remains drained when it reports the model. The
// first program that drains it is recorded, unless an operator drains it later.
func (f *fleet) Drain(id, by string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, held := f.attached[id]; !held {
		return false
	}
	f.runtime.DrainReplica(id) // not known there until its model is known: see applyFound
	if _, drains := f.drained[id]; !drains || by == "" {
		f.drained[id] = by
	}
	return true
}

// List returns all replicas with their complete state, sorted by id.
func (f *fleet) List() []admin.Replica {
	f.mu.Lock()
	attached, drained, origins := maps.Clone(f.attached), maps.Clone(f.drained), maps.Clone(f.origins)
	f.mu.Unlock()
	served := map[string]service.ReplicaConfig{}
	for _, r := range f.runtime.Replicas() {
		served[r.ID] = r
	}
	views := map[string]core.ReplicaView{}
	for _, v := range f.runtime.View().Replicas {
		views[v.ID] = v
	}
	probes := map[string]probe.ReplicaStatus{}
	for _, s := range f.prober.Status() {
		probes[s.Replica.ID] = s
	}
	list := make([]admin.Replica, 0, len(attached))
	for _, id := range slices.Sorted(maps.Keys(attached)) {
		r := admin.Replica{ReplicaConfig: attached[id], HitRate: probes[id].HitRate, DrainedBy: drained[id], Origin: origins[id]}
		if cfg, ok := served[id]; ok {
			r.ReplicaConfig = cfg
		}
		r.View = viewOf(r.ReplicaConfig, views)
		_, drains := drained[id]
		r.State, r.Reason = stateOf(r.View, probes[id], drains)
		if r.State == service.StateStarting && r.Region.Cloud() == service.CloudStatic {
			r.Reason += "; skyserve does not start this engine"
		}
		r.Reason = f.noteAdoption(r.ReplicaConfig, r.Reason)
		list = append(list, r)
	}
	return list
}

// misconfigured returns the replicas that fail their checks because of their configuration, by id.
func (f *fleet) misconfigured() map[string]service.Misconfiguration {
	found := map[string]service.Misconfiguration{}
	for _, s := range f.prober.Status() {
		if s.Misconfigured != "" {
			found[s.Replica.ID] = s.Misconfigured
		}
	}
	return found
}

// stateOf returns the state of a replica, and the reason if it is not ready. drained: it is drained, perhaps
// before its model is known.
func stateOf(v *core.ReplicaView, p probe.ReplicaStatus, drained bool) (state service.ReplicaState, reason string) {
	switch {
	case drained || v != nil && v.Draining:
		if v != nil && v.Outstanding == 0 {
			return service.StateDraining, "drained, no requests in flight"
		}
		return service.StateDraining, "finishing in-flight requests"
	case v != nil && v.Ready:
		return service.StateReady, ""
	}
	reason = p.Reason
	if v != nil && v.Reported {
		reason = cmp.Or(v.Reason, reason)
	}
	if p.WasReady {
		return service.StateNotReady, cmp.Or(reason, "no recent report")
	}
	return service.StateStarting, cmp.Or(reason, "no response yet")
}

// noteAdoption adds the original region of an adopted replica, and its balancer now, to the reason.
func (f *fleet) noteAdoption(cfg service.ReplicaConfig, reason string) string {
	if cfg.Region == f.self.Region {
		return reason
	}
	adopted := "adopted from " + string(cfg.Region) + " by " + f.self.ID
	if reason == "" {
		return adopted
	}
	return adopted + "; " + reason
}

func (f *fleet) close() {
	f.cancel()
	f.removals.Wait()
	f.prober.Close()
	f.caches.close()
}
