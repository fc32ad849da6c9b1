package engine

import (
	"slices"
	"testing"

	"pgregory.net/rapid"
)

func TestQueueMatchesSlice(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var q queue
		var twin []*request
		t.Repeat(map[string]func(*rapid.T){
			"push back":  func(*rapid.T) { r := new(request); q.pushBack(r); twin = append(twin, r) },
			"push front": func(*rapid.T) { r := new(request); q.pushFront(r); twin = slices.Insert(twin, 0, r) },
			"pop": func(*rapid.T) {
				if len(twin) > 0 {
					q.popFront()
					twin = twin[1:]
				}
			},
			"remove": func(t *rapid.T) {
				if len(twin) > 0 {
					i := rapid.IntRange(0, len(twin)-1).Draw(t, "i")
					q.removeRequest(twin[i])
					twin = slices.Delete(twin, i, i+1)
				}
			},
			"": func(t *rapid.T) {
				if !slices.Equal(q.items[q.head:], twin) || q.len() != len(twin) {
					t.Fatalf("queue %v, want %v", q.items[q.head:], twin)
				}
				if len(twin) > 0 && q.front() != twin[0] || len(twin) == 0 && q.front() != nil {
					t.Fatal("front is not the first")
				}
			},
		})
	})
}

func TestQueueMemoryIsBounded(t *testing.T) {
	var q queue
	for range 10 {
		q.pushBack(new(request))
	}
	for range 100_000 {
		q.pushBack(new(request))
		q.popFront()
	}
	if q.len() != 10 || cap(q.items) > 1000 {
		t.Errorf("length %d, capacity %d after 100,000 requests", q.len(), cap(q.items))
	}
}
