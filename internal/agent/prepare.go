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
		defer p.pulled()
		return s.pull(ctx, u.Image, p.pulling, p.pullingBytes)
	}}
	if u.Weights != nil || len(u.Adapters) > 0 {
		steps = append(steps, func(ctx context.Context) error {
			defer p.fetched()
			return s.fetchFiles(ctx, u, p.fetching)
		})
	}
	if err := runTogether(ctx, steps); err != nil {
		return nil, err
	}
	return s.rankArgs(u)
}

// runTogether runs steps at the same time. It returns the first error, after which it cancels the others,
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
		if err := s.fetch(ctx, u, w.From, func(b telemetry.ByteCount) { report("", b) }); err != nil {
			return err
		}
	}
	for _, a := range u.Adapters {
		err := s.fetch(ctx, u, a.From, func(b telemetry.ByteCount) { report("adapter "+a.Name+", ", b) })
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
	if s.Fetch != nil {
		return s.Fetch(ctx, from, dir, report)
	}
	return fetchWeights(ctx, from, dir, report)
}

// preparation reports the progress of concurrent steps as one phase: the image while it is being pulled,
// with the progress of the download beside it, then the download.
type preparation struct {
	image  string
	report func(Progress)

	mu         sync.Mutex
	isPull     bool
	isDownload bool
	progress   string // of the download, as text; empty before it begins
	bytes      telemetry.ByteCount
	imageBytes telemetry.ByteCount // the total is 0 before it is known
}

func (p *preparation) pulling() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.isPull = true
	p.show()
}

// pullingBytes records the bytes of the image.
func (p *preparation) pullingBytes(b telemetry.ByteCount) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.imageBytes = b
	p.show()
}

func (p *preparation) pulled() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.isPull = false
	if p.progress != "" {
		p.show()
	}
}

// fetching records the progress of a download; what names it before its bytes.
func (p *preparation) fetching(what string, b telemetry.ByteCount) {
	p.mu.Lock()
	defer p.mu.Unlock()
	const gb = 1e9
	p.isDownload, p.bytes = true, b
	p.progress = fmt.Sprintf("%s%.1f of %.1f GB", what, float64(b.Done)/gb, float64(b.Total)/gb)
	p.show()
}

func (p *preparation) fetched() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.isDownload = false
	if p.isPull {
		p.show()
	}
}

// show reports the phase; the caller holds the lock.
func (p *preparation) show() {
	now := Progress{Phase: PhaseImage, Reason: p.image}
	switch {
	case !p.isPull:
		now.Phase, now.Reason = PhaseWeights, p.progress
	case p.progress != "":
		now.Reason += "; weights: " + p.progress
	}
	if p.isPull {
		step := Step{Name: telemetry.StartImage}
		if bytes := p.imageBytes; bytes.Total > 0 {
			step.Bytes = &bytes
		}
		now.Steps = append(now.Steps, step)
	}
	if p.isDownload {
		bytes := p.bytes
		now.Steps = append(now.Steps, Step{Name: telemetry.StartWeights, Bytes: &bytes})
	}
	p.report(now)
}
