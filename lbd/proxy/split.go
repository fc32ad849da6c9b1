package proxy

import (
	"maps"
	"math"
	"slices"

	"github.com/zeebo/xxh3"

	"skyserve/internal/service"
	"skyserve/lbd/openai"
)

// split divides the sessions of a model name among models by weight. It is never changed.
type split struct {
	name  string
	parts []splitPart // with a weight above 0, sorted by name
}

// splitPart is a model of a split.
type splitPart struct {
	resolved openai.ResolvedModel
	name     string // of the model or the adapter
	weight   float64
}

// newSplit returns a split among those models that exist; nil if there is none.
func newSplit(s service.Split, models map[string]openai.ResolvedModel) *split {
	out := &split{name: s.Name}
	for _, name := range slices.Sorted(maps.Keys(s.Weights)) {
		if resolved, known := models[name]; known && s.Weights[name] > 0 {
			out.parts = append(out.parts, splitPart{resolved, name, float64(s.Weights[name])})
		}
	}
	if len(out.parts) == 0 {
		return nil
	}
	return out
}

// choose returns the model of a session by weighted rendezvous hashing, where the lowest score wins.
// All balancers choose the same one, the shares of many sessions are those of the weights, and a change of
// a weight moves sessions only to or from that model.
func (s *split) choose(session string) openai.ResolvedModel {
	best, lowest := 0, math.Inf(1)
	for i := range s.parts {
		p := &s.parts[i]
		hash := xxh3.HashString(session + "\x00" + s.name + "\x00" + p.name)
		u := (float64(hash>>11) + 0.5) / (1 << 53) // above 0 and below 1
		if score := -math.Log(u) / p.weight; score < lowest {
			best, lowest = i, score
		}
	}
	return s.parts[best].resolved
}

// modelOf returns the part of a split that a model serves.
func (s *split) modelOf(model string) (openai.ResolvedModel, bool) {
	for i := range s.parts {
		if s.parts[i].resolved.Model == model {
			return s.parts[i].resolved, true
		}
	}
	return openai.ResolvedModel{}, false
}

// resolveSplit chooses the model of a request for a split: that of the response that the request
// continues, if there is one, else that of its session.
func (x *exchange) resolveSplit(s *split, continued string) openai.ResolvedModel {
	x.split = s.name
	if resolved, ok := s.modelOf(continued); ok {
		return resolved
	}
	return s.choose(x.session)
}
