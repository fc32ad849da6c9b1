package proxy

import (
	"cmp"
	"slices"

	"skyserve/internal/service"
	"skyserve/lbd/core"
	"skyserve/lbd/openai"
)

// modelTable contains the model names that clients may use. It is never changed.
type modelTable struct {
	byName map[string]openai.ResolvedModel // by every usable name
	names  []string                        // the names, sorted
	prices map[string]*service.TokenPrice  // by model; nil if no model has a price
	// splits are the names that are divided among models; nil if there is none.
	splits map[string]*split
	// fallbacks are the fallbacks of models that have any. An alias is also a key: it may be the former name of a
	// renamed model that replicas still serve, and falls back to the model under its new name.
	fallbacks map[string]fallbackRule
}

// price returns the price of a model; nil if it has none.
func (t *modelTable) price(model string) *service.TokenPrice { return t.prices[model] }

// resolve returns the model that a name refers to.
func (t *modelTable) resolve(name []byte) (openai.ResolvedModel, bool) {
	m, ok := t.byName[string(name)]
	return m, ok
}

// accepts reports whether a name can be requested.
func (t *modelTable) accepts(name string) bool {
	_, known := t.resolve([]byte(name))
	return known || t.splits[name] != nil
}

// SetModels declares the models of the service, with their aliases and adapters. The models of
// replicas and peers, and the aliases and adapters that they list, are usable in addition to these. It also sets the names
// whose sessions are divided among models: together, so that no split is without a model that is added with it.
func (r *Runtime) SetModels(models []service.BalancerModel, splits []service.Split) {
	r.points.setModels(models)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.declared, r.splits = slices.Clone(models), slices.Clone(splits)
	r.rebuildModels()
}

// rebuildModels builds a new table; the lock must be held. A model's own name has precedence over
// an equal alias, an alias over an adapter, and earlier declarations over later ones. The name of a split
// comes next, and the aliases and adapters that only engines list come last.
func (r *Runtime) rebuildModels() {
	t := &modelTable{byName: map[string]openai.ResolvedModel{}}
	add := func(name string, resolved openai.ResolvedModel) {
		if _, taken := t.byName[name]; !taken && t.splits[name] == nil {
			t.byName[name] = resolved
			t.names = append(t.names, name)
		}
	}
	for _, m := range r.declared {
		add(m.Name, openai.ResolvedModel{Model: m.Name})
		if m.Price != nil {
			if t.prices == nil {
				t.prices = map[string]*service.TokenPrice{}
			}
			t.prices[m.Name] = m.Price.PerToken()
		}
	}
	for _, rep := range r.replicas {
		if rep.external != nil {
			continue // only fallbacks use it
		}
		add(rep.cfg.Model, openai.ResolvedModel{Model: rep.cfg.Model})
	}
	for _, models := range r.peerModels {
		for _, m := range models {
			add(m, openai.ResolvedModel{Model: m})
		}
	}
	for _, m := range r.declared {
		for _, alias := range m.Aliases {
			add(alias, openai.ResolvedModel{Model: m.Name})
		}
	}
	for _, m := range r.declared {
		for _, adapter := range m.LoRA {
			add(adapter, openai.ResolvedModel{Model: m.Name, Adapter: adapter})
		}
	}
	for _, s := range r.splits {
		sp := newSplit(s, t.byName)
		if _, taken := t.byName[s.Name]; taken || sp == nil {
			continue
		}
		if t.splits == nil {
			t.splits = map[string]*split{}
		}
		t.splits[s.Name], t.names = sp, append(t.names, s.Name)
	}
	r.addListedNames(add)
	t.fallbacks = map[string]fallbackRule{}
	for _, m := range r.declared {
		for _, alias := range m.Aliases { // of a model that was renamed: replicas with its former name may still serve
			t.fallbacks[alias] = fallbackRule{[]string{m.Name}, minFallbackWait}
		}
	}
	for _, m := range r.declared {
		if len(m.Fallback) > 0 {
			t.fallbacks[m.Name] = fallbackRule{m.Fallback, cmp.Or(m.FallbackAfter, service.DefaultFallbackAfter)}
		}
	}
	slices.Sort(t.names)
	r.models.Store(t)
}

// updatePeerModels stores the names of the models, aliases and adapters that a peer serves; the lock must be held.
func (r *Runtime) updatePeerModels(ev core.Event) {
	var names []string
	changed := r.storePeerNames(ev.Target, ev.PeerReport)
	if ev.Kind == core.EventPeerReport && r.peers[ev.Target] != nil {
		for _, l := range ev.PeerReport.Models {
			names = append(names, l.Model)
		}
	}
	if !changed && slices.Equal(names, r.peerModels[ev.Target]) {
		return
	}
	if len(names) == 0 {
		delete(r.peerModels, ev.Target)
	} else {
		r.peerModels[ev.Target] = names
	}
	r.rebuildModels()
}
