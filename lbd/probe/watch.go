package probe

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"skyserve/internal/service"
	"skyserve/lbd/core"
)

// watch probes one replica. Its goroutine owns everything but status.
type watch struct {
	prober *Prober
	asked  service.ReplicaConfig // as it was started
	stop   context.CancelFunc
	jitter *rand.Rand

	model     string             // asked.Model, or what the replica told
	kind      service.EngineKind // asked.Kind, or what its metrics told
	verified  bool               // the model was listed, and nothing failed since
	noMetrics bool               // it answers /metrics with an error of ours
	aliveAt   time.Time
	half      time.Duration            // half of the last round trip
	failures  int                      // probes in a row that found it dead
	requests  map[string]*http.Request // by path
	page      []byte
	hits      hitWindow
	ranks     []Figures // of the last look; unknown without metrics

	mu     sync.Mutex
	status Status
}

// run probes until ctx ends.
func (w *watch) run(ctx context.Context) {
	w.requests = map[string]*http.Request{}
	w.model, w.kind, w.ranks = w.asked.Model, w.asked.Kind, make([]Figures, w.asked.Ranks())
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		began := time.Now()
		w.probe(ctx)
		timer.Reset(w.pause(time.Since(began)))
	}
}

// pause is how long to wait after a probe that took so long: the jittered
// interval from start to start, longer while the replica is dead.
func (w *watch) pause(took time.Duration) time.Duration {
	interval := w.prober.opts.Interval
	every := interval << min(w.failures, 8)
	if every > maxBackoff {
		every = max(maxBackoff, interval)
	}
	every += time.Duration((2*w.jitter.Float64() - 1) * jitterShare * float64(every))
	return max(every-took, interval/10)
}

// probe looks once and reports what it found. A timeout reports nothing: the
// core draws its conclusion from the silence.
func (w *watch) probe(ctx context.Context) {
	report, err := w.look(ctx)
	if ctx.Err() != nil {
		return
	}
	if err == nil {
		w.failures, w.verified = 0, true
		w.note(true, "")
		w.send(report)
		return
	}
	reason, silent := explain(err, w.prober.opts.Timeout)
	w.verified, w.noMetrics, w.kind = false, false, w.asked.Kind // another engine may come
	w.hits = hitWindow{}
	w.note(false, reason)
	if silent {
		return
	}
	w.failures++
	clear(w.ranks)
	w.send(core.Report{Age: w.half, Reason: reason})
}

// look makes sure that the model answers and reads the engine's figures.
func (w *watch) look(ctx context.Context) (core.Report, error) {
	if !w.verified {
		if err := w.verify(ctx); err != nil {
			return core.Report{}, err
		}
		w.aliveAt = time.Now()
	}
	if w.noMetrics {
		return w.lookAlive(ctx)
	}
	status, page, err := w.get(ctx, "/metrics")
	switch {
	case err != nil:
		return core.Report{}, err
	case status/100 == 4:
		w.noMetrics = true
		clear(w.ranks)
		return core.Report{Age: w.half, Ready: true}, nil
	case status != http.StatusOK:
		return core.Report{}, &statusError{path: "/metrics", status: status}
	}
	if w.kind == "" {
		if w.kind = KindOf(page); w.kind != "" {
			w.learned()
		}
	}
	f := Parse(page)
	w.hits.add(time.Now(), f)
	if w.ranks[0] = f; len(w.ranks) > 1 {
		ParseRanks(page, w.ranks)
	}
	return core.Report{Age: w.half, Ready: true}, nil
}

// lookAlive reports an engine without metrics: that it lives is asked only now
// and then, and what it does is unknown.
func (w *watch) lookAlive(ctx context.Context) (core.Report, error) {
	if time.Since(w.aliveAt) >= aliveEvery {
		status, _, err := w.get(ctx, "/health")
		switch {
		case err != nil:
			return core.Report{}, err
		case status/100 == 4:
			if err := w.verify(ctx); err != nil {
				return core.Report{}, err
			}
		case status/100 != 2:
			return core.Report{}, &statusError{path: "/health", status: status}
		}
		w.aliveAt = time.Now()
	}
	return core.Report{Age: w.half, Ready: true}, nil
}

// verify asks which models the engine serves and makes sure that the replica's
// is one of them; it learns the model where none was given.
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
		return errors.New("serves no model")
	case w.asked.Model != "" && !slices.Contains(models, w.asked.Model):
		return fmt.Errorf("serves %s, not %q", shortList(models), w.asked.Model)
	case w.asked.Model == "" && !slices.Contains(models, w.model):
		w.model = models[0]
		w.learned()
	}
	return nil
}

// learned tells what a replica that was started without its model or its kind
// told of them.
func (w *watch) learned() {
	cfg := w.asked
	cfg.Model, cfg.Kind = w.model, w.kind
	w.mu.Lock()
	w.status.Replica = cfg
	w.mu.Unlock()
	if w.prober.opts.Found != nil {
		w.prober.opts.Found(cfg)
	}
}

// modelNames reads the ids of an OpenAI model list.
func modelNames(body []byte) ([]string, error) {
	var list struct {
		Data []struct {
			ID string `json:"id"`
		} `json:"data"`
	}
	if err := json.Unmarshal(body, &list); err != nil {
		return nil, errors.New("answers GET /v1/models with something that is no model list")
	}
	var names []string
	for _, m := range list.Data {
		if m.ID != "" {
			names = append(names, m.ID)
		}
	}
	return names, nil
}

// shortList writes the first few of a list: an engine may serve many adapters.
func shortList(names []string) string {
	const most = 4
	if len(names) > most {
		return strings.Join(names[:most], ", ") + fmt.Sprintf(" and %d more", len(names)-most)
	}
	return strings.Join(names, ", ")
}

// get fetches a path of the replica. The body is valid until the next get; one
// that is too long comes back empty.
func (w *watch) get(ctx context.Context, path string) (status int, body []byte, err error) {
	ctx, cancel := context.WithTimeout(ctx, w.prober.opts.Timeout)
	defer cancel()
	req, err := w.request(path)
	if err != nil {
		return 0, nil, err
	}
	began := time.Now()
	res, err := w.prober.opts.Transport.RoundTrip(req.WithContext(ctx))
	if err != nil {
		return 0, nil, err
	}
	defer res.Body.Close()
	if err := w.readPage(res); err != nil {
		return 0, nil, err
	}
	w.half = time.Since(began) / 2
	return res.StatusCode, w.page, nil
}

// request is the request for a path, made once.
func (w *watch) request(path string) (*http.Request, error) {
	if req := w.requests[path]; req != nil {
		return req, nil
	}
	req, err := http.NewRequest(http.MethodGet, strings.TrimRight(w.asked.URL, "/")+path, nil)
	if err != nil {
		return nil, err
	}
	w.requests[path] = req
	return req, nil
}

// readPage reads a body into the watch's own memory.
func (w *watch) readPage(res *http.Response) error {
	w.page = w.page[:0]
	for {
		if len(w.page) == cap(w.page) {
			w.page = append(w.page, 0)[:len(w.page)]
		}
		n, err := res.Body.Read(w.page[len(w.page):cap(w.page)])
		w.page = w.page[:len(w.page)+n]
		switch {
		case len(w.page) > maxPage:
			w.page = nil
			return nil
		case err == nil:
		case errors.Is(err, io.EOF):
			return nil
		default:
			return err
		}
	}
}

// note keeps what was found for people to look at, and logs a change.
func (w *watch) note(ready bool, reason string) {
	w.mu.Lock()
	changed := w.status.Ready != ready || w.status.Reason != reason
	w.status.Ready, w.status.Reason = ready, reason
	w.status.Answered = w.status.Answered || ready
	w.status.HitRate = w.hits.rate()
	w.mu.Unlock()
	switch {
	case changed && ready:
		w.prober.opts.Logger.Info("replica ready", "replica", w.asked.ID, "model", w.model)
	case changed:
		w.prober.opts.Logger.Warn("replica not ready", "replica", w.asked.ID, "reason", reason)
	}
}

// send reports each rank, with the figures of the last look.
func (w *watch) send(r core.Report) {
	for i, f := range w.ranks {
		own := r
		own.Pending, own.Running, own.KV = f.Pending, f.Running, f.KV
		w.prober.opts.Sink(core.Event{Kind: core.EventReplicaReport, Target: w.asked.RankID(i), Report: &own})
	}
}

func (w *watch) current() Status {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.status
}

// statusError is an answer that a living engine would not give.
type statusError struct {
	path   string
	status int
}

func (e *statusError) Error() string {
	return fmt.Sprintf("answers GET %s with %d %s", e.path, e.status, http.StatusText(e.status))
}

// explain says in few words what went wrong, and whether it was silence.
func explain(err error, timeout time.Duration) (reason string, silent bool) {
	var ne net.Error
	if errors.Is(err, context.DeadlineExceeded) || (errors.As(err, &ne) && ne.Timeout()) {
		return fmt.Sprintf("no answer within %s", timeout), true
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
