package load

import (
	"context"
	"fmt"
	"sync"
	"time"

	"skyserve/internal/sim/workload"
)

const (
	// firstBackoff is how long a client waits after a request that was not
	// answered; it doubles with every further one. Without it a closed loop
	// would turn on a service that refuses at once.
	firstBackoff = 100 * time.Millisecond
	maxBackoff   = 5 * time.Second
)

// Client is a closed-loop client and the region it sends from.
type Client struct {
	Region string
	workload.Client
}

// RunClosed runs closed-loop clients for a duration. At its end they issue
// nothing more, and requests in flight drain. When ctx ends first, the report
// is marked as interrupted. The error says that the load could not be started.
func RunClosed(ctx context.Context, c Config, clients []Client, duration time.Duration) (*Report, error) {
	if duration <= 0 {
		return nil, fmt.Errorf("starting the load: the duration must be positive, got %s", duration)
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
	r.over.Store(true)
	window := time.Since(r.start)
	r.drain(ctx)
	return r.record.report(window, ctx.Err() != nil), nil
}

// loop turns one client: requests out, answers in.
type loop struct {
	run    *run
	target Target

	mu       sync.Mutex
	client   workload.Client
	failures int // in a row
}

// issue sends requests, each in its own goroutine.
func (l *loop) issue(requests []workload.Request) {
	for _, request := range requests {
		l.run.inFlight.Go(func() { l.serve(request) })
	}
}

// serve sends a request and, when it ended, what follows from it.
func (l *loop) serve(request workload.Request) {
	res := l.run.serve(l.target, request)
	if res.outcome == outcomeCancelled || l.run.issue.Err() != nil {
		return
	}
	next, wait := l.next(request, &res)
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

// next tells the client what came of a request and gives what it issues now,
// and how long to wait before.
func (l *loop) next(request workload.Request, res *result) ([]workload.Request, time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if res.outcome == outcomeOK {
		l.failures = 0
		return l.client.Done(request, string(res.answer)), 0
	}
	l.failures++
	backoff := min(firstBackoff<<min(l.failures-1, 10), maxBackoff)
	return l.client.Failed(request), max(backoff, res.retryAfter)
}
