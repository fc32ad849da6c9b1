package store

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/iotest"
	"time"

	"skyserve/internal/telemetry"
	"skyserve/internal/testkit"
)

// heldReader returns the first part of a file at once, and the rest after release.
type heldReader struct {
	first, rest   io.Reader
	held, release chan struct{}
	once          sync.Once
}

func newHeldReader(file []byte) *heldReader {
	// Byte by byte: nothing is read ahead.
	first, rest := iotest.OneByteReader(bytes.NewReader(file[:len(file)*3/4])), bytes.NewReader(file[len(file)*3/4:])
	return &heldReader{first: first, rest: rest, held: make(chan struct{}), release: make(chan struct{})}
}

func (h *heldReader) Read(p []byte) (int, error) {
	if n, err := h.first.Read(p); n > 0 || !errors.Is(err, io.EOF) {
		return n, err
	}
	h.once.Do(func() { close(h.held) })
	<-h.release
	return h.rest.Read(p)
}

// While a restore replaces streams, another one into the same store is rejected, through any connection and also with
// force, and changes nothing. Once it has ended, the next one is accepted.
func TestConcurrentRestoresExcludeEachOther(t *testing.T) {
	testkit.Slow(t)
	t.Parallel()
	srv := serve(t, t.TempDir())
	st, other := chatStore(t, srv), chatStore(t, srv)
	backedUp(t, st)
	noise := make([]byte, 1<<20) // more than is decompressed ahead
	_, _ = rand.NewChaCha8([32]byte{}).Read(noise)
	must[int64](t)(st.WriteObject(t.Context(), "noise", bytes.NewReader(noise)))
	file, want := backup(t, st, "chat"), contents(t, st)
	must[uint64](t)(st.Put(t.Context(), "desired.x", []byte("written later")))
	later := backup(t, st, "chat")
	h := newHeldReader(file)
	ended := make(chan error, 1)
	go func() {
		_, err := st.RestoreBackup(t.Context(), h, "chat", true)
		ended <- err
	}()
	select {
	case <-h.held:
	case err := <-ended:
		t.Fatalf("the restore ended before its file did: %v", err)
	}
	for _, connection := range []*Store{st, other} {
		if _, err := connection.RestoreBackup(t.Context(), bytes.NewReader(later), "chat", true); !errors.Is(err, telemetry.ErrRestoreRunning) {
			t.Errorf("a second restore: %v", err)
		}
	}
	close(h.release)
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	if got := contents(t, st); !slices.Equal(got, want) {
		t.Errorf("restored %q, want %q", got, want)
	}
	if _, err := other.RestoreBackup(t.Context(), bytes.NewReader(later), "chat", true); err != nil {
		t.Errorf("the next restore: %v", err)
	}
	if v, _, err := read(t, st, "desired.x"); err != nil || string(v) != "written later" {
		t.Errorf("got %q, %v", v, err)
	}
}

// If restores begin at the same time, at least one succeeds. The others succeed after it or are rejected. The store then
// has the contents of the backup.
func TestRestoresAtTheSameTime(t *testing.T) {
	testkit.Slow(t)
	t.Parallel()
	srv := serve(t, t.TempDir())
	st := chatStore(t, srv)
	backedUp(t, st)
	file, want := backup(t, st, "chat"), contents(t, st)
	errs := make(chan error)
	const restores = 4
	for range restores {
		connection := chatStore(t, srv)
		go func() {
			_, err := connection.RestoreBackup(t.Context(), bytes.NewReader(file), "chat", true)
			errs <- err
		}()
	}
	succeeded := 0
	for range restores {
		err := <-errs
		if err == nil {
			succeeded++
		} else if !errors.Is(err, telemetry.ErrRestoreRunning) {
			t.Error(err)
		}
	}
	if got := contents(t, st); succeeded == 0 || !slices.Equal(got, want) {
		t.Errorf("%d succeeded, restored %q, want %q", succeeded, got, want)
	}
}

// The lock of a process that ended within a restore expires. A process that was suspended for longer loses its lock.
func TestRestoreLockExpires(t *testing.T) {
	t.Parallel()
	st := chatStore(t, serve(t, t.TempDir()))
	crashed, crash := context.WithCancel(t.Context())
	if _, _, err := st.lockRestore(crashed, time.Hour); err != nil {
		t.Fatal(err)
	}
	crash() // it is renewed no longer, and not unlocked
	held, unlock, err := st.lockRestore(t.Context(), time.Millisecond)
	if err != nil {
		t.Fatal(err)
	}
	defer unlock()
	must[uint64](t)(st.tokenFloorBucket().Put(t.Context(), restoreLockKey, []byte("another process")))
	<-held.Done()
	if err := context.Cause(held); !errors.Is(err, errRestoreLockLost) {
		t.Errorf("got %v", err)
	}
	unlock()
	if value, _, err := st.tokenFloorBucket().Get(t.Context(), restoreLockKey); err != nil || string(value) != "another process" {
		t.Errorf("it unlocked the restore of another process: %q, %v", value, err)
	}
}
