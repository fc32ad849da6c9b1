package store

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"skyserve/internal/testkit"
)

// A client says why it cannot write for as long as it cannot, and a read that succeeds
// meanwhile takes nothing of that back.
func TestProblemReportsStoreFailure(t *testing.T) {
	testkit.Slow(t)
	srv := serve(t, t.TempDir())
	st := connect(t, srv)
	must[uint64](t)(st.Put(t.Context(), "key", nil))
	if p := st.Problem(); p != nil {
		t.Fatal(p)
	}
	full := &jetstream.APIError{Code: 500, ErrorCode: 10077, Description: "no space left on device"}
	st.recordResult(&st.write, full)
	first := st.Problem()
	if first == nil || !errors.Is(first, full) {
		t.Fatalf("got %v", first)
	}
	if _, _, err := st.Get(t.Context(), "key"); err != nil {
		t.Fatal(err)
	}
	st.recordResult(&st.write, fmt.Errorf("once more: %w", full))
	if p := st.Problem(); p == nil || !p.Since.Equal(first.Since) {
		t.Errorf("it began at %v, not %v", p, first)
	}
	if _, err := st.Create(t.Context(), "key", nil); !errors.Is(err, ErrConflict) {
		t.Fatal(err)
	}
	if p := st.Problem(); p != nil {
		t.Errorf("a store that knows of another write works: %v", p)
	}
	srv.Close()
	if _, _, err := st.Get(t.Context(), "key"); err == nil || st.Problem() == nil {
		t.Errorf("a store that is gone: got %v and %v", err, st.Problem())
	}
}

// What the server answers that it cannot do is an outage to those who ask.
func TestFailuresOfTheServerAreOutages(t *testing.T) {
	for code, outage := range map[int]bool{500: true, 503: true, 400: false, 404: false} {
		err := wrap(t.Context(), &jetstream.APIError{Code: code}, "writing")
		if errors.Is(err, ErrUnavailable) != outage {
			t.Errorf("%d: got %v", code, err)
		}
	}
}

func TestStreamCreationBacksOff(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	failure := &jetstream.APIError{Code: 500}
	var b createBackoff
	attempts := 0
	for range 3600 {
		if b.recentFailure(now) == nil {
			attempts++
			b.recordResult(now, failure)
		}
		now = now.Add(time.Second)
	}
	if attempts < 60 || attempts > 150 {
		t.Errorf("%d attempts in an hour", attempts)
	}
	if b.recordResult(now, nil); b.recentFailure(now) != nil {
		t.Error("it is refused after it succeeded")
	}
}

func TestProblemKeepsFirstTime(t *testing.T) {
	p := &Problem{Since: time.Date(2026, 11, 22, 20, 3, 12, 0, time.UTC), Err: errors.New("no space left on device")}
	if got := p.Error(); got != "the store is unavailable since 2026-11-22 20:03:12 UTC: no space left on device" {
		t.Errorf("got %q", got)
	}
}

// A process that is killed while its disk is full leaves a stream that was never made:
// nothing was stored in it, so that it is no damage.
func TestUnfinishedStreamIsNotDamage(t *testing.T) {
	dir := t.TempDir()
	stream := filepath.Join(dir, "jetstream", "$G", "streams", "KV_skyserve_state")
	for name, text := range map[string]string{"msgs/1.blk": "", "meta.inf.tmp": `{"na`} {
		path := filepath.Join(stream, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	srv := serve(t, dir)
	must[uint64](t)(connect(t, srv).Put(t.Context(), "key", []byte("value")))
	srv.Close()
	if _, _, err := connect(t, serve(t, dir)).Get(t.Context(), "key"); err != nil {
		t.Fatal(err)
	}
}

// logged is a log in memory.
type logged struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *logged) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *logged) lines() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.text.String(), "\n")
}

// What the server says again and again is logged once in a while.
func TestRepeatedErrorsAreLoggedOnce(t *testing.T) {
	var text logged
	l := newLogger(slog.New(slog.NewTextHandler(&text, nil)))
	now := time.Unix(1_800_000_000, 0)
	l.now = func() time.Time { return now }
	for range 3600 {
		l.Errorf("write %d.blk: no space left on device", 1)
		l.Warnf("write %d.blk: no space left on device", 2)
		now = now.Add(time.Second)
	}
	if n := text.lines(); n != 12 {
		t.Errorf("%d lines in an hour, want 12", n)
	}
	for i := range 10_000 {
		l.Errorf("another %d", i)
	}
	if len(l.lastLogged) > maxLogged {
		t.Errorf("%d texts are remembered", len(l.lastLogged))
	}
}
