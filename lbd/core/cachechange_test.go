package core

import (
	"testing"

	"skyserve/lbd/policy"
	"skyserve/lbd/prefix"
)

// Reported changes of caches determine where the balancer expects prefixes.
func TestReportedCacheChanges(t *testing.T) {
	key := func(n int) prefix.Key {
		h := prefix.NewHasher(1)
		for i := range n {
			_, _ = h.Write(make([]byte, prefix.BlockBytes-1))
			_, _ = h.Write([]byte{byte(i)})
		}
		return h.Key()
	}
	whole := key(8)
	stored := CacheChange{Kind: CacheStored, Key: whole[:6]}
	for name, c := range map[string]struct {
		changes []CacheChange
		want    int // blocks expected at r1
	}{
		"stored":                {[]CacheChange{stored}, 6},
		"stored twice":          {[]CacheChange{stored, stored}, 6},
		"evicted":               {[]CacheChange{stored, {Kind: CacheEvicted, Key: whole[:6], KeptHashes: 2}}, 2},
		"evicted at the start":  {[]CacheChange{stored, {Kind: CacheEvicted, Key: whole[:1]}}, 0},
		"evicted and stored":    {[]CacheChange{stored, {Kind: CacheEvicted, Key: whole, KeptHashes: 2}, {Kind: CacheStored, Key: whole[:4]}}, 4},
		"evicted below the end": {[]CacheChange{stored, {Kind: CacheEvicted, Key: whole, KeptHashes: 7}}, 6},
		"invalid":               {[]CacheChange{stored, {Kind: CacheEvicted, Key: whole, KeptHashes: -1}, {Kind: CacheStored}, {Kind: "other"}}, 0},
		"cleared":               {[]CacheChange{stored, {Kind: CacheCleared}}, 0},
	} {
		p, err := policy.New("cost")
		if err != nil {
			t.Fatal(err)
		}
		b := start(DefaultConfig(p), 2)
		b.Step(1, Event{Kind: EventCacheChanged, Target: "r1", CacheChanges: c.changes})
		b.Step(1, Event{Kind: EventCacheChanged, Target: "unknown", CacheChanges: c.changes})
		got := -1
		for _, a := range b.Step(2, Event{Kind: EventArrived, Request: &Request{ID: "q", Model: "m", Prompt: whole}}) {
			if a.Kind == ActionDispatch {
				for _, considered := range a.Decision.Considered {
					if considered.ID == "r1" {
						got = considered.MatchBytes / prefix.BlockBytes
					}
				}
			}
		}
		if got != c.want {
			t.Errorf("%s: %d blocks are expected at r1, want %d", name, got, c.want)
		}
	}
}
