package store

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/nats-io/nats.go/jetstream"
)

func TestObjects(t *testing.T) {
	testObjects(t, objectPartSize)
}

// Objects in a bucket are as those in the store.
func TestObjectsInParts(t *testing.T) {
	testObjects(t, cloudPartSize, FilesIn(&memoryParts{parts: map[string][]byte{}}))
}

func testObjects(t *testing.T, objectPart int64, options ...Option) {
	dir := t.TempDir()
	srv := serve(t, dir)
	st := connect(t, srv, options...)
	data := make([]byte, 2*objectPart+100)
	rng := rand.NewChaCha8([32]byte{1})
	_, _ = rng.Read(data)
	size := must[int64](t)(st.WriteObject(t.Context(), "a", iotest.HalfReader(bytes.NewReader(data))))
	if size != int64(len(data)) {
		t.Fatalf("%d bytes are stored, want %d", size, len(data))
	}
	srv.Close()
	st = connect(t, serve(t, dir), options...)
	for _, r := range [][2]int64{{0, size}, {0, 0}, {objectPart - 1, 2}, {objectPart, objectPart}, {size - 1, 1}, {17, objectPart}} {
		got := must[[]byte](t)(io.ReadAll(st.ReadObject(t.Context(), "a", r[0], r[1])))
		if !bytes.Equal(got, data[r[0]:r[0]+r[1]]) {
			t.Errorf("bytes %v differ", r)
		}
	}
	if _, err := io.ReadAll(st.ReadObject(t.Context(), "a", size, 1)); err == nil {
		t.Error("a range beyond the end is read")
	}
	for range 2 {
		if err := st.DeleteObject(t.Context(), "a"); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := io.ReadAll(st.ReadObject(t.Context(), "a", 0, size)); !errors.Is(err, ErrNotFound) {
		t.Errorf("a deleted object: %v", err)
	}
	if n := must[int64](t)(st.WriteObject(t.Context(), "empty", strings.NewReader(""))); n != 0 {
		t.Errorf("an empty object has %d bytes", n)
	}
}

// An upload that breaks leaves nothing.
func TestBrokenUploadLeavesNothing(t *testing.T) {
	st := connect(t, serve(t, t.TempDir()))
	broken := io.MultiReader(bytes.NewReader(make([]byte, objectPartSize+5)), iotest.ErrReader(io.ErrUnexpectedEOF))
	var read *ReadError
	if _, err := st.WriteObject(t.Context(), "a", broken); !errors.As(err, &read) || !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Fatalf("%v", err)
	}
	if _, err := io.ReadAll(st.ReadObject(t.Context(), "a", 0, 1)); !errors.Is(err, ErrNotFound) {
		t.Errorf("a part remains: %v", err)
	}
}

// A part whose content is lost or damaged, but not its description, is missing.
func TestObjectWithoutItsContent(t *testing.T) {
	st := connect(t, serve(t, t.TempDir()))
	must[int64](t)(st.WriteObject(t.Context(), "a", strings.NewReader("content")))
	js := must[jetstream.JetStream](t)(jetstream.New(st.nc))
	part := must[*jetstream.ObjectInfo](t)(must[jetstream.ObjectStore](t)(st.objects(t.Context())).GetInfo(t.Context(), "a.0"))
	stream := must[jetstream.Stream](t)(js.Stream(t.Context(), "OBJ_"+part.Bucket))
	check := func(want string) {
		t.Helper()
		if _, err := io.ReadAll(st.ReadObject(t.Context(), "a", 0, 7)); !errors.Is(err, ErrNotFound) || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %s", err, want)
		}
	}
	if err := stream.Purge(t.Context(), jetstream.WithPurgeSubject(chunkSubject(part.Bucket)+">")); err != nil {
		t.Fatal(err)
	}
	check("not found")
	must[*jetstream.PubAck](t)(js.Publish(t.Context(), chunkSubject(part.Bucket)+part.NUID, []byte("CONTENT")))
	check("reading object a: part a.0 is damaged: its digest is SHA-256=")
	must[int64](t)(st.WriteObject(t.Context(), "a", strings.NewReader("cont")))
	check("reading object a: part 0 has 4 bytes, want at least 7")
}

func TestBucket(t *testing.T) {
	st := connect(t, serve(t, t.TempDir()))
	b, ctx := st.BatchRecords(), t.Context()
	rev := must[uint64](t)(b.Create(ctx, "x.1", []byte("1")))
	if _, err := b.Create(ctx, "x.1", nil); !errors.Is(err, ErrConflict) {
		t.Errorf("Create of an existing key: %v", err)
	}
	must[uint64](t)(b.CompareAndSwap(ctx, "x.1", []byte("2"), rev))
	if _, err := b.CompareAndSwap(ctx, "x.1", []byte("3"), rev); !errors.Is(err, ErrConflict) {
		t.Errorf("an old revision: %v", err)
	}
	must[uint64](t)(b.Put(ctx, "x.0", []byte("0")))
	must[uint64](t)(b.Put(ctx, "y.0", []byte("y")))
	list := must[[]Entry](t)(b.List(ctx, "x."))
	if len(list) != 2 || list[0].Key != "x.0" || string(list[1].Value) != "2" {
		t.Errorf("list: %+v", list)
	}
	wctx, stop := context.WithCancel(ctx)
	watch := b.Watch(wctx, "y.")
	if c := next(t, watch); c.Key != "y.0" || string(c.Value) != "y" {
		t.Errorf("watch: %+v", c)
	}
	stop()
	for range watch { // closes
	}
	if err := b.Delete(ctx, "x.0"); err != nil {
		t.Fatal(err)
	}
	if _, _, err := b.Get(ctx, "x.0"); !errors.Is(err, ErrNotFound) {
		t.Errorf("a deleted key: %v", err)
	}
	if err := b.Clear(ctx, "x."); err != nil {
		t.Fatal(err)
	}
	if list := must[[]Entry](t)(b.Keys(ctx, "x.")); len(list) != 0 {
		t.Errorf("after Clear: %+v", list)
	}
	if keys := must[[]string](t)(st.Keys(ctx, "")); len(keys) != 0 {
		t.Errorf("the state contains %v", keys)
	}
}
