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
		f.MatchBranches = c.shared
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
		f.MatchBranches = true
		if got := NewCost().Choose(f); got.Index != inUse {
			t.Errorf("%+v, want %d by costs of %.2f s and %.2f s", got, inUse, cs[0].Score.Value, cs[1].Score.Value)
		}
	}
}
