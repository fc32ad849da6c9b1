package tui

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"skyserve/internal/telemetry"
)

// maxRecordLine is the maximum size of a snapshot in a recording: that of a response of the
// admin API.
const maxRecordLine = 64 << 20

// Replay is a Fetcher that replays a recording: one JSON snapshot per line. It returns each
// snapshot at its time since the first, and then keeps returning the last. It keeps only
// two snapshots in memory, and is safe for concurrent use.
type Replay struct {
	name  string
	speed float64
	now   func() time.Time
	close func() error

	mu        sync.Mutex
	lines     *bufio.Scanner
	line      int // the number of the last line read
	current   *telemetry.Snapshot
	next      *telemetry.Snapshot // nil at the end
	first     time.Time           // the time of the first snapshot
	startedAt time.Time           // the time of the first Fetch; zero before
	readErr   error               // why the rest of the recording cannot be read
}

// OpenReplay opens a recording, gzipped if its name ends in .gz, and reads the first
// snapshot. Errors name the file and the line. Speed 2 replays twice as fast; now is the
// clock. The caller must close the Replay.
func OpenReplay(file string, speed float64, now func() time.Time) (*Replay, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, fmt.Errorf("opening the recording: %w", err)
	}
	in := io.Reader(f)
	if strings.HasSuffix(file, ".gz") {
		if in, err = gzip.NewReader(bufio.NewReader(f)); err != nil {
			return nil, errors.Join(fmt.Errorf("reading %s: unpacking gzip: %w", file, err), f.Close())
		}
	}
	r, err := newReplay(file, in, speed, now)
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	r.close = f.Close
	return r, nil
}

func newReplay(name string, in io.Reader, speed float64, now func() time.Time) (*Replay, error) {
	r := &Replay{name: name, speed: speed, now: now, lines: bufio.NewScanner(in)}
	r.lines.Buffer(nil, maxRecordLine)
	r.readNext()
	switch {
	case r.readErr != nil:
		return nil, r.readErr
	case r.next == nil:
		return nil, fmt.Errorf("reading %s: the recording is empty", name)
	}
	r.first = r.next.At
	return r, nil
}

// Close closes the file.
func (r *Replay) Close() error { return r.close() }

// String returns the name of the recording.
func (r *Replay) String() string { return r.name }

// Fetch returns the snapshot that is due, and the recording's name with a note once it has
// ended. It fails from the first damaged line on.
func (r *Replay) Fetch(context.Context) (*telemetry.Snapshot, string, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.startedAt.IsZero() {
		r.startedAt = r.now()
	}
	played := time.Duration(float64(r.now().Sub(r.startedAt)) * r.speed)
	for r.next != nil && r.next.At.Sub(r.first) <= played {
		r.current = r.next
		r.readNext()
	}
	switch {
	case r.next != nil:
		s, source := *r.current, r.name
		if r.speed != 1 {
			source += fmt.Sprintf(" at %gx", r.speed)
		}
		return &s, source, nil
	case r.readErr != nil:
		return nil, "", FileError{r.readErr}
	}
	s := *r.current
	return &s, r.name + ": end of recording", nil
}

// Ended reports whether the last snapshot was fetched.
func (r *Replay) Ended() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.next == nil && r.readErr == nil
}

// readNext sets next to the recording's next snapshot. A truncated gzip stream, left behind by
// a killed writer, ends the recording without an error, also within a line.
func (r *Replay) readNext() {
	r.next = nil
	if !r.lines.Scan() {
		if err := r.lines.Err(); err != nil && !errors.Is(err, io.ErrUnexpectedEOF) {
			r.readErr = fmt.Errorf("reading %s:%d: %w", r.name, r.line+1, err)
		}
		return
	}
	r.line++
	s, err := parseSnapshot(r.lines.Bytes())
	if err != nil && errors.Is(r.lines.Err(), io.ErrUnexpectedEOF) && !r.lines.Scan() {
		return
	}
	if err != nil {
		r.readErr = fmt.Errorf("reading %s:%d: %w", r.name, r.line, err)
		return
	}
	r.next = s
}

// parseSnapshot parses one line of a recording.
func parseSnapshot(line []byte) (*telemetry.Snapshot, error) {
	var s struct {
		telemetry.Snapshot
		Record *json.RawMessage `json:"record"` // first line of a balancer's recording
	}
	err := json.Unmarshal(line, &s)
	var syntax *json.SyntaxError
	switch {
	case len(bytes.TrimSpace(line)) == 0:
		return nil, errors.New("must be a snapshot, found an empty line")
	case errors.As(err, &syntax):
		return nil, errors.New("must be one snapshot per line, as written by --record: this line is not JSON")
	case err != nil:
		return nil, fmt.Errorf("must be one snapshot per line, as written by --record: %w", err)
	case s.Record != nil:
		return nil, errors.New("this is the record of a balancer; use 'skyserve sim replay'")
	case s.At.IsZero() || s.Regions == nil:
		return nil, errors.New("must be a snapshot with the keys at and regions")
	}
	return &s.Snapshot, nil
}
