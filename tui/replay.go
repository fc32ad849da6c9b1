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

// maxRecordLine bounds a snapshot in a record: as much as the answer of an admin API.
const maxRecordLine = 64 << 20

// Replay is a Fetcher that plays a record back: one snapshot a line, in JSON. It shows
// each at its time since the first, and stays at the last. It holds two snapshots at a
// time, however long the record is, and is safe for concurrent use.
type Replay struct {
	name  string
	speed float64
	now   func() time.Time
	close func() error

	mu      sync.Mutex
	lines   *bufio.Scanner
	line    int // the number of the line that was read last
	shown   *telemetry.Snapshot
	next    *telemetry.Snapshot // nil at the end
	first   time.Time           // the stamp of the first snapshot
	began   time.Time           // when it was asked for; zero before
	damaged error               // why the record cannot be read on
}

// OpenReplay opens a record, compressed where its name ends in .gz, and reads how it
// begins: an error names the file and the line. Speed 2 plays twice as fast; now is the
// clock. Close it when it is no longer shown.
func OpenReplay(file string, speed float64, now func() time.Time) (*Replay, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, fmt.Errorf("opening the record: %w", err)
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
	r.read()
	switch {
	case r.damaged != nil:
		return nil, r.damaged
	case r.next == nil:
		return nil, fmt.Errorf("reading %s: the record is empty", name)
	}
	r.first = r.next.At
	return r, nil
}

// Close closes the file.
func (r *Replay) Close() error { return r.close() }

// String is the record's name.
func (r *Replay) String() string { return r.name }

// Fetch returns the snapshot whose time has come, with the record's name and whether it
// has ended. Where the record is damaged it fails from there on.
func (r *Replay) Fetch(context.Context) (*telemetry.Snapshot, string, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.began.IsZero() {
		r.began = r.now()
	}
	played := time.Duration(float64(r.now().Sub(r.began)) * r.speed)
	for r.next != nil && r.next.At.Sub(r.first) <= played {
		r.shown = r.next
		r.read()
	}
	switch {
	case r.next != nil:
		s := *r.shown
		return &s, r.name, nil
	case r.damaged != nil:
		return nil, "", r.damaged
	}
	s := *r.shown
	return &s, r.name + ": the record has ended", nil
}

// Ended says whether the last snapshot was fetched.
func (r *Replay) Ended() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.next == nil && r.damaged == nil
}

// read makes next the record's next snapshot. Where whoever wrote a record was killed
// between two lines, it ends there.
func (r *Replay) read() {
	r.next = nil
	if !r.lines.Scan() {
		if err := r.lines.Err(); err != nil && !errors.Is(err, io.ErrUnexpectedEOF) {
			r.damaged = fmt.Errorf("reading %s:%d: %w", r.name, r.line+1, err)
		}
		return
	}
	r.line++
	s, err := snapshotOf(r.lines.Bytes())
	if err != nil {
		r.damaged = fmt.Errorf("reading %s:%d: %w", r.name, r.line, err)
		return
	}
	r.next = s
}

// snapshotOf reads a line of a record.
func snapshotOf(line []byte) (*telemetry.Snapshot, error) {
	var s struct {
		telemetry.Snapshot
		Record *json.RawMessage `json:"record"` // begins the record of a balancer
	}
	err := json.Unmarshal(line, &s)
	switch {
	case len(bytes.TrimSpace(line)) == 0:
		return nil, errors.New("want a snapshot, found an empty line")
	case err != nil:
		return nil, fmt.Errorf("want a snapshot in one line, as --record writes it: %w", err)
	case s.Record != nil:
		return nil, errors.New("that is a balancer's record: skyserve sim replay")
	case s.At.IsZero() || s.Regions == nil:
		return nil, errors.New("want a snapshot, which has at and regions")
	}
	return &s.Snapshot, nil
}
