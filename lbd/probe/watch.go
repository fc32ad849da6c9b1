package probe

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"skyserve/internal/service"
	"skyserve/lbd/core"
	"skyserve/lbd/wire"
)

// watch probes one replica. Its goroutine owns the fields from model to report.
type watch struct {
	prober *Prober
	config service.ReplicaConfig // as passed to Start
	stop   context.CancelFunc
	jitter *rand.Rand

	model    string             // config.Model, or the identified model
	kind     service.EngineKind // config.Kind, or the engine identified by its responses
	verified bool               // the model was listed, and no probe has failed since
	probeAt  time.Time          // when the last probe began
	aliveAt  time.Time
	halfRTT  time.Duration // half of the last round trip
	failures int           // probes that failed since the last good one; timeouts are not counted
	source   source
	signals  signals
	page     Page
	hits     hitWindow
	list     ModelList        // the last one reported
	listedAt time.Time        // when it was last requested
	listAt   time.Time        // when it is requested next
	ids      []string         // of its ranks
	ranks    []rankFigures    // of the last probe; unknown without metrics
	report   core.ProbeReport // the last one sent

	// tick receives when a probe is due. It buffers one tick that arrived during a probe.
	tick  chan struct{}
	group *group // guarded by its Prober's lock

	// suspectedAt is the time of the last call of Suspect in Unix nanoseconds; 0 = the replica is not
	// suspected.
	suspectedAt atomic.Int64

	// doubted: the engine rejected a name since the model list was last read.
	doubted atomic.Bool

	mu     sync.Mutex
	status ReplicaStatus
}

// runWatch probes until ctx ends.
func (w *watch) runWatch(ctx context.Context) {
	w.prepare()
	defer w.source.close()
	defer context.AfterFunc(ctx, w.source.abort)()
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		began := time.Now()
		w.probe(ctx)
		w.source.release()
		if !w.wait(ctx, timer, time.Since(began)) {
			return
		}
	}
}

// prepare prepares the first probe.
func (w *watch) prepare() {
	w.model, w.kind, w.ranks = w.config.Model, w.config.Kind, make([]rankFigures, w.config.Ranks())
	for i := range w.ranks {
		w.ids = append(w.ids, w.config.RankID(i))
	}
	w.source = newSource(w.config, w.prober.opts)
}

// wait returns true when the next probe is due, after a probe with the duration took. It returns
// false when ctx ends.
func (w *watch) wait(ctx context.Context, timer *time.Timer, took time.Duration) bool {
	pause := w.nextDelay(took)
	if pause == 0 {
		select {
		case <-ctx.Done():
			return false
		case <-w.tick:
			return true
		}
	}
	timer.Reset(pause)
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
	}
	select {
	case <-w.tick: // it arrived meanwhile
	default:
	}
	return true
}

// nextDelay returns the time to wait after a probe with the duration took; 0 = until the next tick.
// A failed replica has longer, jittered intervals. A probe that lasts beyond the next tick is soon
// repeated.
func (w *watch) nextDelay(took time.Duration) time.Duration {
	interval := w.prober.opts.Interval
	if w.failures == 0 {
		select {
		case <-w.tick:
			return max(interval/10, 1)
		default:
			return 0
		}
	}
	every := interval << min(w.failures, 8)
	if every > maxBackoff {
		every = max(maxBackoff, interval)
	}
	return max(jittered(every, w.jitter)-took, interval/10, 1)
}

// probe checks the replica once and reports the result. After a timeout it reports nothing: the
// core detects missing reports.
func (w *watch) probe(ctx context.Context) {
	report, err := w.checkReplica(ctx)
	if ctx.Err() != nil {
		return
	}
	if err == nil {
		w.failures, w.verified = 0, true
		w.recordState(true, "", "")
		w.reportRanks(report)
		return
	}
	reason, timedOut := explain(err)
	misconfigured := misconfigurationOf(err)
	if misconfigured == service.MisconfiguredKey {
		reason += w.explainKey()
	}
	w.verified, w.kind = false, w.config.Kind // another engine may replace it
	w.signals, w.hits = signals{}, hitWindow{}
	w.recordState(false, reason, misconfigured)
	if timedOut {
		return
	}
	w.failures++
	clear(w.ranks)
	w.reportRanks(core.ProbeReport{Age: w.halfRTT, Reason: reason, NoResponse: isUnreachable(err)})
}

// checkReplica verifies that the model is served and reads the engine's figures.
func (w *watch) checkReplica(ctx context.Context) (core.ProbeReport, error) {
	w.probeAt = time.Now()
	if at := w.suspectedAt.Load(); at != 0 {
		if err := w.checkHealth(ctx, at); err != nil {
			return core.ProbeReport{}, err
		}
		if w.config.Key != "" {
			w.verified = false // /health and /metrics of an engine may be public: only /v1/models shows whether it still accepts the key
		}
	}
	if !w.verified {
		if err := w.verify(ctx); err != nil {
			return core.ProbeReport{}, err
		}
		w.aliveAt = time.Now()
	} else if w.listDue() {
		if err := w.readList(ctx); err != nil {
			return core.ProbeReport{}, err
		}
	}
	return w.readSignals(ctx)
}

// checkHealth requests /health: vLLM serves its metrics for seconds after its engine has died. The
// function ends these checks after a good response once suspicionTime has passed since at. If
// /health does not respond in time, it ends them immediately, and the other requests of the probe
// determine the result.
func (w *watch) checkHealth(ctx context.Context, at int64) error {
	status, timedOut, err := w.health(ctx)
	switch {
	case err != nil:
		return err
	case status >= 500:
		return &statusError{path: "/health", status: status}
	case timedOut || time.Since(time.Unix(0, at)) >= suspicionTime:
		w.suspectedAt.CompareAndSwap(at, 0)
	}
	return nil
}

// health requests /health. timedOut: there was no response within healthTimeout.
func (w *watch) health(ctx context.Context) (status int, timedOut bool, err error) {
	timeout := min(healthTimeout, w.prober.opts.Timeout)
	status, _, err = w.source.get(ctx, "/health", time.Now().Add(timeout))
	if err != nil && ctx.Err() == nil {
		if isTimeout(err) {
			return 0, true, nil
		}
	}
	return status, false, err
}

// checkAlive checks the health of an engine whose metrics are not read, every aliveInterval.
func (w *watch) checkAlive(ctx context.Context) error {
	if time.Since(w.aliveAt) < aliveInterval {
		return nil
	}
	status, timedOut, err := w.health(ctx)
	switch {
	case err != nil:
		return err
	case timedOut || status/100 == 4:
		if err := w.verify(ctx); err != nil {
			return err
		}
	case status/100 != 2:
		return &statusError{path: "/health", status: status}
	}
	w.aliveAt = time.Now()
	return nil
}

// reportIdentity reports the model and kind of a replica that was started without them.
func (w *watch) reportIdentity() {
	cfg := w.config
	cfg.Model, cfg.Kind = w.model, w.kind
	w.mu.Lock()
	w.status.Replica = cfg
	w.mu.Unlock()
	if w.prober.opts.Identified != nil {
		w.prober.opts.Identified(cfg)
	}
}

// get fetches a path of the replica. The body is valid until the next get; a body that is too long
// is returned as empty.
func (w *watch) get(ctx context.Context, path string) (status int, body []byte, err error) {
	return w.getWithin(ctx, path, w.prober.opts.Timeout)
}

// getWithin is get with a timeout. Its errors include *timeoutError.
func (w *watch) getWithin(ctx context.Context, path string, timeout time.Duration) (status int, body []byte, err error) {
	began := time.Now()
	status, body, err = w.source.get(ctx, path, began.Add(timeout))
	switch {
	case err == nil:
		w.halfRTT = time.Since(began) / 2
	case isTimeout(err):
		err = &timeoutError{url: w.config.URL, after: timeout, err: err}
	}
	return status, body, err
}

// recordState updates the status, and logs a change.
func (w *watch) recordState(ready bool, reason string, misconfigured service.Misconfiguration) {
	w.mu.Lock()
	changed := w.status.Ready != ready || w.status.Reason != reason
	w.status.Ready, w.status.Reason, w.status.Misconfigured = ready, reason, misconfigured
	w.status.WasReady = w.status.WasReady || ready
	w.status.HitRate = w.hits.rate()
	w.mu.Unlock()
	switch {
	case changed && ready:
		w.prober.opts.Logger.Info("replica ready", "replica", w.config.ID, "model", w.model)
	case changed:
		w.prober.opts.Logger.Warn("replica not ready", "replica", w.config.ID, "reason", reason)
	}
}

// reportRanks reports each rank, with the figures of the last probe.
func (w *watch) reportRanks(r core.ProbeReport) {
	for i := range w.ranks {
		f := &w.ranks[i]
		w.report = r
		w.report.Pending, w.report.Running, w.report.KV = f.Pending, f.Running, f.KV
		if !f.currentAt.IsZero() {
			w.report.MetricsAge = w.probeAt.Sub(f.currentAt)
		}
		w.prober.opts.Sink(core.Event{Kind: core.EventReplicaReport, Target: w.ids[i], Report: &w.report})
	}
}

func (w *watch) currentStatus() ReplicaStatus {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.status
}

// statusError is a response that a healthy engine would not send.
type statusError struct {
	path   string
	status int
}

func (e *statusError) Error() string {
	return fmt.Sprintf("GET %s returned %d %s", e.path, e.status, http.StatusText(e.status))
}

// timeoutError reports that a request had no response within its timeout.
type timeoutError struct {
	url   string // of the replica
	after time.Duration
	err   error
}

func (e *timeoutError) Error() string {
	var op *net.OpError
	if u, err := url.Parse(e.url); err == nil && errors.As(e.err, &op) && op.Op == "dial" {
		return fmt.Sprintf("%s accepts no connection within %s: check that the engine listens there and that firewalls allow it", u.Host, min(e.after, dialTimeout))
	}
	return fmt.Sprintf("no response within %s", e.after)
}

func (e *timeoutError) Unwrap() error { return e.err }

// isTimeout reports whether an error is a timeout.
func isTimeout(err error) bool {
	var ne net.Error
	return errors.Is(err, context.DeadlineExceeded) || (errors.As(err, &ne) && ne.Timeout())
}

// isUnreachable reports whether an error means that the network did not reach the host. Unlike a timeout, it is reported,
// which immediately makes the replica not ready.
func isUnreachable(err error) bool {
	return errors.Is(err, syscall.EHOSTUNREACH) || errors.Is(err, syscall.ENETUNREACH) || errors.Is(err, syscall.EHOSTDOWN)
}

// explain returns a short description of an error, and whether the error is a timeout.
func explain(err error) (reason string, timedOut bool) {
	var late *timeoutError
	if errors.As(err, &late) {
		return late.Error(), true
	}
	if errors.Is(err, syscall.ECONNREFUSED) {
		return "connection refused", false
	}
	var plain tls.RecordHeaderError
	if errors.As(err, &plain) || errors.Is(err, http.ErrSchemeMismatch) {
		return "it responds without TLS: write http:// in its URL, not https://", false
	}
	var ue *url.Error
	if errors.As(err, &ue) {
		err = ue.Err
	}
	return wire.WithoutLocalAddress(err.Error()), false
}
