package proxy

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"skyserve/lbd/core"
	"skyserve/lbd/record"
)

// readRecord reads a record.
func readRecord(t *testing.T, r io.Reader) (h record.Header, lines []record.Line) {
	t.Helper()
	in := bufio.NewReader(r)
	first, err := in.ReadBytes('\n')
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(first, &h); err != nil {
		t.Fatal(err)
	}
	dec := json.NewDecoder(in)
	for {
		var l record.Line
		if err := dec.Decode(&l); err == io.EOF {
			return h, lines
		} else if err != nil {
			t.Fatal(err)
		}
		lines = append(lines, l)
	}
}

// replays feeds a record's events to a new core and compares its actions.
func replays(t *testing.T, record []byte) (steps int) {
	t.Helper()
	h, lines := readRecord(t, bytes.NewReader(record))
	cfg, err := h.Config.Core()
	if err != nil {
		t.Fatal(err)
	}
	fresh := core.New(cfg)
	for i, l := range lines {
		if l.Gap > 0 {
			t.Fatalf("line %d: a gap of %d", i+2, l.Gap)
		}
		kind := core.EventKind("reconfiguring")
		var actions []core.Action
		if l.Config != nil {
			next, err := l.Config.Core()
			if err != nil {
				t.Fatal(err)
			}
			actions = fresh.Reconfigure(l.T, next)
		} else {
			kind, actions = l.Event.Kind, fresh.Step(l.T, *l.Event)
		}
		got, _ := json.Marshal(actions)
		want, _ := json.Marshal(l.Actions)
		if len(l.Actions) == 0 {
			want = []byte("[]")
		}
		if string(got) != string(want) && (string(got) != "null" || len(l.Actions) != 0) {
			t.Fatalf("line %d, event %s: replayed %s, recorded %s", i+2, kind, got, want)
		}
	}
	return len(lines)
}

func TestRecordReplays(t *testing.T) {
	var record bytes.Buffer
	o := testOptions(t)
	o.Record = &record
	o.Self.PeerToken, o.Keys = "the peer token", apiKeys("the-key")
	rt, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	rt.Start(ctx)
	b := serveWith(t, rt)
	b.attach("us-0", engine(t, speak("a", " b")))
	b.attach("us-1", engine(t, status(500)))
	secret := strings.Repeat("the prompt ", 30)
	for range 20 {
		read(t, b.post(chatPath, `{"model":"chat-small","stream":true,"user":"the user","messages":[{"role":"user","content":"`+secret+`"}]}`, "Authorization: Bearer the-key"))
	}
	c := b.settled()
	stop()
	if err := rt.Close(); err != nil {
		t.Fatal(err)
	}
	if n := replays(t, record.Bytes()); n < 60 {
		t.Errorf("%d steps are recorded, want all", n)
	}
	if c.Finished != 20 {
		t.Errorf("counts %+v, want 20 finished", c)
	}
	for _, value := range []string{"the prompt", "the peer token", "the-key", "the user"} {
		if bytes.Contains(record.Bytes(), []byte(value)) {
			t.Errorf("the record holds %q", value)
		}
	}
}

// blockedWriter is a writer that blocks until it is released.
type blockedWriter struct {
	mu     sync.Mutex
	closed chan struct{}
	bytes.Buffer
}

func (w *blockedWriter) Write(p []byte) (int, error) {
	<-w.closed
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.Buffer.Write(p)
}

func TestSlowRecordCountsDroppedSteps(t *testing.T) {
	w := &blockedWriter{closed: make(chan struct{})}
	c := &recorder{out: newRecordWriter(w, slog.New(slog.DiscardHandler)), lines: make(chan queuedLine, 4)}
	for i := range 10 {
		c.recordStep(time.Duration(i), core.Event{Kind: core.EventTick}, nil)
	}
	if c.droppedSteps() != 6 {
		t.Errorf("%d steps are lost, want 6", c.droppedSteps())
	}
	for range 3 {
		c.encodeLine((<-c.lines).Line)
	}
	c.recordStep(10, core.Event{Kind: core.EventTick}, nil)
	close(w.closed)
	ctx, stop := context.WithCancel(context.Background())
	stop()
	c.runRecorder(ctx)
	var got []string
	for line := range strings.SplitSeq(strings.TrimSpace(w.String()), "\n") {
		got = append(got, line)
	}
	want := []string{
		`{"t":0,"event":{"kind":"tick"}}`, `{"t":1,"event":{"kind":"tick"}}`, `{"t":2,"event":{"kind":"tick"}}`,
		`{"t":3,"event":{"kind":"tick"}}`, `{"t":10,"gap":6}`, `{"t":10,"event":{"kind":"tick"}}`,
	}
	if !equal(got, want) {
		t.Errorf("recorded\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// Requests that are aborted at shutdown are reported after the clock has stopped. The record replays
// to the last step.
func TestRecordContainsLastSteps(t *testing.T) {
	var w bytes.Buffer
	o := testOptions(t)
	o.Record = &w
	rt, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	rt.Start(ctx)
	stop()
	rt.goroutines.Wait()
	rt.Step(core.Event{Kind: core.EventCancelled, ID: "the-last"})
	if err := rt.Close(); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(w.String(), "the-last") {
		t.Errorf("recorded\n%s\nwithout the last step", &w)
	}
}

type failingWriter struct{}

func (failingWriter) Write([]byte) (int, error) { return 0, errors.New("disk full") }

func TestRecordWriteFailure(t *testing.T) {
	o := testOptions(t)
	o.Record = failingWriter{}
	rt, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	rt.Start(ctx)
	rt.Step(core.Event{Kind: core.EventTick})
	stop()
	if err := rt.Close(); err == nil || err.Error() != "writing the record: disk full" {
		t.Errorf("Close() = %v, want the failure to write", err)
	}
}

// fullWriter is a file on a disk with limited space.
type fullWriter struct {
	bytes.Buffer
	room int
}

func (w *fullWriter) Write(p []byte) (int, error) {
	n := min(len(p), w.room)
	w.room -= n
	w.Buffer.Write(p[:n])
	if n < len(p) {
		return n, errors.New("no space left on device")
	}
	return n, nil
}

// The line of a crash is the last one: a write that failed shortly before does not delay it.
func TestCrashIsWrittenRightAfterFailedWrite(t *testing.T) {
	w := &fullWriter{}
	c := newRecorder(w, record.Header{Record: record.Version}, 4, slog.New(slog.DiscardHandler)) // its header is not written
	w.room = 1 << 20
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { c.runRecorder(ctx); close(ended) }()
	c.recordCrash(1, core.Event{Kind: core.EventTick}, "the cause")
	atReturn := w.room
	stop()
	<-ended
	if _, lines := readRecord(t, bytes.NewReader(w.Bytes())); atReturn == 1<<20 || len(lines) != 1 || lines[0].Panic != "the cause" {
		t.Errorf("recorded %v with %d bytes of space, want the crash", lines, atReturn)
	}
}

// If a disk is full for a while, the lines that fit into memory are written later, and the others
// become a gap. No line is split, and every step is in the record or in a gap.
func TestRecordResumesWhenDiskHasSpace(t *testing.T) {
	const steps = 1000
	for _, held := range []int{1 << 20, 1 << 12} {
		for room := range 100 {
			var logged bytes.Buffer
			w := &fullWriter{room: room}
			c := newRecorder(w, record.Header{Record: record.Version}, steps, slog.New(slog.NewTextHandler(&logged, nil)))
			c.out.maxBuffer = held
			for i := range steps {
				if i == steps/2 {
					w.room = 1 << 30
					c.out.flush(true)
				}
				c.encodeLine(record.Line{T: time.Duration(i), Event: &core.Event{Kind: core.EventTick}})
			}
			c.finish(steps)
			_, lines := readRecord(t, bytes.NewReader(w.Bytes()))
			count, gaps := int64(0), int64(0)
			for _, l := range lines {
				if gaps += l.Gap; l.Gap == 0 {
					count++
				}
			}
			if count+gaps != steps || gaps != c.droppedSteps() || (gaps > 0) != (held < 1<<20) {
				t.Errorf("space for %d bytes, %d buffered: %d steps and %d in gaps of %d, %d counted as lost", room, held, count, gaps, steps, c.droppedSteps())
			}
			if err := c.failure(); err != nil {
				t.Error(err)
			}
			if n := strings.Count(logged.String(), "level=ERROR"); n != 1 {
				t.Errorf("it was logged %d times: %s", n, &logged)
			}
		}
	}
}

// What the caller of a step does with an event's lists afterwards does not change the record.
func TestRecordedEventIsACopy(t *testing.T) {
	ev := core.Event{
		Kind: core.EventCacheChanged, CacheChanges: []core.CacheChange{{Kind: core.CacheStored}}, CacheUpdates: []core.CacheUpdate{{Replica: "a"}}, Names: []string{"m"},
	}
	recorded := cloneEvent(ev)
	ev.CacheChanges[0].Kind, ev.CacheUpdates[0].Replica, ev.Names[0] = core.CacheCleared, "b", "n"
	if recorded.CacheChanges[0].Kind != core.CacheStored || recorded.CacheUpdates[0].Replica != "a" || recorded.Names[0] != "m" {
		t.Errorf("recorded %+v", recorded)
	}
}
