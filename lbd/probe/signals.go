package probe

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"time"

	"skyserve/internal/service"
	"skyserve/lbd/core"
	"skyserve/lbd/policy"
)

// metricPaths are the places of an engine's metrics page. TensorRT-LLM has JSON at the first and, if
// enabled, a page at the second.
var metricPaths = [...]string{"/metrics", "/prometheus/metrics"}

// signals records where a replica's figures come from, as its responses showed since its model was
// verified.
type signals struct {
	pages [len(metricPaths)]endpoint
	found bool // page has figures
	page  int  // index in metricPaths
	// loads are SGLang's load endpoints. While one responds, figures come from it, and the page is
	// read only every aliveInterval.
	loads     [len(loadPaths)]endpoint
	live      bool              // the last request to one returned figures
	slots     policy.Maybe[int] // llama.cpp's, if it has no metrics
	slotsRead bool              // they were requested
}

// endpoint is the state of an endpoint that may not exist.
type endpoint struct {
	absent bool
	slow   bool      // it did not respond in time
	nextAt time.Time // not requested before
}

// firstDue returns the index of the first endpoint to request; -1 if there is none now.
func firstDue(endpoints []endpoint, now time.Time) int {
	for i := range endpoints {
		if e := &endpoints[i]; !e.absent && !now.Before(e.nextAt) {
			return i
		}
	}
	return -1
}

// duePage returns the index of the page to read; -1 if there is none now.
func (s *signals) duePage(now time.Time) int {
	if s.found {
		if now.Before(s.pages[s.page].nextAt) {
			return -1
		}
		return s.page
	}
	return firstDue(s.pages[:], now)
}

// noPages reports whether the engine has no metrics page.
func (s *signals) noPages() bool {
	for i := range s.pages {
		if !s.pages[i].absent {
			return false
		}
	}
	return true
}

// rankFigures are the figures of a data-parallel rank.
type rankFigures struct {
	EngineFigures               // as reported
	paged         EngineFigures // as the last page had them
	currentAt     time.Time     // when the reported figures were current; zero if they are unknown
}

// setPaged sets the figures of a page. If the engine updates it rarely, an unchanged page
// contains nothing new, and the figures are as old as they were.
func (r *rankFigures) setPaged(f EngineFigures, now time.Time, rarely bool) {
	if rarely && !r.currentAt.IsZero() && f.sameGauges(&r.paged) {
		return
	}
	r.EngineFigures, r.paged, r.currentAt = f, f, now
}

var errAsleep = errors.New("the engine is asleep (vllm:engine_sleep_state): wake it with POST /wake_up, or restart it")

// readSignals reads the engine's figures from what it offers. An engine that offers nothing has unknown
// figures.
func (w *watch) readSignals(ctx context.Context) (core.ProbeReport, error) {
	var err error
	page := w.signals.duePage(w.probeAt)
	if page >= 0 {
		err = w.readPage(ctx, page)
	}
	paged := w.signals.found && w.page.family == sglang
	if err == nil && (paged || w.signals.noPages()) {
		err = w.readLoads(ctx)
	}
	if err == nil && page < 0 && !paged && !w.signals.live {
		w.readSlots(ctx)
		err = w.checkAlive(ctx)
	}
	return core.ProbeReport{Age: w.halfRTT, Ready: true, Slots: w.signals.slots}, err
}

// readPage reads one of metricPaths.
func (w *watch) readPage(ctx context.Context, i int) error {
	e, path := &w.signals.pages[i], metricPaths[i]
	status, body, err := w.getWithin(ctx, path, w.pageTimeout(e))
	switch {
	case err != nil:
		return w.skipSlowPage(ctx, e, err)
	case status == http.StatusRequestTimeout || status == http.StatusTooManyRequests:
		// A proxy decides by its load, so the page exists. Its figures remain, and their age increases.
		e.nextAt = w.probeAt.Add(aliveInterval)
		return w.checkAlive(ctx)
	case status == http.StatusNotImplemented || status/100 == 3 || status/100 == 4: // llama.cpp without --metrics: 501
		w.signals.found, e.absent = false, true
		clear(w.ranks)
		return nil
	case status != http.StatusOK:
		return &statusError{path: path, status: status}
	}
	if w.kind == "" {
		if w.kind = KindOf(body); w.kind != "" {
			w.reportIdentity()
		}
	}
	return w.setPage(i, body)
}

// pageTimeout returns the time for reading a page: the core needs reports meanwhile.
func (w *watch) pageTimeout(e *endpoint) time.Duration {
	if e.slow || w.signals.found && w.page.family.mayBeSlow() {
		return min(healthTimeout, w.prober.opts.Timeout)
	}
	return w.prober.opts.Timeout
}

// skipSlowPage handles a page that could not be read. An engine that may be slow, or is not known
// yet, is alive if its /health says so: the last figures remain, and their age increases.
func (w *watch) skipSlowPage(ctx context.Context, e *endpoint, err error) error {
	if !isTimeout(err) || ctx.Err() != nil || w.signals.found && !w.page.family.mayBeSlow() {
		return err
	}
	if status, timedOut, healthErr := w.health(ctx); healthErr != nil || timedOut || status != http.StatusOK {
		return err
	}
	w.aliveAt = w.probeAt
	e.slow, e.nextAt = true, w.probeAt.Add(aliveInterval)
	return nil
}

// setPage parses a page and uses its figures.
func (w *watch) setPage(i int, body []byte) error {
	if f, some, isList := parseIterations(body); isList {
		w.setIterations(i, f, some)
		return nil
	}
	w.page.Parse(body)
	total := w.page.Total()
	if total.Asleep {
		return errAsleep
	}
	w.signals.pages[i].slow = false
	w.hits.addFigures(w.probeAt, total)
	if w.signals.found = w.page.family != unknownFamily; !w.signals.found {
		w.signals.pages[i].nextAt = w.probeAt.Add(aliveInterval)
		clear(w.ranks)
		return nil
	}
	w.signals.page = i
	if len(w.ranks) == 1 {
		w.setPaged(0, total)
		return nil
	}
	for rank := range w.ranks {
		w.setPaged(rank, w.page.Rank(rank))
	}
	return nil
}

// setPaged sets the page's figures of a rank, unless a load endpoint has newer ones.
func (w *watch) setPaged(rank int, f EngineFigures) {
	if r := &w.ranks[rank]; w.signals.live {
		r.paged = f
	} else {
		r.setPaged(f, w.probeAt, w.page.family.updatesRarely())
	}
}

// setIterations uses TensorRT-LLM's figures in JSON, if there is no page: each step is in one response only,
// so other readers take some of them. some is false if the list contains no step.
func (w *watch) setIterations(i int, f EngineFigures, some bool) {
	w.page.family = tensorRT
	if other := &w.signals.pages[len(metricPaths)-1]; !other.absent {
		w.signals.pages[i].nextAt = w.probeAt.Add(aliveInterval)
		return
	}
	w.signals.found, w.signals.page = true, i
	if some && len(w.ranks) == 1 {
		w.hits.addFigures(w.probeAt, f)
		w.ranks[0].setPaged(f, w.probeAt, false)
	}
}

// readLoads reads one of SGLang's load endpoints, if there is one; they do not depend on --enable-metrics.
// After a timeout (a scheduler may respond only between two steps) or a status 5xx, that endpoint is not
// requested for aliveInterval: meanwhile, figures come from the other load endpoint, if it exists, or the page.
func (w *watch) readLoads(ctx context.Context) error {
	i := firstDue(w.signals.loads[:], w.probeAt)
	if i < 0 {
		return nil
	}
	e, page := &w.signals.loads[i], &w.signals.pages[w.signals.page]
	status, body, err := w.getWithin(ctx, loadPaths[i], min(healthTimeout, w.prober.opts.Timeout))
	w.signals.live = false
	switch {
	case err != nil && (!isTimeout(err) || ctx.Err() != nil):
		return err
	case err != nil || status/100 == 5:
		e.nextAt, page.nextAt = w.probeAt.Add(aliveInterval), w.probeAt
	case status != http.StatusOK || !w.setLoads(body):
		e.absent, page.nextAt = true, w.probeAt
	default:
		w.signals.live = true
		if w.kind == "" {
			w.kind = service.EngineSGLang
			w.reportIdentity()
		}
		if !page.nextAt.After(w.probeAt) {
			page.nextAt = w.probeAt.Add(aliveInterval)
		}
	}
	return nil
}

// setLoads uses the figures of a load endpoint. It returns false if there are none.
func (w *watch) setLoads(body []byte) bool {
	found := parseLoads(body, w.ranks)
	for i := range w.ranks {
		r := &w.ranks[i]
		switch {
		case !found:
			r.EngineFigures = r.paged
			continue
		case !r.KV.Known:
			r.KV = r.paged.KV // /get_load has none
		}
		r.currentAt = w.probeAt
	}
	return found
}

// readSlots reads once how many requests an engine without metrics runs at a time, if it reports that
// (llama.cpp). Any error means that it does not: other engines need not have the page, and other requests
// determine whether they are ready.
func (w *watch) readSlots(ctx context.Context) {
	if w.signals.slotsRead || !w.signals.noPages() {
		return
	}
	w.signals.slotsRead = true
	if status, body, err := w.get(ctx, "/props"); err == nil && status == http.StatusOK {
		w.signals.slots = slotsOf(body)
	}
}

// maxSlots bounds a plausible number of slots.
const maxSlots = 1 << 16

// slotsOf returns the number of slots in llama.cpp's /props.
func slotsOf(body []byte) policy.Maybe[int] {
	var props struct {
		Slots int `json:"total_slots"`
	}
	if json.Unmarshal(body, &props) != nil || props.Slots < 1 || props.Slots > maxSlots {
		return policy.Maybe[int]{}
	}
	return policy.Known(props.Slots)
}
