package eval

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"skyserve/lbd/core"
	"skyserve/lbd/record"
)

// maxRecordLine limits a line of a record. Twice the key of the largest accepted prompt plus thousands
// of candidates stay far below it.
const maxRecordLine = 64 << 20

// recordReader reads a record. It keeps only one line in memory.
type recordReader struct {
	name      string
	in        *bufio.Reader
	header    record.Header
	line      int           // of the last line read, from 1
	at        time.Duration // of the last step read
	truncated bool          // the record ended in the middle of a line
	panicked  string        // the value of the panic that ended the record; may be empty
	step      recordedStep
}

// recordedStep is a line of a record with its actions as raw JSON: an event, or the configuration from
// then on.
type recordedStep struct {
	T       time.Duration   `json:"t"`
	Event   *core.Event     `json:"event"`
	Config  *record.Config  `json:"config"`
	Actions json.RawMessage `json:"actions"`
	Gap     int64           `json:"gap"`
	Panic   string          `json:"panic"`
}

// openRecord opens a record and reads its first line.
func openRecord(name string, in io.Reader) (*recordReader, error) {
	r := &recordReader{name: name, in: bufio.NewReaderSize(in, 64<<10)}
	if magic, err := r.in.Peek(2); err == nil && magic[0] == 0x1f && magic[1] == 0x8b {
		plain, err := gzip.NewReader(r.in)
		if err != nil {
			return nil, fmt.Errorf("reading %s: decompressing gzip: %w", name, err)
		}
		r.in = bufio.NewReaderSize(plain, 64<<10)
	}
	text, err := r.text()
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	return r, r.readHeader(text)
}

// readHeader checks the first line.
func (r *recordReader) readHeader(text []byte) error {
	var version struct {
		Record int `json:"record"`
	}
	if err := json.Unmarshal(text, &version); err != nil || version.Record == 0 {
		return fmt.Errorf("reading %s: not a record: the first line must be the header that 'skyserve lb --record' writes", r.name)
	}
	if version.Record != record.Version {
		return fmt.Errorf("reading %s:1: record version must be %d, got %d: replay it with the skyserve version that wrote it",
			r.name, record.Version, version.Record)
	}
	if err := json.Unmarshal(text, &r.header); err != nil {
		return fmt.Errorf("reading %s:1: decoding the header: %w", r.name, err)
	}
	return nil
}

// text reads a line without its end; io.EOF if there is none. A last line without an end sets
// truncated: the balancer was killed, or is still writing.
func (r *recordReader) text() ([]byte, error) {
	var long []byte
	for {
		piece, err := r.in.ReadSlice('\n')
		if len(long)+len(piece) > maxRecordLine {
			return nil, fmt.Errorf("reading %s:%d: the line is longer than %d MiB", r.name, r.line+1, maxRecordLine>>20)
		}
		switch {
		case err == nil:
			r.line++
			if long == nil {
				return piece[:len(piece)-1], nil
			}
			return append(long, piece[:len(piece)-1]...), nil
		case errors.Is(err, bufio.ErrBufferFull):
			long = append(long, piece...)
		case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
			r.truncated = len(long)+len(piece) > 0 || errors.Is(err, io.ErrUnexpectedEOF)
			return nil, io.EOF
		default:
			return nil, fmt.Errorf("reading %s:%d: %w", r.name, r.line+1, err)
		}
	}
}

// nextStep returns the next step, valid until the next call; io.EOF at the end.
func (r *recordReader) nextStep() (*recordedStep, error) {
	text, err := r.text()
	if err != nil {
		return nil, err
	}
	s := &r.step
	*s = recordedStep{Actions: s.Actions[:0]}
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.DisallowUnknownFields() // an unknown field would make the replay differ
	if err := dec.Decode(s); err != nil {
		return nil, fmt.Errorf("reading %s:%d: decoding a step: %w", r.name, r.line, err)
	}
	switch {
	case s.Panic != "": // replaying the step would panic too
		r.panicked = s.Panic
		return nil, io.EOF
	case s.Gap > 0:
		return nil, fmt.Errorf("reading %s:%d: %d steps are missing: the disk was too slow for the balancer, so the record cannot be replayed", r.name, r.line, s.Gap)
	case s.T < r.at:
		return nil, fmt.Errorf("reading %s:%d: t: must not be before %s, got %s", r.name, r.line, r.at, s.T)
	}
	if err := s.checkStep(); err != nil {
		return nil, fmt.Errorf("reading %s:%d: %w", r.name, r.line, err)
	}
	r.at = s.T
	return s, nil
}

// requiredFields lists the known kinds of events with the field that each requires.
var requiredFields = map[core.EventKind]struct {
	field string
	has   func(*core.Event) bool
}{
	core.EventArrived:          {"request", func(e *core.Event) bool { return e.Request != nil }},
	core.EventFirstToken:       {},
	core.EventProgress:         {},
	core.EventFinished:         {},
	core.EventFailed:           {},
	core.EventCancelled:        {},
	core.EventBounced:          {},
	core.EventReplicaAdded:     {"replica", func(e *core.Event) bool { return e.Replica != nil }},
	core.EventReplicaRemoved:   {},
	core.EventReplicaDraining:  {},
	core.EventReplicaNames:     {},
	core.EventReplicaReport:    {"report", func(e *core.Event) bool { return e.Report != nil }},
	core.EventPeerAdded:        {"peer", func(e *core.Event) bool { return e.Peer != nil }},
	core.EventPeerRemoved:      {},
	core.EventPeerReport:       {"peer_report", func(e *core.Event) bool { return e.PeerReport != nil }},
	core.EventPeerCacheUpdates: {},
	core.EventCacheChanged:     {},
	core.EventTick:             {},
}

// checkStep rejects a line that is neither an event nor a configuration.
func (s *recordedStep) checkStep() error {
	switch {
	case s.Config == nil:
		return checkEvent(s.Event)
	case s.Event != nil:
		return errors.New("config: must not be combined with an event")
	}
	return nil
}

// checkEvent rejects events that a balancer never receives.
func checkEvent(e *core.Event) error {
	if e == nil {
		return errors.New("event: missing")
	}
	need, known := requiredFields[e.Kind]
	switch {
	case !known:
		return fmt.Errorf("event.kind: unknown kind %q", e.Kind)
	case need.has != nil && !need.has(e):
		return fmt.Errorf("event.%s: missing in an event of kind %s", need.field, e.Kind)
	}
	return nil
}
