package agent

import (
	"testing"
	"time"

	"skyserve/internal/telemetry"
)

// at is a time of the tests of phases: some seconds after their begin.
func at(s int) time.Time {
	return time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC).Add(time.Duration(s) * time.Second)
}

func TestPhasesAreMeasured(t *testing.T) {
	image, load, warm := Step{Name: telemetry.StartImage}, Step{Name: telemetry.StartLoad}, Step{Name: telemetry.StartWarmup}
	weights := func(gb int64) Step {
		return Step{telemetry.StartWeights, &telemetry.ByteCount{Done: gb * 1e9, Total: 16e9}}
	}
	for _, tt := range []struct {
		name string
		run  func(*startTimer)
		now  int
		want string
	}{
		{"an image and weights at the same time", func(s *startTimer) {
			s.setRunning(at(10), image)
			s.setRunning(at(12), image, weights(0))
			s.setRunning(at(60), image, weights(4))
		}, 70, "image 1m0s, weights 58s 25 % of 16.0 GB"},
		{"the image has arrived", func(s *startTimer) {
			s.setRunning(at(10), image, weights(0))
			s.setRunning(at(60), weights(8))
		}, 70, "weights 1m0s 50 % of 16.0 GB"},
		{"ready", func(s *startTimer) {
			s.setRunning(at(10), image, weights(0))
			s.setRunning(at(60), weights(8))
			s.setRunning(at(100), load)
			s.setRunning(at(130), warm)
			s.finish(at(190))
		}, 1000, "ready in 3m10s: image 50s, weights 1m30s, load 30s, warmup 1m0s"},
		{"attempts add up, without the pauses between them", func(s *startTimer) {
			s.setRunning(at(0), image)
			s.setRunning(at(20))
			s.setRunning(at(35), image)
			s.setRunning(at(40), image)
		}, 45, "image 30s"},
		{"a pause", func(s *startTimer) {
			s.setRunning(at(0), image)
			s.setRunning(at(20))
		}, 30, "after 30s: image 20s"},
		{"an engine that restarts", func(s *startTimer) {
			s.setRunning(at(0), load)
			s.setRunning(at(10), warm)
			s.setRunning(at(15))
			s.setRunning(at(20), load)
		}, 25, "load 15s"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := newStartTimer(at(0), time.Time{})
			tt.run(s)
			if got := s.record(at(tt.now)).Summary(); got != tt.want {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}

// The sum of the phases that do not overlap is the whole start.
func TestFirstStartContainsBoot(t *testing.T) {
	first := newStartTimer(at(75), at(60))
	first.setRunning(at(75), Step{Name: telemetry.StartImage})
	first.setRunning(at(100), Step{Name: telemetry.StartLoad})
	first.finish(at(120))
	s := first.record(at(500)).WithBoot(at(0))
	if got, want := s.Summary(), "ready in 2m0s: boot 1m0s, enrolment 15s, image 25s, load 20s"; got != want || !s.StartedAt.Equal(at(0)) {
		t.Errorf("got %q from %s, want %q", got, s.StartedAt, want)
	}
	later := newStartTimer(at(75), time.Time{})
	later.setRunning(at(75), Step{Name: telemetry.StartLoad})
	for name, s := range map[string]*telemetry.Start{
		"a later start": later.record(at(80)).WithBoot(at(0)), "a clock that is behind": first.record(at(500)).WithBoot(at(61)), "an unknown launch": first.record(at(500)).WithBoot(time.Time{}),
	} {
		if s.Phases[0].Name == telemetry.StartBoot {
			t.Errorf("%s: %s", name, s.Summary())
		}
	}
	if (*telemetry.Start)(nil).WithBoot(at(0)) != nil || telemetry.BootingStart(time.Time{}, at(0)) != nil || telemetry.BootingStart(at(1), at(0)) != nil {
		t.Error("a start of an unknown machine")
	}
	if got := telemetry.BootingStart(at(0), at(72)).Summary(); got != "boot 1m12s" {
		t.Errorf("booting: %q", got)
	}
}
