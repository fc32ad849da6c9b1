package load

import (
	"context"
	"fmt"
	"sync"
	"time"

	"skyserve/internal/sim/workload"
)

const (
	// firstBackoff is the wait of a client after a failed request; it doubles with each consecutive
	// failure. Without it a closed loop would spin on a service that rejects at once.
	firstBackoff = 100 * time.Millisecond
	maxBackoff   = 5 * time.Second
)

// ClosedLoopClient is a closed-loop client and the region it sends from.
type ClosedLoopClient struct {
	Region string
	workload.Client
}

// RunClosed runs closed-loop clients for duration. Then it issues no new requests, and drains requests
// in flight. If ctx ends first, the report is marked as interrupted. An error means that the load could
// not start.
func RunClosed(ctx context.Context, c Config, clients []ClosedLoopClient, duration time.Duration) (*Report, error) {
	if duration <= 0 {
		return nil, fmt.Errorf("starting the load: duration: must be positive, got %s", duration)
	}
	r, err := newRun(ctx, c, duration)
	if err != nil {
		return nil, err
	}
	defer r.close()
	for i, client := range clients {
		target, err := r.target(client.Region)
		if err != nil {
			return nil, fmt.Errorf("starting client %d: %w", i, err)
		}
		l := &loop{run: r, target: target, client: client}
		l.issue(client.Next())
	}
	<-r.issue.Done()
	r.ended.Store(true)
	window := time.Since(r.start)
	r.drain(ctx)
	return r.record.report(window, ctx.Err() != nil), nil
}

// loop runs one client.
type loop struct {
	run    *run
	target Target

	mu       sync.Mutex
	client   workload.Client
	failures int // consecutive
}

// issue sends requests, each in its own goroutine.
func (l *loop) issue(requests []workload.Request) {
	for _, request := range requests {
		l.run.inFlight.Go(func() { l.serveRequest(request) })
	}
}

// serveRequest sends a request and, after its end, the requests that follow.
func (l *loop) serveRequest(request workload.Request) {
	res := l.run.serveRequest(l.target, request)
	if res.outcome == outcomeCancelled || l.run.issue.Err() != nil {
		return
	}
	next, wait := l.nextRequests(request, &res)
	if wait > 0 {
		timer := time.NewTimer(wait)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-l.run.issue.Done():
			return
		}
	}
	l.issue(next)
}

// nextRequests reports the result of a request to the client and returns its next requests, and the wait before
// them.
func (l *loop) nextRequests(request workload.Request, res *result) ([]workload.Request, time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if res.outcome == outcomeOK {
		l.failures = 0
		return l.client.Done(request, string(res.response)), 0
	}
	l.failures++
	backoff := min(firstBackoff<<min(l.failures-1, 10), maxBackoff)
	return l.client.Failed(request), max(backoff, res.retryAfter)
}
