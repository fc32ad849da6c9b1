package store

import (
	"bytes"
	"errors"
	"io"
	"slices"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// After a crash during an upload, a sweep removes all that is left of it, and nothing else.
func TestSweepRemovesWhatCrashesLeft(t *testing.T) {
	st, ctx := connect(t, serve(t, t.TempDir())), t.Context()
	data := bytes.Repeat([]byte("x"), objectPartSize+10)
	for _, name := range []string{"kept", "crashed", "deleted"} {
		must[int64](t)(st.WriteObject(ctx, name, bytes.NewReader(data)))
	}
	if err := st.DeleteObject(ctx, "deleted"); err != nil {
		t.Fatal(err)
	}
	js, bucket := must[jetstream.JetStream](t)(jetstream.New(must[*nats.Conn](t)(st.conn()))), st.namespace+"_files"
	chunk := func(id string) { must[*jetstream.PubAck](t)(js.Publish(ctx, "$O."+bucket+".C."+id, data[:1000])) }
	chunk("crashed") // the writer died before the part was complete
	stream := must[jetstream.Stream](t)(js.Stream(ctx, "OBJ_"+bucket))
	count := func() int { return int(must[*jetstream.StreamInfo](t)(stream.Info(ctx)).State.Msgs) }

	var seen []string
	orphans := func(names []string) ([]string, error) { seen = names; return []string{"crashed"}, nil }
	if err := st.SweepObjects(ctx, time.Hour, orphans); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(seen, []string{"crashed", "kept"}) {
		t.Errorf("objects: %q", seen)
	}
	// Two parts of "kept": nine chunks of 128 KiB and two entries; and the chunk, which may be being written.
	if n := count(); n != 12 {
		t.Errorf("%d messages remain, want 12", n)
	}
	if err := st.SweepObjects(ctx, 0, func([]string) ([]string, error) { return nil, nil }); err != nil {
		t.Fatal(err)
	}
	if n := count(); n != 11 {
		t.Errorf("%d messages remain, want 11", n)
	}
	if got := must[[]byte](t)(io.ReadAll(st.ReadObject(ctx, "kept", 0, int64(len(data))))); !bytes.Equal(got, data) {
		t.Error("the other object differs")
	}
	if _, err := io.ReadAll(st.ReadObject(ctx, "crashed", 0, 1)); !errors.Is(err, ErrNotFound) {
		t.Errorf("the crashed upload: %v", err)
	}
	failed := errors.New("unknown")
	if err := st.SweepObjects(ctx, 0, func([]string) ([]string, error) { return nil, failed }); !errors.Is(err, failed) {
		t.Errorf("%v", err)
	}
}
