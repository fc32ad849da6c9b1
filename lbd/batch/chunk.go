package batch

import (
	"bytes"
	"context"
	crand "crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"skyserve/internal/store"
	"skyserve/lbd/batch/job"
)

// Limits of executing requests, each with its reason.
const (
	retryMin = time.Second
	retryMax = time.Minute // a replica that starts takes minutes
	// maxServerErrors is the number of attempts that may fail with a 5xx other than 503: the request may be the
	// cause.
	maxServerErrors = 3
	// reportInterval is the maximum age of a chunk's counts.
	reportInterval = time.Second
)

// result is a stored result: a line of an output or error file. Its keys are short, because a batch has up to
// 50,000 of them.
type result struct {
	Failed bool            `json:"f,omitempty"`
	Line   json.RawMessage `json:"l,omitempty"`
	Usage  *job.Usage      `json:"u,omitempty"` // of a completed request
	// Object contains the line, of Size bytes, if it is too large for a value.
	Object string `json:"o,omitempty"`
	Size   int64  `json:"s,omitempty"`
}

// execution executes the requests of a claimed chunk.
type execution struct {
	w     *worker
	key   string
	batch *job.Record
	chunk int

	mu                sync.Mutex
	completed, failed int
	usage             job.Usage // of the completed requests
	remaining         int       // still counted in worker.inFlight
	waiting           int       // requests that wait for a quota or budget
	wait              job.Wait  // of the last of them
}

func chunkPrefix(batch string, chunk int) string { return batch + "." + strconv.Itoa(chunk) + "." }

// errInputLost means that the input file is missing or damaged.
var errInputLost = errors.New("input lost")

// runChunk executes every request without a result. claimedBefore: a worker has claimed
// the chunk before, and may have stored results.
func (x *execution) runChunk(ctx context.Context, claimedBefore bool) error {
	lines, err := x.readLines(ctx, x.w.s.lostAt())
	if errors.Is(err, store.ErrNotFound) {
		return fmt.Errorf("%w: %w", errInputLost, err)
	}
	if err != nil {
		return err
	}
	index := make(map[int]int, len(lines)) // line number -> index in the chunk
	for i := range lines {
		index[lines[i].Number] = i
	}
	done := map[int]bool{}
	if claimedBefore {
		if done, err = x.readResults(ctx); err != nil {
			return err
		}
	}
	job.GroupPrefixes(lines)
	failures := make(chan error, len(lines))
	var sending sync.WaitGroup
	for i := range lines {
		if at := index[lines[i].Number]; !done[at] {
			sending.Go(func() { failures <- x.sendUntilResult(ctx, &lines[i], at) })
		}
	}
	finished := make(chan struct{})
	go func() {
		sending.Wait()
		close(finished)
	}()
	tick := time.NewTicker(reportInterval)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			_ = x.reportCounts(ctx) // a failure is harmless: the last report contains all counts
			continue
		case <-finished:
		}
		break
	}
	close(failures)
	for err := range failures {
		if err != nil {
			_ = x.reportCounts(context.WithoutCancel(ctx)) // a failure is harmless: the next claimant counts again
			return err
		}
	}
	return x.reportCounts(ctx)
}

// reportCounts records the counts of the chunk.
func (x *execution) reportCounts(ctx context.Context) error {
	x.mu.Lock()
	completed, failed, usage := x.completed, x.failed, x.usage
	var wait *job.Wait
	if x.waiting > 0 && x.waiting == x.remaining { // otherwise other requests are running
		w := x.wait
		wait = &w
	}
	x.mu.Unlock()
	var changeErr error
	if !x.w.tryChangeBatch(ctx, x.key, func(r *job.Record) error {
		changeErr = r.Report(x.chunk, x.w.id, job.Progress{Completed: completed, Failed: failed, Usage: usage, Wait: wait})
		return changeErr
	}) {
		if changeErr != nil {
			return changeErr
		}
		return fmt.Errorf("reporting the progress of %s: %w", x.batch.Batch.ID, store.ErrUnavailable)
	}
	return nil
}

// readLines reads the requests of the chunk; store.ErrNotFound if they are missing or damaged at lostAt.
func (x *execution) readLines(ctx context.Context, lostAt time.Time) (lines []job.Line, err error) {
	err = x.w.s.untilLost(ctx, lostAt, func() (err error) {
		lines, err = x.readLinesOnce(ctx)
		return err
	})
	return lines, err
}

// readLinesOnce is readLines without waiting.
func (x *execution) readLinesOnce(ctx context.Context) ([]job.Line, error) {
	offset, _ := x.batch.Position(x.chunk)
	c := x.batch.Chunks[x.chunk]
	in := job.NewReader(x.w.s.store.ReadObject(ctx, x.batch.Batch.InputFileID, offset, c.Bytes), x.batch.Batch.Endpoint, x.w.s.limits, nil)
	in.SkipTo(1, offset)
	lines := make([]job.Line, 0, c.Lines)
	for {
		line, err := in.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if invalid := new(job.LineError); errors.As(err, &invalid) { // it was valid
			err = fmt.Errorf("%w: the input file is damaged: %w", store.ErrNotFound, err)
		}
		if err != nil {
			return nil, fmt.Errorf("reading requests of %s: %w", x.batch.Batch.ID, err)
		}
		line.Body = append(json.RawMessage(nil), line.Body...)
		lines = append(lines, line)
	}
	if len(lines) != c.Lines {
		return nil, fmt.Errorf("reading requests of %s: %w: the input file is damaged: %d requests, want %d", x.batch.Batch.ID, store.ErrNotFound, len(lines), c.Lines)
	}
	return lines, nil
}

// readResults counts the results that earlier workers recorded.
func (x *execution) readResults(ctx context.Context) (done map[int]bool, err error) {
	results, err := x.w.s.chunkResults(ctx, x.batch.Batch.ID, x.chunk)
	done = map[int]bool{}
	for i, r := range results {
		done[i] = true
		x.countResult(r)
	}
	return done, err
}

// chunkResults returns the results of a chunk by their index in it.
func (s *Service) chunkResults(ctx context.Context, batch string, chunk int) (map[int]result, error) {
	prefix := chunkPrefix(batch, chunk)
	entries, err := s.results.List(ctx, prefix)
	results := make(map[int]result, len(entries))
	for _, e := range entries {
		var r result
		i, bad := strconv.Atoi(e.Key[len(prefix):])
		if bad == nil && json.Unmarshal(e.Value, &r) == nil {
			results[i] = r
		}
	}
	return results, err
}

// countResult counts a result.
func (x *execution) countResult(r result) {
	x.mu.Lock()
	if r.Failed {
		x.failed++
	} else {
		x.completed++
	}
	if r.Usage != nil {
		x.usage.Add(*r.Usage)
	}
	x.remaining--
	x.mu.Unlock()
	x.w.mu.Lock()
	x.w.inFlight--
	x.w.mu.Unlock()
	x.w.wakeUp()
}

// sendUntilResult sends a request until it has a result, and records it.
func (x *execution) sendUntilResult(ctx context.Context, line *job.Line, index int) error {
	// Another worker, or an earlier attempt, may still execute the request: ids in flight are unique.
	id := fmt.Sprintf("%s-%d-%d-%s", x.batch.Batch.ID, x.chunk, index, strings.ToLower(crand.Text()[:6]))
	faults, backoff := 0, retryMin
	for attempt := 0; ; attempt++ {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if attempt > 0 {
			x.w.s.metrics.retries.Inc()
		}
		now := x.w.s.now()
		response := x.w.s.opts.Sender.Send(ctx, Request{
			ID: id, Endpoint: x.batch.Batch.Endpoint, Body: line.Body,
			Caller: Caller{x.batch.Tenant, x.batch.Key, x.batch.KeyIsUser, x.batch.UserLimits},
			Age:    max(0, now.Sub(x.batch.Created())), Due: max(time.Second, x.batch.Deadline().Sub(now)),
		})
		if ctx.Err() != nil { // its response may be that to the cancellation
			return ctx.Err()
		}
		retry := false
		switch {
		case response.Final: // also a 429
		case response.Status == http.StatusTooManyRequests, response.Status == http.StatusServiceUnavailable, response.Status == statusClientGone:
			retry = true
		case response.Status >= http.StatusInternalServerError:
			faults++
			retry = faults < maxServerErrors
		}
		if !retry {
			o := job.Output{ID: "batch_req_" + id, CustomID: line.CustomID, Response: &job.Response{StatusCode: response.Status, RequestID: id, Body: response.Body}}
			return x.recordResult(ctx, index, &o)
		}
		wait := backoff
		if after, err := strconv.Atoi(response.Header.Get("Retry-After")); err == nil {
			wait = max(wait, min(time.Duration(after)*time.Second, retryMax))
		}
		x.awaitRetry(ctx, wait/2+rand.N(wait), &response)
		backoff = min(2*backoff, retryMax)
	}
}

// awaitRetry waits for d, until the next attempt of a request with this response.
func (x *execution) awaitRetry(ctx context.Context, d time.Duration, response *Response) {
	if response.WaitsFor != "" {
		x.mu.Lock()
		x.waiting++
		x.wait = job.NewWait(response.WaitsFor, response.WaitsUntil)
		x.mu.Unlock()
		defer func() {
			x.mu.Lock()
			defer x.mu.Unlock()
			x.waiting--
		}()
	}
	sleep(ctx, d)
}

// statusClientGone is the balancer's status of a cancelled request.
const statusClientGone = 499

// recordResult stores a result, unless there is one. It retries during outages of the store.
func (x *execution) recordResult(ctx context.Context, index int, o *job.Output) error {
	s := x.w.s
	key := chunkPrefix(x.batch.Batch.ID, x.chunk) + strconv.Itoa(index)
	r := result{Failed: o.Failed(), Line: bytes.TrimSuffix(o.Encode(), []byte("\n"))}
	if !r.Failed {
		usage := job.UsageOf(o.Response.Body)
		r.Usage = &usage
	}
	for backoff := retryMin / 4; ; backoff = min(2*backoff, retryMax) {
		err := s.createResult(ctx, x.batch.Batch.ID, key, &r)
		if err == nil {
			s.metrics.requests.WithLabelValues(resultLabel(r.Failed)).Inc()
			x.countResult(r)
			return nil
		}
		if errors.Is(err, store.ErrConflict) { // by another worker, or by this one if the acknowledgement was lost
			value, _, err := s.results.Get(ctx, key)
			var first result
			if err == nil && json.Unmarshal(value, &first) == nil {
				x.countResult(first)
				s.dropUnused(ctx, r.Object, first.Object)
				return nil
			}
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		s.log.Warn("recording a result failed; retrying", "batch", x.batch.Batch.ID, "err", err)
		sleep(ctx, backoff)
	}
}

func resultLabel(failed bool) string {
	if failed {
		return "failed"
	}
	return "completed"
}

// resultInfix separates the batch from the rest of the name of a large result.
const resultInfix = ".result-"

// resultName returns the name of the object of a large result.
func resultName(batch string, now time.Time) string { return newID(batch+resultInfix, now) }

// createResult stores a result of a batch; store.ErrConflict if there is one. A large line is stored as an object, once:
// another attempt uses the same object. After any other error the result may be stored, so its object is not deleted.
// If no result refers to it, sweep removes it once the batch has ended.
func (s *Service) createResult(ctx context.Context, batch, key string, r *result) error {
	if r.Object == "" && len(r.Line) > store.MaxBucketValue/2 {
		name := resultName(batch, s.now())
		size, err := s.store.WriteObject(ctx, name, bytes.NewReader(append(r.Line, '\n')))
		if err != nil {
			return err
		}
		r.Object, r.Size, r.Line = name, size, nil
	}
	_, err := s.results.Create(ctx, key, encode(r))
	return err
}

// dropUnused deletes the object of a result that was not recorded, because there was one: own, unless that one uses it.
func (s *Service) dropUnused(ctx context.Context, own, used string) {
	if own == "" || own == used {
		return
	}
	if err := s.store.DeleteObject(context.WithoutCancel(ctx), own); err != nil {
		s.log.Warn("deleting an unused result failed", "object", own, "err", err)
	}
}
