package agent

import (
	"context"
	"fmt"
	"strings"
	"sync"

	"skyserve/internal/telemetry"
)

// prepare prepares a machine for a container: it checks the GPU driver, then pulls the image and downloads
// weights and adapters at the same time, so that a start takes the longest of them and not their sum.
// It returns further arguments for the engine.
func (s *System) prepare(ctx context.Context, u Unit, report func(Progress)) (args []string, err error) {
	if u.GPUs {
		report(Progress{Phase: PhasePreparing, Reason: "checking the GPU driver"})
		if _, err := s.call(ctx, "nvidia-smi", "-L"); err != nil {
			return nil, fmt.Errorf("checking the GPU driver: %w", err)
		}
	}
	p := &preparation{image: u.Image, report: report}
	steps := []func(context.Context) error{func(ctx context.Context) error {
		defer p.pullEnded()
		return s.pull(ctx, u.Image, p.pullStarted, p.pullProgress)
	}}
	if u.Weights != nil || len(u.Adapters) > 0 {
		steps = append(steps, func(ctx context.Context) error {
			defer p.downloadEnded()
			return s.fetchFiles(ctx, u, p.downloadProgress)
		})
	}
	if err := runTogether(ctx, steps); err != nil {
		return nil, err
	}
	return s.rankArgs(u)
}

// runTogether runs steps at the same time. After the first error it cancels the others. It returns that error
// once all have ended.
func runTogether(ctx context.Context, steps []func(context.Context) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var running sync.WaitGroup
	for _, step := range steps {
		running.Go(func() {
			if err := step(ctx); err != nil {
				cancel(err)
			}
		})
	}
	running.Wait()
	return context.Cause(ctx)
}

// fetchFiles downloads a unit's weights, then its adapters.
func (s *System) fetchFiles(ctx context.Context, u Unit, report func(what string, b telemetry.ByteCount)) error {
	if w := u.Weights; w != nil {
		if err := s.fetch(ctx, u, w.Source, func(b telemetry.ByteCount) { report("", b) }); err != nil {
			return err
		}
	}
	for _, a := range u.Adapters {
		err := s.fetch(ctx, u, a.Source, func(b telemetry.ByteCount) { report("adapter "+a.Name+", ", b) })
		if err != nil {
			return fmt.Errorf("adapter %s: %w", a.Name, err)
		}
	}
	return nil
}

// fetch downloads a folder of a bucket, or a repository of the hub.
func (s *System) fetch(ctx context.Context, u Unit, from string, report func(telemetry.ByteCount)) error {
	dir := weightsDir(s.Dir, from)
	if repo, isHub := strings.CutPrefix(from, HubScheme); isHub {
		if s.FetchHub != nil {
			return s.FetchHub(ctx, repo, u.hubToken(), dir, report)
		}
		return fetchHub(ctx, repo, u.hubToken(), dir, report)
	}
	if s.FetchBucket != nil {
		return s.FetchBucket(ctx, from, dir, report)
	}
	return fetchWeights(ctx, from, dir, report)
}

// preparation reports the progress of concurrent steps as one phase: the image while it is being pulled,
// with the progress of the download beside it, then the download.
type preparation struct {
	image  string
	report func(Progress)

	mu              sync.Mutex
	pullRunning     bool
	downloadRunning bool
	progress        string // of the download, as text; empty before it begins
	bytes           telemetry.ByteCount
	imageBytes      telemetry.ByteCount // the total is 0 before it is known
}

func (p *preparation) pullStarted() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.pullRunning = true
	p.reportPhase()
}

// pullProgress records the bytes of the image.
func (p *preparation) pullProgress(b telemetry.ByteCount) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.imageBytes = b
	p.reportPhase()
}

func (p *preparation) pullEnded() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.pullRunning = false
	if p.progress != "" {
		p.reportPhase()
	}
}

// downloadProgress records the progress of a download; what names it before its bytes.
func (p *preparation) downloadProgress(what string, b telemetry.ByteCount) {
	p.mu.Lock()
	defer p.mu.Unlock()
	const gb = 1e9
	p.downloadRunning, p.bytes = true, b
	p.progress = fmt.Sprintf("%s%.1f of %.1f GB", what, float64(b.Done)/gb, float64(b.Total)/gb)
	p.reportPhase()
}

func (p *preparation) downloadEnded() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.downloadRunning = false
	if p.pullRunning {
		p.reportPhase()
	}
}

// reportPhase reports the phase; the caller holds the lock.
func (p *preparation) reportPhase() {
	now := Progress{Phase: PhaseImage, Reason: p.image}
	switch {
	case !p.pullRunning:
		now.Phase, now.Reason = PhaseWeights, p.progress
	case p.progress != "":
		now.Reason += "; weights: " + p.progress
	}
	if p.pullRunning {
		step := Step{Name: telemetry.StartImage}
		if bytes := p.imageBytes; bytes.Total > 0 {
			step.Bytes = &bytes
		}
		now.ActivePhases = append(now.ActivePhases, step)
	}
	if p.downloadRunning {
		bytes := p.bytes
		now.ActivePhases = append(now.ActivePhases, Step{Name: telemetry.StartWeights, Bytes: &bytes})
	}
	p.report(now)
}
