package policy

import (
	"testing"
	"time"
)

// Complaint: questions about many contexts go to replicas that have cached the context but have no memory left, and wait
// there until requests end: an engine counts a cached context that no request uses as free memory.
func TestUnusedCachedPrefixTakesMemory(t *testing.T) {
	const capacity, prompt, context = 14800, 8000, 7500 // tokens
	for _, c := range []struct {
		name   string
		shared bool
		inUse  int // tokens of the prompt that the requests at the first replica use
		want   int
	}{
		{"a conversation, which moves", false, 0, 0},
		{"a context that no request uses", true, 0, 1},
		{"a context that a request uses", true, context, 0},
	} {
		cs := fleet(2)
		for i := range cs {
			cs[i].Residence, cs[i].Outstanding, cs[i].Running, cs[i].Pending = 10*time.Second, 1, Known(1), Known(0)
		}
		cs[0].ContextTokens, cs[0].MatchBytes, cs[0].InUseBytes = 8400, 4*context, 4*c.inUse
		cs[1].ContextTokens = 1000
		for i := range cs {
			cs[i].KV = Known(float64(cs[i].ContextTokens) / capacity)
		}
		f := long(prompt, cs)
		f.SharedPrefix = c.shared
		if got := NewCost().Choose(f); got.Index != c.want {
			t.Errorf("%s: %+v by costs of %.2f s and %.2f s", c.name, got, cs[0].Score.Value, cs[1].Score.Value)
		}
	}
}

// Of two full replicas that have cached a context, the one whose requests use it has more memory for it.
func TestPrefixInUseIsPreferredIfMemoryIsFull(t *testing.T) {
	for inUse := range 2 {
		cs := fleet(2)
		for i := range cs {
			cs[i].Residence, cs[i].Outstanding, cs[i].Running, cs[i].Pending = 10*time.Second, 4, Known(4), Known(0)
			cs[i].ContextTokens, cs[i].KV, cs[i].MatchBytes = 12000, Known(0.9), 4*2500
		}
		cs[inUse].InUseBytes = 4 * 2500
		f := long(3000, cs)
		f.SharedPrefix = true
		if got := NewCost().Choose(f); got.Index != inUse {
			t.Errorf("%+v, want %d by costs of %.2f s and %.2f s", got, inUse, cs[0].Score.Value, cs[1].Score.Value)
		}
	}
}

// Complaint: slow engines, whose requests stay long, hold a few requests each, and their memory is nearly full. Their shared
// prefixes spread to all replicas, although every question fits where its prefix is in use.
func TestFittingPrefixIsNotCopied(t *testing.T) {
	for _, c := range []struct {
		name   string
		shared bool
		queued int
		want   int
	}{
		{"a shared prefix", true, 1, 0},
		{"a shared prefix, while requests wait for memory", true, 9, 1},
		{"a conversation, which moves", false, 1, 1},
	} {
		cs := fleet(2)
		for i := range cs {
			cs[i].Residence, cs[i].Pace, cs[i].Outstanding, cs[i].Running, cs[i].Pending = 95*time.Second, 3, 4-2*i, Known(4-2*i), Known(0)
		}
		cs[0].ContextTokens, cs[0].KV, cs[0].MatchBytes, cs[0].InUseBytes = 9000, Known(0.8), 4*2000, 4*2000
		cs[1].ContextTokens, cs[1].KV = 3000, Known(0.4)
		f := long(2200, cs)
		f.SharedPrefix, f.Queued = c.shared, c.queued
		if got := NewCost().Choose(f); got.Index != c.want {
			t.Errorf("%s: %+v by costs of %.2f s and %.2f s", c.name, got, cs[0].Score.Value, cs[1].Score.Value)
		}
	}
}
