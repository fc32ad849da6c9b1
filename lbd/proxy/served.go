package proxy

import (
	"cmp"
	"maps"
	"slices"

	"skyserve/lbd/core"
	"skyserve/lbd/openai"
)

// ServedModels is what an engine's model list contains.
type ServedModels struct {
	// Names are all names that the engine serves: its model, further names of it, and adapters. nil =
	// unknown, because the engine does not list its adapters.
	Names []string
	// Adapters are the LoRA adapters that the engine lists. Clients may use them even if they are not declared.
	Adapters []string
	// Aliases are further names of the replica's model that the engine lists. Clients may use them as declared
	// aliases: requests have the model's name when they are sent, so that every replica of the model can serve them.
	Aliases []string
	// MaxModelLen is the maximum number of tokens of a request to the replica's model; 0 = unknown.
	MaxModelLen int
}

// SetServedModels replaces the model list of a replica. An unknown id is ignored.
func (r *Runtime) SetServedModels(id string, s ServedModels) {
	r.subs.publish(r.withLock(func() {
		rep := r.replicas[id]
		if rep == nil {
			return
		}
		rebuild := !slices.Equal(r.served[id].Adapters, s.Adapters) || !slices.Equal(r.served[id].Aliases, s.Aliases)
		r.served[id] = s
		for _, k := range rep.ranks() {
			r.stepCore(core.Event{Kind: core.EventReplicaNames, Target: k.id(), Names: s.Names})
		}
		if rebuild {
			r.rebuildModels()
		}
	}))
}

// listedName is a name that an engine lists besides that of its model, and what it resolves to.
type listedName struct {
	name     string
	resolved openai.ResolvedModel
}

// listedNames returns the aliases and adapters of a model.
func listedNames(model string, aliases, adapters []string) []listedName {
	var all []listedName
	for _, alias := range aliases {
		all = append(all, listedName{alias, openai.ResolvedModel{Model: model}})
	}
	for _, adapter := range adapters {
		all = append(all, listedName{adapter, openai.ResolvedModel{Model: model, Adapter: adapter}})
	}
	return all
}

// addListedNames adds the aliases and adapters that the replicas and the peers list, in the order of their ids; the
// lock must be held.
func (r *Runtime) addListedNames(add func(name string, resolved openai.ResolvedModel)) {
	for _, rep := range r.sortedReplicas() {
		s := r.served[rep.cfg.ID]
		for _, n := range listedNames(rep.cfg.Model, s.Aliases, s.Adapters) {
			add(n.name, n.resolved)
		}
	}
	for _, id := range slices.Sorted(maps.Keys(r.peerNames)) {
		for _, n := range r.peerNames[id] {
			add(n.name, n.resolved)
		}
	}
}

// storePeerNames stores the aliases and adapters in a peer's report, nil for none, and reports whether they changed;
// the lock must be held.
func (r *Runtime) storePeerNames(peer string, report *core.PeerReport) (changed bool) {
	var names []listedName
	if report != nil {
		for _, l := range report.Models {
			names = append(names, listedNames(l.Model, l.Aliases, l.Adapters.Value)...)
		}
	}
	if slices.Equal(names, r.peerNames[peer]) {
		return false
	}
	if names == nil {
		delete(r.peerNames, peer)
	} else {
		r.peerNames[peer] = names
	}
	return true
}

// maxReportedAliases bounds the aliases of one model in a heartbeat.
const maxReportedAliases = 64

// reportNames replaces the names that engines list by those that requests of peers may have here: a name may stand
// for another model, or for none. The lock must be held.
func (r *Runtime) reportNames(loads []core.ModelLoad) {
	t := r.models.Load()
	for i := range loads {
		l := &loads[i]
		l.Adapters.Value = slices.DeleteFunc(l.Adapters.Value, func(name string) bool {
			return t.byName[name] != openai.ResolvedModel{Model: l.Model, Adapter: name}
		})
		var aliases []string
		for id, rep := range r.replicas {
			if rep.cfg.Model != l.Model {
				continue
			}
			for _, name := range r.served[id].Aliases {
				if (t.byName[name] == openai.ResolvedModel{Model: l.Model}) {
					aliases = append(aliases, name)
				}
			}
		}
		slices.Sort(aliases)
		aliases = slices.Compact(aliases)
		l.Aliases = aliases[:min(len(aliases), maxReportedAliases)]
	}
}

// maxModelLens returns the smallest MaxModelLen of the ready replicas of each model. A model is missing if
// none of them reports it.
func (r *Runtime) maxModelLens() map[string]int {
	ready := map[string]bool{}
	for _, v := range r.View().Replicas {
		ready[v.ID] = v.Ready && !v.Draining
	}
	lens := map[string]int{}
	r.mu.Lock()
	defer r.mu.Unlock()
	for id, s := range r.served {
		rep := r.replicas[id]
		if s.MaxModelLen == 0 || !slices.ContainsFunc(rep.ranks(), func(k rank) bool { return ready[k.id()] }) {
			continue
		}
		model := rep.cfg.Model
		lens[model] = min(cmp.Or(lens[model], s.MaxModelLen), s.MaxModelLen)
	}
	return lens
}

// UnservedAdapter is a declared adapter that no replica serves.
type UnservedAdapter struct {
	Model, Adapter string
	// Listed are the names that the replicas list instead, sorted.
	Listed []string
	// Swapped: the replicas list Model as an adapter, and Adapter is their model.
	Swapped bool
}

// UnservedAdapters returns the declared adapters that no replica of their model serves although every one of
// them lists its adapters, in the order of their declaration.
func (r *Runtime) UnservedAdapters() []UnservedAdapter {
	r.mu.Lock()
	defer r.mu.Unlock()
	var all []UnservedAdapter
	for _, m := range r.declared {
		for _, adapter := range m.LoRA {
			if u := (UnservedAdapter{Model: m.Name, Adapter: adapter}); r.isUnserved(&u) {
				all = append(all, u)
			}
		}
	}
	return all
}

// isUnserved reports whether no replica serves an adapter, and sets Listed and Swapped; the lock must be held.
func (r *Runtime) isUnserved(u *UnservedAdapter) bool {
	attached, listed := 0, map[string]bool{}
	for id, rep := range r.replicas {
		s := r.served[id]
		switch {
		case rep.cfg.Model == u.Adapter && slices.Contains(s.Adapters, u.Model):
			u.Swapped, u.Listed = true, slices.Sorted(slices.Values(s.Names))
			return true
		case rep.cfg.Model != u.Model:
			continue
		case s.Names == nil || slices.Contains(s.Names, u.Adapter):
			return false
		}
		attached++
		for _, name := range s.Names {
			listed[name] = true
		}
	}
	u.Listed = slices.Sorted(maps.Keys(listed))
	return attached > 0
}
