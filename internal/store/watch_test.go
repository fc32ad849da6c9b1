package store

import (
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// entry is an entry of a bucket.
type entry struct {
	jetstream.KeyValueEntry
	value   string
	created time.Time
}

func (entry) Key() string                     { return "desired.x" }
func (e entry) Value() []byte                 { return []byte(e.value) }
func (entry) Revision() uint64                { return 7 }
func (e entry) Created() time.Time            { return e.created }
func (entry) Operation() jetstream.KeyValueOp { return jetstream.KeyValuePut }

// A restore lowers the revisions. A watch sends a value that was written after it, also at a revision that it has sent
// before, and sends no entry twice.
func TestWatchSendsNewValueAtSameRevision(t *testing.T) {
	t.Parallel()
	out := make(chan KeyChange, 3)
	w := watch{out: out, sent: map[string]sentEntry{}}
	before := entry{value: "before", created: time.Unix(1, 0)}
	after := entry{value: "after", created: time.Unix(2, 0)}
	for _, e := range []entry{before, before, after} {
		w.sendEntry(t.Context(), e)
	}
	close(out)
	var got []string
	for c := range out {
		got = append(got, string(c.Value))
	}
	if len(got) != 2 || got[0] != "before" || got[1] != "after" {
		t.Errorf("sent %q, want before and after", got)
	}
}
