package load

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"skyserve/internal/sim/workload"
)

// run is a running load.
type run struct {
	config  Config
	targets map[string]Target
	client  *http.Client
	release func() // frees the transport
	record  *recorder
	start   time.Time

	// issue ends when no new requests are to be issued, requests when those in flight are to be
	// cancelled.
	issue, requests     context.Context
	stopIssue, stopRuns context.CancelFunc
	// ended is set when the load ends; rates exclude later events.
	ended    atomic.Bool
	inFlight sync.WaitGroup
	live     counters
	progress sync.WaitGroup
	quit     chan struct{} // ends the progress reports
}

// counters holds the counters of Progress.
type counters struct {
	inFlight, ok, failed, tokens atomic.Int64
}

// newRun prepares a load; duration 0 = unlimited.
func newRun(ctx context.Context, c Config, duration time.Duration) (*run, error) {
	if len(c.Targets) == 0 {
		return nil, fmt.Errorf("starting the load: no target")
	}
	if c.Drain == 0 {
		c.Drain = DefaultDrain
	}
	if c.MaxInFlight == 0 {
		c.MaxInFlight = DefaultMaxInFlight
	}
	r := &run{config: c, targets: map[string]Target{}, record: newRecorder(c.Targets), quit: make(chan struct{})}
	for _, t := range c.Targets {
		r.targets[t.Region] = t
	}
	transport, release := c.transport()
	r.client, r.release = &http.Client{Transport: transport}, release
	r.requests, r.stopRuns = context.WithCancel(context.WithoutCancel(ctx))
	r.start = time.Now()
	if duration > 0 {
		r.issue, r.stopIssue = context.WithTimeout(ctx, duration)
	} else {
		r.issue, r.stopIssue = context.WithCancel(ctx)
	}
	if c.Progress != nil {
		r.progress.Go(r.reportProgress)
	}
	return r, nil
}

// target returns the target of a region.
func (r *run) target(region string) (Target, error) {
	t, ok := r.targets[region]
	if !ok {
		return t, fmt.Errorf("region %q has no target", region)
	}
	return t, nil
}

// serveRequest issues one request, records and returns its result.
func (r *run) serveRequest(target Target, request workload.Request) result {
	r.live.inFlight.Add(1)
	res := r.sendRequest(target, request)
	r.live.inFlight.Add(-1)
	res.endedInWindow = !r.ended.Load()
	switch res.outcome {
	case outcomeOK:
		r.live.ok.Add(1)
	case outcomeRejected, outcomeFailed:
		r.live.failed.Add(1)
	}
	r.record.addResult(&res, time.Now())
	return res
}

// drain waits for requests in flight up to the drain time and then cancels them; an interruption of ctx
// shortens the wait. It reports whether all ended by themselves.
func (r *run) drain(ctx context.Context) bool {
	done := make(chan struct{})
	go func() {
		r.inFlight.Wait()
		close(done)
	}()
	limit := time.NewTimer(r.config.Drain)
	defer limit.Stop()
	interrupted := ctx.Done()
	for {
		select {
		case <-done:
			return true
		case <-interrupted:
			interrupted = nil
			limit.Reset(min(r.config.Drain, interruptedDrain))
		case <-limit.C:
			r.stopRuns()
			<-done
			return false
		}
	}
}

// close releases the run's resources.
func (r *run) close() {
	r.stopIssue()
	r.stopRuns()
	r.inFlight.Wait()
	close(r.quit)
	r.progress.Wait()
	r.release()
}

// reportProgress calls Config.Progress until the load ends.
func (r *run) reportProgress() {
	ticker := time.NewTicker(ProgressEvery)
	defer ticker.Stop()
	last, tokens := r.start, int64(0)
	for {
		select {
		case <-r.quit:
			return
		case now := <-ticker.C:
			total := r.live.tokens.Load()
			r.config.Progress(ProgressReport{
				Elapsed:  now.Sub(r.start),
				InFlight: int(r.live.inFlight.Load()),
				OK:       int(r.live.ok.Load()), Failed: int(r.live.failed.Load()),
				TokensPerSecond: float64(total-tokens) / now.Sub(last).Seconds(),
			})
			last, tokens = now, total
		}
	}
}
