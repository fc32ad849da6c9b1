package batch

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"skyserve/internal/store"
	"skyserve/lbd/batch/job"
)

// Request is one request of a batch.
type Request struct {
	ID       string // the request id: in logs, traces and `skyserve explain`
	Endpoint string
	Body     []byte
	Caller   Caller // the tenant and key to which its usage is charged
	// Age is the time since the batch was created, Due the time until it expires.
	Age, Due time.Duration
}

// Response is the response to a Request.
type Response struct {
	Status int
	Header http.Header
	Body   []byte
	// Final means that another attempt would have the same response.
	Final bool
	// WaitsFor is the quota or budget of the caller that is used up until WaitsUntil; empty = none.
	WaitsFor   string
	WaitsUntil time.Time
}

// Sender sends requests of batches through the balancer, as deferred requests.
type Sender interface {
	// Accepts reports whether a model can be requested.
	Accepts(model string) bool
	// Replicas returns the number of ready replicas of a model at this balancer.
	Replicas(model string) int
	// Send sends a request and waits for its response, until ctx ends.
	Send(ctx context.Context, r Request) Response
}

// Intervals and bounds of a worker, each with its reason.
const (
	heartbeatInterval = 2 * time.Second
	// deadAfter is the number of heartbeat intervals without a heartbeat after which a worker's claims are
	// void. A worker that was only slow repeats requests, but records no result twice.
	deadAfter = 5
	// stepInterval is the interval of checks for deadlines and dead workers. Changes are noticed at once.
	stepInterval = 250 * time.Millisecond
	// inFlightPerReplica is the number of requests that a worker claims for each of its replicas, more than most
	// engines run at once. Claimed requests are parked until the replica has free KV memory.
	inFlightPerReplica = 128
	maxInFlight        = 4096 // 4096 requests of 8 KB are 32 MB
	// sweepInterval is the interval of removing expired files and what crashes left behind.
	sweepInterval = time.Hour
	// lostAfter is the time after which an input file or a large result that a worker needs, and that the store does not
	// have, is lost. A member of the store that lags may not have it before.
	lostAfter = 10 * time.Second
)

// worker executes batches at one balancer.
type worker struct {
	s     *Service
	id    string // of this process: a restarted balancer is another worker
	wake  chan struct{}
	tasks sync.WaitGroup

	schedule job.Scheduler // used only by advanceBatches

	mu          sync.Mutex
	registered  bool                      // the first heartbeat is stored
	open        map[string]cachedBatch    // by key: batches that have not ended
	heartbeatAt map[string]time.Time      // other workers: when their last heartbeat was observed; zero = ended
	running     map[string]*running       // by key of the batch
	inFlight    int                       // claimed requests without a result
	exclusive   map[string]exclusiveTask  // by key of the batch
	rates       map[string]*job.RateMeter // by key of the open batch
	past        job.PastBatches           // of batches that have ended
}

// cachedBatch is a batch as last read or written.
type cachedBatch struct {
	job.Record
	revision uint64
}

// exclusiveTask is the validation of a batch or the writing of its output files, which only one worker does.
type exclusiveTask struct {
	validation bool
	cancel     context.CancelFunc
}

// running are the chunks of a batch that this worker executes.
type running struct {
	chunks map[int]context.CancelFunc
}

func newWorker(s *Service) *worker {
	return &worker{
		s: s, id: strings.ToLower(rand.Text()[:16]), wake: make(chan struct{}, 1),
		open: map[string]cachedBatch{}, heartbeatAt: map[string]time.Time{}, running: map[string]*running{}, exclusive: map[string]exclusiveTask{},
		rates: map[string]*job.RateMeter{},
	}
}

const workerPrefix = "worker."

// RunWorker executes batches until ctx ends. Then it releases its claims, so that other balancers
// continue at once.
func (s *Service) RunWorker(ctx context.Context) {
	w := s.worker
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	var loops sync.WaitGroup
	loops.Go(func() { w.sendHeartbeats(ctx) })
	loops.Go(func() { w.sweepEvery(ctx) })
	batches, workers := s.records.Watch(ctx, "batch."), s.records.Watch(ctx, workerPrefix)
	tick := time.NewTicker(stepInterval)
	defer tick.Stop()
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case c, ok := <-batches:
			if ok {
				w.observeBatch(c)
				continue // until there are no more changes, or a tick
			}
		case c, ok := <-workers:
			if ok {
				w.observeWorker(c)
			}
			continue
		case <-tick.C:
		case <-w.wake:
		}
		w.advanceBatches(ctx)
	}
	for range batches { // closes
	}
	for range workers { // closes
	}
	w.tasks.Wait()
	loops.Wait()
}

// wakeUp makes RunWorker call advanceBatches soon.
func (w *worker) wakeUp() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// sendHeartbeats keeps this worker's claims valid.
func (w *worker) sendHeartbeats(ctx context.Context) {
	tick := time.NewTicker(w.s.opts.heartbeat)
	defer tick.Stop()
	for {
		if _, err := w.s.records.Put(ctx, workerPrefix+w.id, []byte(w.s.opts.Balancer)); err == nil {
			w.mu.Lock()
			w.registered = true
			w.mu.Unlock()
		} else if ctx.Err() == nil {
			w.s.log.Debug("sending the heartbeat of the batch worker failed", "err", err)
		}
		select {
		case <-ctx.Done():
			w.tasks.Wait()
			// If this fails, the others wait until the heartbeat is too old.
			_ = w.s.records.Delete(context.WithoutCancel(ctx), workerPrefix+w.id)
			return
		case <-tick.C:
		}
	}
}

func (w *worker) observeWorker(c store.KeyChange) {
	w.mu.Lock()
	defer w.mu.Unlock()
	id := strings.TrimPrefix(c.Key, workerPrefix)
	if w.heartbeatAt[id] = w.s.now(); c.Deleted {
		w.heartbeatAt[id] = time.Time{}
	}
}

// observeBatch records a change of a batch. It cancels the validation and the chunks that this worker must no longer
// execute.
func (w *worker) observeBatch(c store.KeyChange) {
	var r job.Record
	ended := c.Deleted || json.Unmarshal(c.Value, &r) != nil || r.Batch.Status.Final()
	w.mu.Lock()
	defer w.mu.Unlock()
	if ended && !c.Deleted {
		w.past.Observe(&r)
	}
	if c.Revision < w.open[c.Key].revision {
		return // it was changed here since
	}
	if ended {
		delete(w.open, c.Key)
		delete(w.rates, c.Key)
	} else {
		w.open[c.Key] = cachedBatch{r, c.Revision}
		w.observeRate(c.Key, &r)
	}
	w.wakeUp()
	if task, ok := w.exclusive[c.Key]; ok && task.validation && (ended || r.Batch.Status != job.Validating) {
		task.cancel()
	}
	run := w.running[c.Key]
	if run == nil {
		return
	}
	for chunk, cancel := range run.chunks {
		if ended || r.Batch.Status != job.InProgress || chunk >= len(r.Chunks) || r.Chunks[chunk].Worker != w.id && r.Chunks[chunk].Worker != "" {
			cancel()
		}
	}
}

// observeRate records the progress of a batch; the lock must be held.
func (w *worker) observeRate(key string, r *job.Record) {
	if r.Batch.Status != job.InProgress {
		return
	}
	if w.rates[key] == nil {
		w.rates[key] = &job.RateMeter{}
	}
	w.rates[key].Observe(w.s.now(), done(r))
}

// done returns the number of requests with a result.
func done(r *job.Record) int { return r.Batch.RequestCounts.Completed + r.Batch.RequestCounts.Failed }

// isAlive reports whether another worker's claims are valid; the lock must be held. The heartbeat of a
// worker that is not known may not have been received yet.
func (w *worker) isAlive(now time.Time, id string) bool {
	last, known := w.heartbeatAt[id]
	if !known {
		w.heartbeatAt[id] = now
		return true
	}
	return now.Sub(last) < deadAfter*w.s.opts.heartbeat
}

// aliveAt returns a function that reports whether a worker's claims on a batch are valid.
func (w *worker) aliveAt(now time.Time) func(string) bool {
	return func(id string) bool {
		if id == w.id {
			return true
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		return w.isAlive(now, id)
	}
}

// advanceBatches makes one pass over the open batches: it advances their states, starts validations and the writing of
// output files, and claims chunks.
func (w *worker) advanceBatches(ctx context.Context) {
	w.mu.Lock()
	registered := w.registered
	w.mu.Unlock()
	if !registered { // the others would treat its claims as those of a dead worker
		return
	}
	now := w.s.now()
	for _, key := range w.openKeys() {
		r, ok := w.batch(key)
		if !ok {
			continue
		}
		if r.Advance(now) {
			w.tryChangeBatch(ctx, key, func(r *job.Record) error { r.Advance(w.s.now()); return nil })
		}
		w.startExclusiveTask(ctx, key)
	}
	w.claimChunks(ctx, now)
}

func (w *worker) openKeys() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	keys := make([]string, 0, len(w.open))
	for k := range w.open {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

// batch returns an open batch. Its chunks must not be changed.
func (w *worker) batch(key string) (job.Record, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	r, ok := w.open[key]
	return r.Record, ok
}

// tryChangeBatch changes a batch in the store and in w.open. It reports whether the change was stored.
func (w *worker) tryChangeBatch(ctx context.Context, key string, f func(*job.Record) error) bool {
	r, revision, err := w.s.updateBatch(ctx, key, f)
	switch {
	case err == nil || errors.Is(err, job.ErrLostClaim) || errors.Is(err, job.ErrFinal):
		w.mu.Lock()
		if _, known := w.open[key]; known && r.Batch.Status.Final() {
			delete(w.open, key)
		} else if known && revision >= w.open[key].revision {
			w.open[key] = cachedBatch{r, revision}
		}
		w.mu.Unlock()
	case ctx.Err() == nil:
		w.s.log.Warn("changing a batch failed; retrying", "batch", key, "err", err)
	}
	return err == nil
}

// startExclusiveTask starts the validation of a batch or the writing of its output files, if no worker does it.
func (w *worker) startExclusiveTask(ctx context.Context, key string) {
	r, ok := w.batch(key)
	w.mu.Lock()
	_, busy := w.exclusive[key]
	w.mu.Unlock()
	if !ok || busy || r.Batch.Status == job.InProgress || r.Worker != "" && r.Worker != w.id && w.aliveAt(w.s.now())(r.Worker) {
		return
	}
	// This worker does nothing for the batch now: a claim of its own is from a failed attempt.
	live := func(id string) bool { return id != w.id && w.aliveAt(w.s.now())(id) }
	var stale []string
	files := []string{newID("file-", w.s.now()), newID("file-", w.s.now())}
	validate := false
	claimed := w.tryChangeBatch(ctx, key, func(r *job.Record) error {
		var ok bool
		if validate = r.Batch.Status == job.Validating; validate {
			stale, ok = r.ClaimValidation(w.id, live, files[1])
		} else {
			stale, ok = r.ClaimFinish(w.id, live, files...)
		}
		if !ok {
			return job.ErrLostClaim
		}
		return nil
	})
	if !claimed {
		return
	}
	tctx, cancel := context.WithCancel(ctx)
	w.mu.Lock()
	w.exclusive[key] = exclusiveTask{validate, cancel}
	w.mu.Unlock()
	w.tasks.Go(func() {
		defer w.wakeUp()
		defer w.endExclusiveTask(key)
		r, ok := w.batch(key)
		if !ok || validate && r.Batch.Status != job.Validating {
			return // it was cancelled since
		}
		var err error
		if err = w.s.dropFiles(tctx, r.Tenant, stale); err == nil {
			if validate {
				err = w.validateInput(tctx, key, &r, files[1])
			} else {
				err = w.writeOutputs(tctx, key, &r, files[0], files[1])
			}
		}
		if err == nil {
			return
		}
		if !errors.Is(err, job.ErrLostClaim) && tctx.Err() == nil {
			w.s.log.Warn("processing a batch failed; retrying", "batch", r.Batch.ID, "status", r.Batch.Status, "err", err)
			sleep(ctx, time.Second)
		}
		// The files stay in the record: whoever claims next deletes them.
		w.releaseClaim(ctx, key, func(r *job.Record) { r.ReleaseFiles(w.id) })
	})
}

// endExclusiveTask removes a task that has ended.
func (w *worker) endExclusiveTask(key string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.exclusive[key].cancel()
	delete(w.exclusive, key)
}

// releaseClaim releases a claim, also while the balancer ends.
func (w *worker) releaseClaim(ctx context.Context, key string, f func(*job.Record)) {
	stopping := ctx.Err() != nil
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseTimeout)
	defer cancel()
	for ctx.Err() == nil && !w.tryChangeBatch(ctx, key, func(r *job.Record) error { f(r); return nil }) {
		if _, open := w.batch(key); !open || stopping && !w.s.store.Connected() {
			return
		}
		sleep(ctx, 200*time.Millisecond)
	}
}

// releaseTimeout is the timeout of releasing a claim: other workers take it over later anyway.
const releaseTimeout = 5 * time.Second

// sleep waits for d or the end of ctx.
func sleep(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
}

// maxInFlightFor returns how many requests for models this worker may have in flight. If a model has no replica at
// this balancer, only urgent requests are sent from here, to other regions.
func (w *worker) maxInFlightFor(models []string, urgent bool) int {
	replicas := -1
	for _, m := range models {
		if n := w.s.opts.Sender.Replicas(m); replicas < 0 || n < replicas {
			replicas = n
		}
	}
	if replicas <= 0 && urgent {
		replicas = 1
	}
	return min(max(replicas, 0)*inFlightPerReplica, maxInFlight)
}

// claimChunks claims chunks in the order of the scheduler, while there is capacity, and starts them.
func (w *worker) claimChunks(ctx context.Context, now time.Time) {
	skipped := map[string]bool{}
	for ctx.Err() == nil {
		var candidates []job.Candidate
		var keys []string
		var chunks []int
		for _, key := range w.openKeys() {
			r, ok := w.batch(key)
			if !ok || skipped[key] || !now.Before(r.Deadline()) {
				continue
			}
			chunk := r.Claimable(w.chunkClaimAlive(now, key))
			c := job.Candidate{ID: r.Batch.ID, Tenant: r.Tenant, Key: r.Key, Created: r.Created(), Window: r.Window()}
			if chunk < 0 || w.inFlightCount() >= w.maxInFlightFor(r.Models, c.Urgent(now)) {
				continue
			}
			candidates, keys, chunks = append(candidates, c), append(keys, key), append(chunks, chunk)
		}
		i := w.schedule.Next(candidates, now)
		if i < 0 {
			return
		}
		if !w.claimChunk(ctx, keys[i], chunks[i]) {
			skipped[keys[i]] = true
			continue
		}
		r, _ := w.batch(keys[i])
		if chunks[i] < len(r.Chunks) {
			w.schedule.CountServed(candidates[i], r.Chunks[chunks[i]].Lines)
		}
	}
}

func (w *worker) inFlightCount() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.inFlight
}

// chunkClaimAlive returns a function that reports whether a worker's claims on a batch's chunks are valid. This
// worker's claims are valid only while it executes chunks of the batch.
func (w *worker) chunkClaimAlive(now time.Time, key string) func(string) bool {
	live := w.aliveAt(now)
	w.mu.Lock()
	defer w.mu.Unlock()
	executes := w.running[key] != nil
	return func(id string) bool {
		if id == w.id {
			return executes
		}
		return live(id)
	}
}

// claimChunk claims a chunk and starts it.
func (w *worker) claimChunk(ctx context.Context, key string, chunk int) bool {
	live := w.chunkClaimAlive(w.s.now(), key)
	claimedBefore := false
	if !w.tryChangeBatch(ctx, key, func(r *job.Record) error {
		if chunk < len(r.Chunks) {
			claimedBefore = r.Chunks[chunk].ClaimedBefore
		}
		return r.Claim(chunk, w.id, live)
	}) {
		return false
	}
	r, ok := w.batch(key)
	if !ok || chunk >= len(r.Chunks) {
		return false
	}
	cctx, cancel := context.WithDeadline(ctx, r.Deadline())
	w.mu.Lock()
	if w.running[key] == nil {
		w.running[key] = &running{chunks: map[int]context.CancelFunc{}}
	}
	w.running[key].chunks[chunk] = cancel
	w.inFlight += r.Chunks[chunk].Lines
	w.mu.Unlock()
	w.tasks.Go(func() {
		defer w.wakeUp()
		defer cancel()
		x := &execution{w: w, key: key, batch: &r, chunk: chunk, remaining: r.Chunks[chunk].Lines}
		err := x.runChunk(cctx, claimedBefore)
		if err != nil {
			switch {
			case errors.Is(err, errInputLost):
				w.s.log.Warn("the input file is lost: the batch fails", "batch", r.Batch.ID, "err", err)
				w.tryChangeBatch(ctx, key, func(r *job.Record) error { // a failure is harmless: the next claimant finds it lost, too
					return r.LoseInput(job.InputLost(r.Batch.InputFileID), w.s.now())
				})
			case cctx.Err() == nil && !errors.Is(err, job.ErrLostClaim):
				w.s.log.Warn("executing a chunk failed; retrying", "batch", r.Batch.ID, "err", err)
				sleep(cctx, time.Second)
			}
			w.releaseClaim(ctx, key, func(r *job.Record) { r.Release(chunk, w.id) })
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		w.inFlight -= x.remaining
		delete(w.running[key].chunks, chunk)
		if len(w.running[key].chunks) == 0 {
			delete(w.running, key)
		}
	})
	return true
}

// sweepEvery removes expired files and what crashes left behind.
func (w *worker) sweepEvery(ctx context.Context) {
	for {
		sleep(ctx, cmp.Or(w.s.opts.sweep, sweepInterval))
		if ctx.Err() != nil {
			return
		}
		if err := w.s.sweep(ctx); err != nil && ctx.Err() == nil {
			w.s.log.Warn("removing expired files failed; retrying", "err", err)
		}
	}
}
