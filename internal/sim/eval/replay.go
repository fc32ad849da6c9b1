package eval

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"skyserve/internal/sim"
	"skyserve/lbd/core"
	"skyserve/lbd/record"
)

// ReplayReport is what a record of `skyserve lb --record` tells when its events
// are fed to a balancer again. It is the same for the same record, byte for
// byte, until WallMillis is set.
type ReplayReport struct {
	Scenario  string          `json:"scenario"` // the record's name
	Title     string          `json:"title"`
	Constants ReplayConstants `json:"constants"`
	// Rows has what the recorded run measured and, where that was asked for, what
	// its requests would have met under other policies.
	Rows    []ReplayRow `json:"rows"`
	Summary []Summary   `json:"summary"`
	Replay  Replay      `json:"replay"`
	// Simulated is what the simulation was made of, nil where there was none;
	// Assumed, what the record could not tell it, in words.
	Simulated *sim.Constants `json:"simulated"`
	Assumed   []string       `json:"assumed"`
	// WallMillis is how long the replay took, for whoever measured it.
	WallMillis float64 `json:"wall_ms"`

	span time.Duration
}

// ReplayConstants is what the record's balancer was.
type ReplayConstants struct {
	Started time.Time     `json:"started"`
	Self    record.Self   `json:"self"`
	Config  record.Config `json:"config"`
}

// Replay is how a record compares with the same decisions made again.
type Replay struct {
	// Steps counts the events and changes of configuration repeated, Seconds the
	// time from the first to the last; Reconfigured, those changes.
	Steps        int64   `json:"steps"`
	Seconds      float64 `json:"duration_s"`
	Reconfigured int64   `json:"reconfigured"`
	// Identical: every action was the same, byte for byte in JSON.
	Identical bool `json:"identical"`
	// Cut: the record ends in the middle of a line; what is before it was repeated.
	Cut bool `json:"cut"`
	// Panic is the value of the panic in the last step of the record, empty if there is
	// none. That step is not repeated.
	Panic string `json:"panic"`
	// Difference is the first step that differs, nil where none does.
	Difference *Difference `json:"difference"`
}

// Difference is a step whose actions are not those of the record.
type Difference struct {
	Line int           `json:"line"` // of the record, from 1
	T    time.Duration `json:"t_ns"` // core's time
	// Event (or the configuration that changed), Recorded and Repeated are JSON as
	// the record has it.
	Event    json.RawMessage `json:"event"`
	Recorded json.RawMessage `json:"recorded"`
	Repeated json.RawMessage `json:"repeated"`
}

// ReplayRecord reads a record, plain or compressed with gzip, step by step, makes
// its balancer again, feeds it every event at its recorded time and compares the
// actions. It stops at the first difference, which is no error but part of the
// report; name says where lines come from in errors. A record with a gap, of
// another version or not a record at all is an error.
func ReplayRecord(ctx context.Context, name string, in io.Reader) (*ReplayReport, error) {
	return replayRecord(ctx, name, in, func(*recordedStep) {})
}

// replayRecord is ReplayRecord; seen is given each step that was repeated.
func replayRecord(ctx context.Context, name string, in io.Reader, seen func(*recordedStep)) (*ReplayReport, error) {
	rec, err := openRecord(name, in)
	if err != nil {
		return nil, err
	}
	cfg, err := rec.header.Config.Core()
	if err != nil {
		return nil, fmt.Errorf("reading %s:1: %w", name, err)
	}
	again := core.New(cfg)
	var run recordedRun
	var replay Replay
	for {
		if replay.Steps%4096 == 0 && ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		line, err := rec.next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, err
		}
		replay.Difference, err = repeat(again, rec, line)
		if err != nil {
			return nil, err
		}
		if replay.Difference != nil {
			break
		}
		replay.Steps++
		if line.Config != nil {
			replay.Reconfigured++
		}
		run.step(line)
		seen(line)
	}
	replay.Identical, replay.Cut, replay.Panic, replay.Seconds = replay.Difference == nil, rec.cut, rec.panicked, run.span().Seconds()
	return newReplayReport(name, &rec.header, &run, replay), nil
}

// repeat feeds one step to a balancer and compares what it does.
func repeat(b *core.Balancer, rec *recordReader, line *recordedStep) (*Difference, error) {
	actions, err := line.feed(b)
	if err != nil {
		return nil, fmt.Errorf("reading %s:%d: %w", rec.name, rec.line, err)
	}
	recorded := line.Actions
	if len(recorded) == 0 {
		recorded = json.RawMessage("[]")
	}
	repeated := []byte("[]")
	if len(actions) > 0 {
		if repeated, err = json.Marshal(actions); err != nil {
			return nil, fmt.Errorf("repeating %s:%d: writing the actions as JSON: %w", rec.name, rec.line, err)
		}
	}
	if bytes.Equal(recorded, repeated) {
		return nil, nil //nolint:nilnil // no difference and no error
	}
	event, err := line.what()
	if err != nil {
		return nil, fmt.Errorf("repeating %s:%d: writing the event as JSON: %w", rec.name, rec.line, err)
	}
	return &Difference{Line: rec.line, T: line.T, Event: event, Recorded: bytes.Clone(recorded), Repeated: repeated}, nil
}

// feed does to a balancer what the line says.
func (s *recordedStep) feed(b *core.Balancer) ([]core.Action, error) {
	if s.Config == nil {
		return b.Step(s.T, *s.Event), nil
	}
	cfg, err := s.Config.Core()
	if err != nil {
		return nil, err
	}
	return b.Reconfigure(s.T, cfg), nil
}

// what is the line's event, or its configuration, as JSON.
func (s *recordedStep) what() ([]byte, error) {
	if s.Config == nil {
		return json.Marshal(s.Event)
	}
	return json.Marshal(s.Config)
}

func newReplayReport(name string, h *record.Header, run *recordedRun, replay Replay) *ReplayReport {
	row := ReplayRow{Of: "recorded", Policy: h.Config.Policy, Push: h.Config.Push, Figures: run.figures(), Requests: run.finished}
	return &ReplayReport{
		Scenario: name,
		Title: fmt.Sprintf("balancer %s of %s in %s, from %s on", h.Self.ID, h.Self.Service, h.Self.Region,
			h.Started.UTC().Format("2006-01-02 15:04:05 MST")),
		Constants: ReplayConstants{Started: h.Started, Self: h.Self, Config: h.Config},
		Rows:      []ReplayRow{row},
		Summary:   []Summary{{Policy: row.Policy, Push: row.Push, Mean: row.Figures}},
		Replay:    replay,
		Assumed:   []string{},
		span:      run.span(),
	}
}
