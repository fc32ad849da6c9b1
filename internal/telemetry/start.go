package telemetry

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"skyserve/internal/printable"
	"skyserve/internal/service"
)

// StartPhaseName names a phase of a replica's start.
type StartPhaseName string

// The phases, in their usual order. Images and weights are downloaded at the same time.
const (
	StartBoot      StartPhaseName = "boot"      // from the launch of the machine until its agent runs
	StartEnrolment StartPhaseName = "enrolment" // until it receives its deployment
	StartImage     StartPhaseName = "image"     // the image is pulled
	StartWeights   StartPhaseName = "weights"   // weights and adapters are downloaded to the machine
	StartLoad      StartPhaseName = "load"      // the engine starts and loads the weights
	StartWarmup    StartPhaseName = "warmup"    // the engine compiles and measures, until it is ready
)

// ByteCount counts the bytes of a download.
type ByteCount struct {
	Done  int64 `json:"done"`
	Total int64 `json:"total"`
}

// StartPhase is a phase of a start.
type StartPhase struct {
	Name      StartPhaseName `json:"name"`
	StartedAt time.Time      `json:"started_at"`
	// Seconds is its duration so far. The times of several attempts are added.
	Seconds float64 `json:"seconds"`
	// Running is true while the phase is in progress.
	Running bool `json:"running"`
	// Bytes counts the bytes of a download; nil = unknown.
	Bytes *ByteCount `json:"bytes"`
}

// Start is the record of a replica's last start. Phases that were not necessary are missing.
type Start struct {
	StartedAt time.Time `json:"started_at"`
	// Seconds is the time until the replica was ready, or so far.
	Seconds float64      `json:"seconds"`
	Ready   bool         `json:"ready"`
	Phases  []StartPhase `json:"phases"`
}

// WithBoot returns the record of a machine's first start with the phase "boot" since its launch. Other
// starts, and launches in the future by the clock of the machine, are returned unchanged.
func (s *Start) WithBoot(launched time.Time) *Start {
	if s == nil || launched.IsZero() || len(s.Phases) == 0 || s.Phases[0].Name != StartEnrolment {
		return s
	}
	boot := s.StartedAt.Sub(launched)
	if boot < 0 {
		return s
	}
	whole := *s
	whole.StartedAt, whole.Seconds = launched, s.Seconds+boot.Seconds()
	whole.Phases = slices.Concat([]StartPhase{{Name: StartBoot, StartedAt: launched, Seconds: boot.Seconds()}}, s.Phases)
	return &whole
}

// BootingStart returns the record of a machine whose agent does not respond yet.
func BootingStart(launched, now time.Time) *Start {
	if launched.IsZero() || now.Before(launched) {
		return nil
	}
	s := now.Sub(launched).Seconds()
	return &Start{StartedAt: launched, Seconds: s, Phases: []StartPhase{{Name: StartBoot, StartedAt: launched, Seconds: s, Running: true}}}
}

// Running returns the phases in progress.
func (s *Start) Running() (phases []StartPhase) {
	for _, p := range s.Phases {
		if p.Running {
			phases = append(phases, p)
		}
	}
	return phases
}

// Summary returns the record in one line: of a start in progress the current phases, such as "image
// 3m10s, weights 3m10s 41 % of 16.1 GB"; of a completed one all, such as "ready in 5m0s: boot 1m2s, load 3m58s".
func (s *Start) Summary() string {
	if s == nil {
		return ""
	}
	phases, prefix := s.Running(), ""
	if s.Ready || len(phases) == 0 {
		phases, prefix = s.Phases, "after "+seconds(s.Seconds)+": "
	}
	if s.Ready {
		prefix = "ready in " + seconds(s.Seconds) + ": "
	}
	texts := make([]string, len(phases))
	for i, p := range phases {
		texts[i] = p.String()
	}
	return prefix + strings.Join(texts, ", ")
}

// String returns the name of a phase with its duration, and the progress of a running download.
func (p StartPhase) String() string {
	text := string(p.Name) + " " + seconds(p.Seconds)
	if b := p.Bytes; p.Running && b != nil && b.Total > 0 {
		text += fmt.Sprintf(" %d %% of %s", 100*b.Done/b.Total, printable.Bytes(b.Total))
	}
	return text
}

// seconds formats a duration in whole seconds.
func seconds(s float64) string {
	return (time.Duration(s) * time.Second).String()
}

// ReplicaStart is the record of the last start of a replica, by its id.
type ReplicaStart struct {
	Replica string `json:"replica"`
	// Region and GPU are where it runs, aws/us-east-1, and the model of its GPUs, L4; empty = unknown.
	Region service.Region `json:"region,omitempty"`
	GPU    string         `json:"gpu,omitempty"`
	Start  *Start         `json:"start"`
}

// StartReason returns the reason of a replica's state with its start: of a replica that starts, the current
// phases with their times, such as "image 3m10s, weights 3m10s 41 % of 16.1 GB"; of a ready one the time that it
// needed. It returns the reason alone if the start is unknown.
func StartReason(s *Start, state service.ReplicaState, reason string) string {
	switch {
	case s == nil:
		return reason
	case state == service.StateReady && s.Ready:
		return strings.TrimPrefix(reason+"; ready in "+seconds(s.Seconds), "; ")
	case !s.Ready && (state == service.StateStarting || state == service.StateProvisioning || state == service.StateNotReady):
		return strings.TrimSuffix(s.Summary()+"; "+reason, "; ")
	}
	return reason
}
