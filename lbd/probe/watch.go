package probe

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"skyserve/internal/service"
	"skyserve/lbd/core"
)

// watch probes one replica. Its goroutine owns the fields from model to report.
type watch struct {
	prober *Prober
	config service.ReplicaConfig // as passed to Start
	stop   context.CancelFunc
	jitter *rand.Rand

	model     string             // config.Model, or the identified model
	kind      service.EngineKind // config.Kind, or the engine identified by its metrics
	verified  bool               // the model was listed, and no probe has failed since
	noMetrics bool               // /metrics responds with a 4xx status
	aliveAt   time.Time
	halfRTT   time.Duration // half of the last round trip
	failures  int           // probes that failed since the last good one, without timeouts
	source    source
	hits      hitWindow
	ids       []string         // of its ranks
	ranks     []EngineFigures  // of the last probe; unknown without metrics
	report    core.ProbeReport // the last one sent

	// tick receives when a probe is due. It buffers one tick that arrived during a probe.
	tick  chan struct{}
	group *group // guarded by its Prober's lock

	// suspectedAt is the time of the last call of Suspect in Unix nanoseconds; 0 = probes do not
	// request /health.
	suspectedAt atomic.Int64

	mu     sync.Mutex
	status ReplicaStatus
}

// runWatch probes until ctx ends.
func (w *watch) runWatch(ctx context.Context) {
	w.model, w.kind, w.ranks = w.config.Model, w.config.Kind, make([]EngineFigures, w.config.Ranks())
	for i := range w.ranks {
		w.ids = append(w.ids, w.config.RankID(i))
	}
	w.source = newSource(w.config, w.prober.opts)
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
		w.recordState(true, "")
		w.reportRanks(report)
		return
	}
	reason, timedOut := explain(err, w.prober.opts.Timeout)
	w.verified, w.noMetrics, w.kind = false, false, w.config.Kind // another engine may replace it
	w.hits = hitWindow{}
	w.recordState(false, reason)
	if timedOut {
		return
	}
	w.failures++
	clear(w.ranks)
	w.reportRanks(core.ProbeReport{Age: w.halfRTT, Reason: reason})
}

// checkReplica verifies that the model is served and reads the engine's figures.
func (w *watch) checkReplica(ctx context.Context) (core.ProbeReport, error) {
	if at := w.suspectedAt.Load(); at != 0 {
		if err := w.checkHealth(ctx, at); err != nil {
			return core.ProbeReport{}, err
		}
	}
	if !w.verified {
		if err := w.verify(ctx); err != nil {
			return core.ProbeReport{}, err
		}
		w.aliveAt = time.Now()
	}
	if w.noMetrics {
		return w.checkAlive(ctx)
	}
	status, page, err := w.get(ctx, "/metrics")
	switch {
	case err != nil:
		return core.ProbeReport{}, err
	case status/100 == 4:
		w.noMetrics = true
		clear(w.ranks)
		return core.ProbeReport{Age: w.halfRTT, Ready: true}, nil
	case status != http.StatusOK:
		return core.ProbeReport{}, &statusError{path: "/metrics", status: status}
	}
	if w.kind == "" {
		if w.kind = KindOf(page); w.kind != "" {
			w.reportIdentity()
		}
	}
	f := Parse(page)
	w.hits.addFigures(time.Now(), f)
	if w.ranks[0] = f; len(w.ranks) > 1 {
		ParseRanks(page, w.ranks)
	}
	return core.ProbeReport{Age: w.halfRTT, Ready: true}, nil
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
		if _, timedOut = explain(err, timeout); timedOut {
			return 0, true, nil
		}
	}
	return status, false, err
}

// checkAlive reports an engine without metrics: its health is checked every aliveInterval, and its
// load is unknown.
func (w *watch) checkAlive(ctx context.Context) (core.ProbeReport, error) {
	if time.Since(w.aliveAt) >= aliveInterval {
		status, timedOut, err := w.health(ctx)
		switch {
		case err != nil:
			return core.ProbeReport{}, err
		case timedOut || status/100 == 4:
			if err := w.verify(ctx); err != nil {
				return core.ProbeReport{}, err
			}
		case status/100 != 2:
			return core.ProbeReport{}, &statusError{path: "/health", status: status}
		}
		w.aliveAt = time.Now()
	}
	return core.ProbeReport{Age: w.halfRTT, Ready: true}, nil
}

// verify requests the engine's model list and checks that it contains the replica's model; if none
// is configured, it uses the first one listed.
func (w *watch) verify(ctx context.Context) error {
	status, body, err := w.get(ctx, "/v1/models")
	if err != nil {
		return err
	}
	if status != http.StatusOK {
		return &statusError{path: "/v1/models", status: status}
	}
	models, err := modelNames(body)
	switch {
	case err != nil:
		return err
	case len(models) == 0:
		return errors.New("GET /v1/models returned no model")
	case w.config.Model != "" && !slices.Contains(models, w.config.Model):
		return fmt.Errorf("GET /v1/models returned %s, not %q", shortList(models), w.config.Model)
	case w.config.Model == "" && !slices.Contains(models, w.model):
		w.model = models[0]
		w.reportIdentity()
	}
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

// modelNames returns the ids of an OpenAI model list.
func modelNames(body []byte) ([]string, error) {
	var list struct {
		Data []struct {
			ID string `json:"id"`
		} `json:"data"`
	}
	if err := json.Unmarshal(body, &list); err != nil {
		return nil, errors.New("GET /v1/models returned an invalid model list")
	}
	var names []string
	for _, m := range list.Data {
		if m.ID != "" {
			names = append(names, m.ID)
		}
	}
	return names, nil
}

// shortList formats the first few names of a list: an engine may serve many adapters.
func shortList(names []string) string {
	const maxListed = 4
	if len(names) > maxListed {
		return strings.Join(names[:maxListed], ", ") + fmt.Sprintf(" and %d more", len(names)-maxListed)
	}
	return strings.Join(names, ", ")
}

// get fetches a path of the replica. The body is valid until the next get; a body that is too long
// is returned as empty.
func (w *watch) get(ctx context.Context, path string) (status int, body []byte, err error) {
	began := time.Now()
	status, body, err = w.source.get(ctx, path, began.Add(w.prober.opts.Timeout))
	if err == nil {
		w.halfRTT = time.Since(began) / 2
	}
	return status, body, err
}

// recordState updates the status, and logs a change.
func (w *watch) recordState(ready bool, reason string) {
	w.mu.Lock()
	changed := w.status.Ready != ready || w.status.Reason != reason
	w.status.Ready, w.status.Reason = ready, reason
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
	for i, f := range w.ranks {
		w.report = r
		w.report.Pending, w.report.Running, w.report.KV = f.Pending, f.Running, f.KV
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

// explain returns a short description of an error, and whether the error is a timeout.
func explain(err error, timeout time.Duration) (reason string, timedOut bool) {
	var ne net.Error
	if errors.Is(err, context.DeadlineExceeded) || (errors.As(err, &ne) && ne.Timeout()) {
		return fmt.Sprintf("no response within %s", timeout), true
	}
	if errors.Is(err, syscall.ECONNREFUSED) {
		return "connection refused", false
	}
	var ue *url.Error
	if errors.As(err, &ue) {
		err = ue.Err
	}
	return err.Error(), false
}
