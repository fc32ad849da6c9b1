package sim

import (
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// With any pushes and pops in between, events are popped by time, and those with equal times in order
// of insertion.
func TestQueueOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var q queue
		var waiting []event // a sorted list beside it
		made := uint64(0)
		for range rapid.IntRange(1, 200).Draw(t, "steps") {
			if len(waiting) > 0 && rapid.Bool().Draw(t, "pop") {
				want := waiting[0]
				if next := q.peek(); next == nil || next.at != want.at || next.wakeSeq != want.wakeSeq {
					t.Fatalf("next is %+v, want %d of %v", next, want.wakeSeq, want.at)
				}
				if e := q.pop(); e.at != want.at || e.wakeSeq != want.wakeSeq {
					t.Fatalf("got event %d of %v, want %d of %v", e.wakeSeq, e.at, want.wakeSeq, want.at)
				}
				waiting = waiting[1:]
				continue
			}
			made++
			e := event{at: time.Duration(rapid.IntRange(0, 20).Draw(t, "at")), wakeSeq: made}
			q.pushEvent(e)
			at, _ := slices.BinarySearchFunc(waiting, e, func(a, b event) int {
				if a.at <= b.at {
					return -1
				}
				return 1
			})
			waiting = slices.Insert(waiting, at, e)
		}
		if next := q.peek(); (next != nil) != (len(waiting) > 0) || len(q.slots) > int(made) {
			t.Fatalf("%d wait, next is %v, %d slots", len(waiting), next, len(q.slots))
		}
	})
}
