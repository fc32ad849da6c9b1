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

// ReplayReport is the result of feeding the events of a record of `skyserve lb --record` to a new
// balancer. The same record yields the same report, byte for byte, until WallMillis is set.
type ReplayReport struct {
	Scenario  string          `json:"scenario"` // the record's name
	Title     string          `json:"title"`
	Constants ReplayConstants `json:"constants"`
	// Rows holds the recorded run and, if requested, simulated runs of its requests under other
	// policies.
	Rows    []ReplayRow `json:"rows"`
	Summary []Summary   `json:"summary"`
	Replay  Replay      `json:"replay"`
	// Simulated holds the constants of the simulation, nil without one; Assumed lists assumptions about
	// values that the record lacks, as sentences.
	Simulated *sim.Constants `json:"simulated"`
	Assumed   []string       `json:"assumed"`
	// WallMillis is the duration of the replay, set by the caller.
	WallMillis float64 `json:"wall_ms"`

	span time.Duration
}

// ReplayConstants describe the record's balancer.
type ReplayConstants struct {
	Started time.Time     `json:"started"`
	Self    record.Self   `json:"self"`
	Config  record.Config `json:"config"`
}

// Replay is the comparison of a record with the same decisions computed again.
type Replay struct {
	// Steps counts the replayed events and configuration changes, Seconds is the time from the first to
	// the last; Reconfigured counts the configuration changes.
	Steps        int64   `json:"steps"`
	Seconds      float64 `json:"duration_s"`
	Reconfigured int64   `json:"reconfigured"`
	// Identical reports that all actions were equal, byte for byte in JSON.
	Identical bool `json:"identical"`
	// Truncated reports that the record ends in the middle of a line; the steps before it were replayed.
	Truncated bool `json:"truncated"`
	// Panic is the value of the panic in the last step of the record, empty if there is none. That step
	// is not replayed.
	Panic string `json:"panic"`
	// Difference is the first step that differs, nil if none does.
	Difference *ReplayDifference `json:"difference"`
}

// MarshalJSON adds the former key of Truncated.
func (r Replay) MarshalJSON() ([]byte, error) {
	type plain Replay
	return json.Marshal(struct {
		plain
		OldTruncated bool `json:"cut"`
	}{plain(r), r.Truncated})
}

// ReplayDifference is a step whose replayed actions differ from the recorded ones.
type ReplayDifference struct {
	Line int           `json:"line"` // of the record, from 1
	T    time.Duration `json:"t_ns"` // time of the core
	// Event (or the changed configuration), Recorded and Replayed are JSON, as in the record.
	Event    json.RawMessage `json:"event"`
	Recorded json.RawMessage `json:"recorded"`
	Replayed json.RawMessage `json:"repeated"`
}

// ReplayRecord reads a record, plain or compressed with gzip, step by step, creates its balancer, feeds
// it every event at its recorded time and compares the actions. It stops at the first difference, which
// is part of the report and not an error. Errors refer to the record as name. A record with a gap, of
// another version, or an input that is not a record is an error.
func ReplayRecord(ctx context.Context, name string, in io.Reader) (*ReplayReport, error) {
	return replayRecord(ctx, name, in, func(*recordedStep) {})
}

// replayRecord is ReplayRecord; it calls seen with each replayed step.
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
		line, err := rec.nextStep()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, err
		}
		replay.Difference, err = compareStep(again, rec, line)
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
		run.applyStep(line)
		seen(line)
	}
	replay.Identical, replay.Truncated, replay.Panic, replay.Seconds = replay.Difference == nil, rec.truncated, rec.panicked, run.span().Seconds()
	return newReplayReport(name, &rec.header, &run, replay), nil
}

// compareStep feeds one step to a balancer and compares its actions.
func compareStep(b *core.Balancer, rec *recordReader, line *recordedStep) (*ReplayDifference, error) {
	actions, err := line.applyTo(b)
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
			return nil, fmt.Errorf("replaying %s:%d: writing the actions as JSON: %w", rec.name, rec.line, err)
		}
	}
	if bytes.Equal(recorded, repeated) {
		return nil, nil //nolint:nilnil // no difference and no error
	}
	event, err := line.payload()
	if err != nil {
		return nil, fmt.Errorf("replaying %s:%d: writing the event as JSON: %w", rec.name, rec.line, err)
	}
	return &ReplayDifference{Line: rec.line, T: line.T, Event: event, Recorded: bytes.Clone(recorded), Replayed: repeated}, nil
}

// applyTo applies the line's event or configuration to a balancer.
func (s *recordedStep) applyTo(b *core.Balancer) ([]core.Action, error) {
	if s.Config == nil {
		return b.Step(s.T, *s.Event), nil
	}
	cfg, err := s.Config.Core()
	if err != nil {
		return nil, err
	}
	return b.Reconfigure(s.T, cfg), nil
}

// payload returns the line's event, or its configuration, as JSON.
func (s *recordedStep) payload() ([]byte, error) {
	if s.Config == nil {
		return json.Marshal(s.Event)
	}
	return json.Marshal(s.Config)
}

func newReplayReport(name string, h *record.Header, run *recordedRun, replay Replay) *ReplayReport {
	row := ReplayRow{Source: "recorded", Policy: h.Config.Policy, Push: h.Config.Push, RunFigures: run.figures(), Requests: run.finished}
	return &ReplayReport{
		Scenario: name,
		Title: fmt.Sprintf("balancer %s of %s in %s, from %s", h.Self.ID, h.Self.Service, h.Self.Region,
			h.Started.UTC().Format("2006-01-02 15:04:05 MST")),
		Constants: ReplayConstants{Started: h.Started, Self: h.Self, Config: h.Config},
		Rows:      []ReplayRow{row},
		Summary:   []Summary{{Policy: row.Policy, Push: row.Push, Mean: row.RunFigures}},
		Replay:    replay,
		Assumed:   []string{},
		span:      run.span(),
	}
}
