package proxy

import (
	"slices"

	"skyserve/internal/service"
	"skyserve/lbd/core"
)

// modelTable is what names clients may use. It never changes once made.
type modelTable struct {
	real map[string]modelName // by every name that may be used
	list []string             // those, sorted
}

// modelName is what a name stands for: a model under its own name or an alias, or
// an adapter of a model, which its engines know by that very name.
type modelName struct{ model, adapter string }

// resolve is what a name stands for.
func (t *modelTable) resolve(name []byte) (modelName, bool) {
	m, ok := t.real[string(name)]
	return m, ok
}

// SetModels declares the models that the service has, with their aliases and
// adapters. The models of replicas and peers are known besides these.
func (r *Runtime) SetModels(models []service.BalancerModel) {
	r.points.serve(models)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.declared = slices.Clone(models)
	r.rebuildModels()
}

// rebuildModels makes the table anew, with the lock held. A real name goes
// before an alias of the same spelling, an alias before an adapter, and what is
// declared first before what is declared later.
func (r *Runtime) rebuildModels() {
	t := &modelTable{real: map[string]modelName{}}
	add := func(name string, stands modelName) {
		if _, taken := t.real[name]; !taken {
			t.real[name] = stands
			t.list = append(t.list, name)
		}
	}
	for _, m := range r.declared {
		add(m.Name, modelName{model: m.Name})
	}
	for _, rep := range r.replicas {
		add(rep.cfg.Model, modelName{model: rep.cfg.Model})
	}
	for _, models := range r.offered {
		for _, m := range models {
			add(m, modelName{model: m})
		}
	}
	for _, m := range r.declared {
		for _, alias := range m.Aliases {
			add(alias, modelName{model: m.Name})
		}
	}
	for _, m := range r.declared {
		for _, adapter := range m.LoRA {
			add(adapter, modelName{model: m.Name, adapter: adapter})
		}
	}
	slices.Sort(t.list)
	r.models.Store(t)
}

// noteOffer keeps the names of the models that a peer serves, with the lock held.
func (r *Runtime) noteOffer(ev core.Event) {
	var names []string
	if ev.Kind == core.EventPeerReport && r.peers[ev.Target] != nil {
		for _, l := range ev.PeerReport.Models {
			names = append(names, l.Model)
		}
	}
	if slices.Equal(names, r.offered[ev.Target]) {
		return
	}
	if len(names) == 0 {
		delete(r.offered, ev.Target)
	} else {
		r.offered[ev.Target] = names
	}
	r.rebuildModels()
}
