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

// fleet is the replicas of a balancer. The runtime knows those whose model is
// known; the others are only probed until they tell it.
type fleet struct {
	self    service.BalancerConfig
	runtime *proxy.Runtime
	prober  *probe.Prober
	log     *slog.Logger

	mu    sync.Mutex
	asked map[string]service.ReplicaConfig // every replica as it was attached, by id
	// leaving are those that are removed once they have finished what they have.
	leaving map[string]bool
	drained map[string]string // who had a replica drained, by its id; "" = a person
	ctx     context.Context   // of those who wait for that
	end     context.CancelFunc
	waiting sync.WaitGroup
}

func newFleet(self service.BalancerConfig, runtime *proxy.Runtime, log *slog.Logger, seed uint64, allow func(netip.Addr) error, secure *tls.Config) *fleet {
	f := &fleet{self: self, runtime: runtime, log: log, asked: map[string]service.ReplicaConfig{}, leaving: map[string]bool{}, drained: map[string]string{}}
	f.ctx, f.end = context.WithCancel(context.Background())
	f.prober = probe.New(probe.Options{Sink: runtime.Step, Found: f.found, Seed: seed, Logger: log, Allow: allow, TLS: secure})
	return f
}

// suspect makes the next probes of a replica check its health.
func (f *fleet) suspect(id string) { f.prober.Suspect(id) }

// has says whether a replica is attached just so, whoever attached it.
func (f *fleet) has(cfg service.ReplicaConfig) bool {
	cfg.ID, cfg.Region = replicaID(cfg), cmp.Or(cfg.Region, f.self.Region)
	f.mu.Lock()
	defer f.mu.Unlock()
	held, known := f.asked[cfg.ID]
	held.Epoch = cfg.Epoch
	return known && reflect.DeepEqual(held, cfg) && !f.leaving[cfg.ID]
}

// Add attaches a replica, or updates one that is attached.
func (f *fleet) Add(cfg service.ReplicaConfig) (added bool, err error) {
	cfg.ID = replicaID(cfg)
	cfg.Region = cmp.Or(cfg.Region, f.self.Region)
	f.mu.Lock()
	defer f.mu.Unlock()
	old, held := f.asked[cfg.ID]
	if held && cfg.Epoch < old.Epoch {
		return false, fmt.Errorf("adding replica %q: epoch %d, held %d: %w", cfg.ID, cfg.Epoch, old.Epoch, proxy.ErrOlderEpoch)
	}
	if err := f.tell(cfg, held && old.URL == cfg.URL); err != nil {
		return false, err
	}
	f.asked[cfg.ID] = cfg
	delete(f.leaving, cfg.ID)
	f.stayDrained(cfg, held && old.URL == cfg.URL && cfg.Epoch > old.Epoch)
	f.prober.Start(cfg)
	return !held, nil
}

// stayDrained settles whether a replica that was attached drains. To attach it again ends
// that, but where a controller only says anew whose it is, a person's word stands.
func (f *fleet) stayDrained(cfg service.ReplicaConfig, reassigned bool) {
	by, drains := f.drained[cfg.ID]
	if drains && by == "" && reassigned && f.runtime.DrainReplica(cfg.ID) {
		return
	}
	delete(f.drained, cfg.ID)
}

// tell brings the runtime up to date with a replica. One that does not name its
// model or its kind keeps what it told at the same URL; at another it has to tell
// it first.
func (f *fleet) tell(cfg service.ReplicaConfig, sameURL bool) error {
	if sameURL {
		told := f.learned(cfg.ID)
		cfg.Model, cfg.Kind = cmp.Or(cfg.Model, told.Model), cmp.Or(cfg.Kind, told.Kind)
	}
	var err error
	switch {
	case cfg.Model != "":
		_, err = f.runtime.AddReplica(cfg)
	case !sameURL:
		_, err = f.runtime.RemoveReplica(cfg.ID, 0)
	}
	return err
}

// learned is what the runtime serves a replica as; nothing when it does not know
// the replica.
func (f *fleet) learned(id string) service.ReplicaConfig {
	for _, r := range f.runtime.Replicas() {
		if r.ID == id {
			return r
		}
	}
	return service.ReplicaConfig{}
}

// found takes in a replica that told its model or its kind.
func (f *fleet) found(cfg service.ReplicaConfig) {
	f.mu.Lock()
	defer f.mu.Unlock()
	asked, held := f.asked[cfg.ID]
	if !held || asked.URL != cfg.URL || (asked.Model != "" && asked.Kind != "") {
		return // detached or changed meanwhile
	}
	asked.Model, asked.Kind = cmp.Or(asked.Model, cfg.Model), cmp.Or(asked.Kind, cfg.Kind)
	if _, err := f.runtime.AddReplica(asked); err != nil {
		f.log.Error("replica cannot be attached", "replica", cfg.ID, "err", err)
		delete(f.asked, cfg.ID)
		f.prober.Stop(cfg.ID)
	}
}

// Remove detaches a replica; what is outstanding there goes on.
func (f *fleet) Remove(id string, epoch uint64) (removed bool, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	asked, held := f.asked[id]
	if !held {
		return false, nil
	}
	if epoch != 0 && epoch < asked.Epoch {
		return false, fmt.Errorf("removing replica %q: epoch %d, held %d: %w", id, epoch, asked.Epoch, proxy.ErrOlderEpoch)
	}
	if _, err := f.runtime.RemoveReplica(id, epoch); err != nil {
		return false, err
	}
	f.forget(id)
	return true, nil
}

// forget drops a replica that the runtime does not know any more.
func (f *fleet) forget(id string) {
	delete(f.asked, id)
	delete(f.leaving, id)
	delete(f.drained, id)
	f.prober.Stop(id)
}

// retire removes a replica once it has finished what it has; nothing new is sent
// there. held is false when it is not known, ours when the controller assigned it:
// then it stays.
func (f *fleet) retire(id string) (held, ours bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	asked, held := f.asked[id]
	if !held || asked.Epoch > 0 {
		return held, false
	}
	if !f.runtime.DrainReplica(id) { // it has nothing: its model is not known
		f.forget(id)
		return true, true
	}
	f.leaving[id] = true
	f.waiting.Go(func() { f.untilIdle(id) })
	return true, true
}

// retireEvery is how often a replica that is to go is looked at.
const retireEvery = 100 * time.Millisecond

// untilIdle removes a replica when nothing is outstanding there; one that was
// attached again or removed meanwhile is left alone.
func (f *fleet) untilIdle(id string) {
	ctx, done := context.WithCancel(f.ctx)
	defer done()
	every(ctx, retireEvery, func() {
		busy := f.outstanding(id) > 0
		f.mu.Lock()
		defer f.mu.Unlock()
		if f.leaving[id] && busy {
			return
		}
		done()
		if !f.leaving[id] {
			return
		}
		if _, err := f.runtime.RemoveReplica(id, 0); err != nil {
			f.log.Error("replica cannot be removed", "replica", id, "err", err)
			return
		}
		f.forget(id)
	})
}

// outstanding is how many requests a replica has, over all its ranks.
func (f *fleet) outstanding(id string) int {
	for _, r := range f.List() {
		if r.ID == id && r.View != nil {
			return r.View.Outstanding
		}
	}
	return 0
}

// Drain lets a replica finish what it has. One whose model is not known has
// nothing, and gets nothing. Whoever drains it first is told, unless a person does.
func (f *fleet) Drain(id, by string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	_, held := f.asked[id]
	if !held || !f.runtime.DrainReplica(id) {
		return false
	}
	if _, drains := f.drained[id]; !drains || by == "" {
		f.drained[id] = by
	}
	return true
}

// List is all replicas with all that is known of them, sorted by id.
func (f *fleet) List() []admin.Replica {
	f.mu.Lock()
	asked, drained := maps.Clone(f.asked), maps.Clone(f.drained)
	f.mu.Unlock()
	served := map[string]service.ReplicaConfig{}
	for _, r := range f.runtime.Replicas() {
		served[r.ID] = r
	}
	views := map[string]core.ReplicaView{}
	for _, v := range f.runtime.View().Replicas {
		views[v.ID] = v
	}
	probes := map[string]probe.Status{}
	for _, s := range f.prober.Status() {
		probes[s.Replica.ID] = s
	}
	list := make([]admin.Replica, 0, len(asked))
	for _, id := range slices.Sorted(maps.Keys(asked)) {
		r := admin.Replica{ReplicaConfig: asked[id], HitRate: probes[id].HitRate, DrainedBy: drained[id]}
		if cfg, ok := served[id]; ok {
			r.ReplicaConfig = cfg
		}
		r.View = viewOf(r.ReplicaConfig, views)
		r.State, r.Reason = stateOf(r.View, probes[id])
		r.Reason = f.remark(r.ReplicaConfig, r.Reason)
		list = append(list, r)
	}
	return list
}

// stateOf says where a replica stands and why it is not ready.
func stateOf(v *core.ReplicaView, p probe.Status) (state service.ReplicaState, reason string) {
	switch {
	case v != nil && v.Draining:
		return service.StateDraining, "finishes what it has"
	case v != nil && v.Ready:
		return service.StateReady, ""
	}
	reason = p.Reason
	if v != nil && v.Reported {
		reason = cmp.Or(v.Reason, reason)
	}
	if p.Answered {
		return service.StateNotReady, cmp.Or(reason, "no report")
	}
	return service.StateStarting, cmp.Or(reason, "no answer yet")
}

// remark adds to the reason where an adopted replica comes from.
func (f *fleet) remark(cfg service.ReplicaConfig, reason string) string {
	if cfg.Region == f.self.Region {
		return reason
	}
	adopted := "adopted from " + string(cfg.Region)
	if reason == "" {
		return adopted
	}
	return adopted + "; " + reason
}

func (f *fleet) close() {
	f.end()
	f.waiting.Wait()
	f.prober.Close()
}
