package store

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"skyserve/internal/testkit"
)

// A restore of an older backup into the same store lowers revisions. Fencing tokens still increase at each restore. The
// holder at the time of the backup does not get its lease back, although the backup contains it: its token is below that
// of its successor.
func TestTokensIncreaseAfterForcedRestore(t *testing.T) {
	testkit.Slow(t)
	t.Parallel()
	dir := t.TempDir()
	srv := serve(t, dir)
	st := chatStore(t, srv)
	former := acquire(t, st, "former")
	file := backup(t, st, "chat")
	for range 20 {
		put(t, st, "desired.x", "1")
	}
	last := acquire(t, chatStore(t, srv), "successor").Token() // the former holder does not renew its lease
	revision := put(t, st, "desired.x", "2")
	for restore := range 3 {
		awaitRemovals(t, dir)
		if _, err := st.RestoreBackup(t.Context(), bytes.NewReader(file), "chat", true); err != nil {
			t.Fatal(err)
		}
		if restore == 0 {
			if err := former.Renew(t.Context()); !errors.Is(err, ErrLeaseLost) {
				t.Errorf("the former holder with token %d renewed its lease after token %d: %v", former.Token(), last, err)
			}
		}
		next := acquire(t, st, "next")
		if next.Token() <= last {
			t.Errorf("restore %d: token %d after %d", restore, next.Token(), last)
		}
		last = next.Token()
		if err := next.Renew(t.Context()); err != nil {
			t.Errorf("restore %d: renewing: %v", restore, err)
		}
		if err := next.Release(t.Context()); err != nil {
			t.Errorf("restore %d: releasing: %v", restore, err)
		}
	}
	if now := put(t, st, "desired.x", "3"); now >= revision {
		t.Errorf("revision %d after %d: the restore took nothing back", now, revision)
	}

	// A restore is interrupted after it has deleted the leases, and clients write again before it is repeated.
	nc := must[*nats.Conn](t)(st.conn())
	js := must[jetstream.JetStream](t)(jetstream.New(nc))
	must[uint64](t)(st.raiseTokenFloor(t.Context(), must[[]*jetstream.StreamInfo](t)(namespaceStreams(t.Context(), nc, st.namespace))))
	if err := js.DeleteStream(t.Context(), "KV_"+st.stateBucketName()); err != nil {
		t.Fatal(err)
	}
	for _, when := range []string{"interrupted", "repeated"} {
		l := acquire(t, st, when)
		if l.Token() <= last {
			t.Errorf("%s: token %d after %d", when, l.Token(), last)
		}
		last = l.Token()
		if err := l.Release(t.Context()); err != nil {
			t.Errorf("%s: releasing: %v", when, err)
		}
		awaitRemovals(t, dir)
		if _, err := st.RestoreBackup(t.Context(), bytes.NewReader(file), "chat", true); err != nil {
			t.Fatal(err)
		}
	}

	// A holder that still leads when the backup with its lease is restored acquires it again, with a greater token.
	holder := acquire(t, st, "holder")
	file = backup(t, st, "chat")
	if err := holder.Renew(t.Context()); err != nil {
		t.Fatal(err)
	}
	awaitRemovals(t, dir)
	if _, err := st.RestoreBackup(t.Context(), bytes.NewReader(file), "chat", true); err != nil {
		t.Fatal(err)
	}
	if err := holder.Renew(t.Context()); !errors.Is(err, ErrLeaseLost) {
		t.Errorf("the holder keeps its lease with token %d after a restore: %v", holder.Token(), err)
	}
	if l := acquire(t, st, "holder"); l.Token() <= holder.Token() {
		t.Errorf("after the restore: token %d after %d", l.Token(), holder.Token())
	} else {
		last = l.Token()
	}

	// A backup of the restored store keeps the tokens in a new store.
	next := chatStore(t, serve(t, t.TempDir()))
	if _, err := next.RestoreBackup(t.Context(), bytes.NewReader(backup(t, st, "chat")), "chat", false); err != nil {
		t.Fatal(err)
	}
	if l := acquire(t, next, "new"); l.Token() <= last {
		t.Errorf("in a new store: token %d after %d", l.Token(), last)
	}
}

// The token base is raised as far as the tokens of the replaced store require, and never lowered.
func TestRaiseTokenBase(t *testing.T) {
	for _, c := range []struct {
		base         string // of the backup
		last, lowest uint64
		want         string
	}{
		{"", 10, 0, ""},
		{"", 10, 10, ""},
		{"", 10, 11, "1"},
		{"5", 10, 15, "5"},
		{"5", 10, 100, "90"},
	} {
		config := streamConfig{State: server.StreamState{LastSeq: c.last}}
		if c.base != "" {
			config.Config.Metadata = map[string]string{tokenBaseKey: c.base}
		}
		if err := config.raiseTokenBase(c.lowest); err != nil {
			t.Error(err)
		}
		if got := config.Config.Metadata[tokenBaseKey]; got != c.want {
			t.Errorf("base %q, last revision %d, tokens above %d: got %q, want %q", c.base, c.last, c.lowest, got, c.want)
		}
	}
	config := streamConfig{}
	config.Config.Metadata = map[string]string{tokenBaseKey: "many"}
	if err := config.raiseTokenBase(1); err == nil || !strings.Contains(err.Error(), `"many"`) {
		t.Errorf("an unreadable base: %v", err)
	}
}
