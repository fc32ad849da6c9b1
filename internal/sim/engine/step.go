package engine

import (
	"slices"
	"time"
)

type stepKind uint8

const (
	stepNone stepKind = iota
	stepPrefill
	stepDecode
)

// step is the current work of the engine: one prefill step, which also decodes in an engine with MixedSteps, or a
// run of decode steps without changes in between (no request finishes, memory suffices, and no waiting request can
// be admitted).
type step struct {
	kind    stepKind
	start   time.Duration
	profile *Profile

	chunks []chunk // prefill: the prompts it computes
	tokens int     // prefill: their total tokens

	count int // decode: steps in the run
	done  int // decode: finished steps of the run
	n, kv int // decode, or a mixed step: requests in each step, their context before the first

	// ends, if set, overrides the profile's times: the end of each step of a rank that waits for the
	// slowest (parallel.go).
	ends []time.Duration
}

// chunk is a part of a request's prompt in a prefill step.
type chunk struct {
	r      *request
	tokens int
}

// end returns the end of the k-th step of the run; a prefill step is a run of one.
func (s *step) end(k int) time.Duration {
	if k > 0 && len(s.ends) > 0 {
		return s.ends[k-1]
	}
	return s.start + s.ownTime(k)
}

// ownTime returns the time of the first k steps by the profile; 0 for a rank without work in them.
func (s *step) ownTime(k int) time.Duration {
	switch {
	case k == 0 || (len(s.chunks) == 0 && s.n == 0):
		return 0
	case s.kind == stepPrefill && len(s.chunks) > 0:
		return s.profile.mixedTime(s.tokens, s.n, s.kv)
	}
	return s.profile.decodeTime(k, s.n, s.kv)
}

// endedBy returns how many steps of a decode run have ended at a time.
func (s *step) endedBy(now time.Duration) int {
	low, high := s.done, s.count
	if s.end(high) <= now {
		return high
	}
	for low+1 < high {
		if mid := (low + high) / 2; s.end(mid) <= now {
			low = mid
		} else {
			high = mid
		}
	}
	return low
}

// processSteps processes every step that ends at or before now. It starts steps before now, but none at now.
func (e *Engine) processSteps(now time.Duration) {
	for {
		switch e.step.kind {
		case stepNone:
			if !e.busy() {
				e.at = e.clock(now)
				return
			}
			if e.at >= now {
				return
			}
			e.plan()
		case stepPrefill:
			if e.step.end(1) > now {
				return
			}
			e.finishPrefills()
		case stepDecode:
			e.decode(e.step.endedBy(now) - e.step.done)
			if e.step.done < e.step.count {
				return
			}
			e.finishRun()
		}
	}
}

// interrupt ends a run of decode steps after the current step, after a submission or cancellation. A
// step that starts at now is not current.
func (e *Engine) interrupt(now time.Duration) {
	s := &e.step
	if s.kind != stepDecode {
		return
	}
	if s.end(s.done) >= now {
		s.count = s.done
		e.finishRun()
		return
	}
	s.count = s.done + 1
}

// plan starts the next step at the end of the last one: prefill first.
func (e *Engine) plan() {
	e.planPrefill()
	switch {
	case len(e.step.chunks) > 0:
		e.step.kind = stepPrefill
	case e.decoding > 0:
		e.planDecode()
	}
}

// planPrefill starts a step with the next prompts.
func (e *Engine) planPrefill() {
	e.step = step{start: e.at, profile: &e.profile, chunks: e.step.chunks[:0]}
	if e.profile.MixedSteps {
		e.preemptForStep()
		e.step.n, e.step.kv = e.decoding, e.context
	}
	e.fillChunk()
}

// preemptForStep preempts the newest requests until the memory suffices for a token of each other one.
func (e *Engine) preemptForStep() {
	for e.freeTokens() < e.decoding {
		e.preempt(e.running[len(e.running)-1])
	}
}

// chunkTokens returns the prompt tokens that the prefill step can have: at least 1, so that prompts advance
// beside any number of running requests.
func (e *Engine) chunkTokens() int { return max(1, e.profile.ChunkTokens-e.step.n) }

// fillChunk admits requests, FCFS within a priority, until the prefill step is full or the next request
// has to wait.
func (e *Engine) fillChunk() {
	if e.partial != nil {
		e.compute(e.partial)
	}
	for e.step.tokens < e.chunkTokens() && len(e.running) < e.profile.MaxRunning {
		r := e.head()
		if r == nil || !e.admit(r) {
			return
		}
		e.waiting[r.priority].popFront()
		e.compute(r)
	}
}

// admitNext adds the head of the queue to a prefill step that starts now and has capacity left.
func (e *Engine) admitNext(now time.Duration) {
	s := &e.step
	if s.kind == stepPrefill && s.start >= now && s.tokens < e.chunkTokens() {
		e.fillChunk()
	}
}

// compute adds as much of a request's prompt to the prefill step as fits.
func (e *Engine) compute(r *request) {
	n := min(r.uncomputed, e.chunkTokens()-e.step.tokens)
	e.step.chunks = append(e.step.chunks, chunk{r, n})
	e.step.tokens += n
	e.partial = nil
	if n < r.uncomputed {
		e.partial = r
	}
}

// admit starts a request if memory allows: its uncached tokens plus a share of all tokens still to be
// generated must fit into free or evictable memory. The last token of a prompt is always computed,
// because it produces the first output token.
func (e *Engine) admit(r *request) bool {
	node, depth := &e.cache.root, 0
	if !e.light {
		node, depth = e.cache.walk(node, r.seq[:r.tokensToCompute-1])
	}
	e.cache.lock(node)
	uncached := r.tokensToCompute - depth
	toCome := r.maxNew - r.base
	capacity := e.freeTokens() - e.step.n // a mixed step also needs memory for the tokens that it generates
	reserve := e.profile.ReservePerMille * (toCome + e.maxRemaining)
	if 1000*uncached+reserve > 1000*capacity || uncached+1 > capacity {
		e.cache.unlock(node)
		return false
	}
	r.node, r.depth, r.uncomputed, r.privateTokens, r.running = node, depth, uncached, uncached+1, true
	e.running = append(e.running, r)
	e.maxRemaining += toCome
	e.allocate(r.privateTokens)
	if !r.admitted && !e.light {
		r.admitted, r.cached = true, depth
		e.load.QueriedTokens += int64(r.promptLen)
		e.load.HitTokens += int64(depth)
	}
	return true
}

// allocate allocates KV memory outside the cache, and evicts unused entries as needed.
func (e *Engine) allocate(tokens int) {
	e.private += tokens
	if over := e.cache.tokens + e.private - e.profile.KVTokens; over > 0 {
		before := e.cache.tokens
		e.cache.evict(over)
		e.load.EvictedTokens += int64(before - e.cache.tokens)
	}
}

// finishPrefills ends a prefill step.
func (e *Engine) finishPrefills() {
	s := &e.step
	e.load.BusyTime += s.end(1) - s.start
	e.load.PrefillSteps++
	e.at = s.end(1)
	if s.n > 0 {
		e.generate(1)
	}
	s.kind = stepNone
	e.finishRequests()
	for _, c := range s.chunks {
		if c.r == nil {
			continue
		}
		c.r.uncomputed -= c.tokens
		e.load.PrefilledTokens += int64(c.tokens)
		if c.r.uncomputed == 0 {
			e.finishPrefill(c.r)
		}
	}
}

// finishPrefill moves a request from prefill to decode: it caches its prompt and emits its next token.
func (e *Engine) finishPrefill(r *request) {
	if !e.light {
		end := e.cache.extend(r.node, r.seq[r.depth:])
		e.cache.unlock(r.node)
		e.private -= r.privateTokens - 1
		r.node, r.depth, r.privateTokens = end, r.tokensToCompute, 1
	}
	r.base++
	r.decoding, r.joined = true, e.steps
	e.decoding++
	e.context += r.tokensToCompute + 1
	e.maxRemaining--
	e.load.GeneratedTokens++
	if r.base == 1 {
		e.load.PromptTokens += int64(r.promptLen)
	}
	if e.detail == ReportTokens || r.base == 1 {
		e.emitToken(r, r.base, e.at)
	}
	if r.base == r.outputLen {
		e.finish(r)
	}
}

// emitToken reports the n-th token of a request.
func (e *Engine) emitToken(r *request, n int, at time.Duration) {
	ev := Event{
		At: at, ID: r.id, Kind: TokenEmitted, Index: n - 1,
		PromptTokens: r.promptLen, CachedTokens: r.cached, OutputTokens: n,
	}
	if n == r.outputLen {
		ev.Reason = r.reason
	}
	if !e.light {
		ev.Text = r.materialise(n)
		ev.Token = r.out[n-1]
	}
	e.emit(ev)
}

// planDecode starts a run of decode steps until the next change: the first request finishes or memory
// is used up. If memory does not suffice for a single step, it preempts the newest requests.
func (e *Engine) planDecode() {
	e.preemptForStep()
	count := e.freeTokens() / e.decoding
	for _, r := range e.running {
		count = min(count, r.outputLen-e.emitted(r))
	}
	s := &e.step
	s.kind, s.count, s.n, s.kv = stepDecode, count, e.decoding, e.context
}

// freeTokens returns the KV tokens that are free or evictable.
func (e *Engine) freeTokens() int { return e.profile.KVTokens - e.private - e.cache.locked }

// decode processes k steps of the run.
func (e *Engine) decode(k int) {
	if k == 0 {
		return
	}
	s := &e.step
	e.load.BusyTime += s.end(s.done+k) - s.end(s.done)
	e.generate(k)
	s.done += k
}

// generate adds the tokens of the next k steps to the decoding requests.
func (e *Engine) generate(k int) {
	if e.detail == ReportTokens {
		e.emitTokens(k)
	}
	e.steps += k
	added := k * e.decoding
	e.context += added
	e.maxRemaining -= added
	e.load.GeneratedTokens += int64(added)
	e.allocate(added)
}

// emitTokens reports each token of the next k decode steps.
func (e *Engine) emitTokens(k int) {
	for i := 1; i <= k; i++ {
		at := e.step.end(e.step.done + i)
		for _, r := range e.running {
			if r.decoding {
				e.emitToken(r, e.emitted(r)+i, at)
			}
		}
	}
}

// finishRun ends a run of decode steps.
func (e *Engine) finishRun() {
	s := &e.step
	e.at, s.kind = s.end(s.done), stepNone
	e.finishRequests()
}

// finishRequests finishes the requests that have all their tokens.
func (e *Engine) finishRequests() {
	for i := 0; i < len(e.running); {
		r := e.running[i]
		if r.decoding && e.emitted(r) == r.outputLen {
			e.finish(r) // removes r from running
			continue
		}
		i++
	}
}

// finish caches the whole response and removes the request.
func (e *Engine) finish(r *request) {
	if !e.light {
		r.materialise(r.outputLen)
		end := e.cache.extend(r.node, r.newOutput())
		e.cache.unlock(end)
	}
	e.load.Finished++
	e.emit(Event{
		At: e.at, ID: r.id, Kind: Finished, Reason: r.reason,
		PromptTokens: r.promptLen, CachedTokens: r.cached, OutputTokens: r.outputLen,
	})
	e.release(r)
	e.forget(r)
}

// preempt moves a running request back to the head of its queue. Its emitted tokens must be computed
// again and lose their memory; the prompt stays cached until it is evicted.
func (e *Engine) preempt(r *request) {
	n := e.emitted(r)
	e.load.Preempted++
	e.load.RecomputedTokens += int64(r.promptLen + n - r.tokensToCompute)
	e.emit(Event{
		At: e.at, ID: r.id, Kind: Preempted,
		PromptTokens: r.promptLen, CachedTokens: r.cached, OutputTokens: n,
	})
	e.release(r)
	r.base, r.tokensToCompute = n, r.promptLen+n
	if !e.light {
		r.materialise(n)
		r.buf = append(append(r.buf[:0], r.seq[:r.promptLen]...), r.out...)
		r.seq = r.buf
	}
	e.waiting[r.priority].pushFront(r)
}

// release removes a running request from the batch and frees its memory.
func (e *Engine) release(r *request) {
	n := e.emitted(r)
	e.maxRemaining -= r.maxNew - n
	e.private -= r.privateTokens
	if r.decoding {
		e.private -= e.steps - r.joined
		e.context -= r.promptLen + n
		e.decoding--
	}
	e.cache.unlock(r.node)
	e.leaveStep(r)
	i := slices.Index(e.running, r)
	e.running = slices.Delete(e.running, i, i+1)
	r.node, r.running, r.decoding = nil, false, false
}

// leaveStep removes a request from the current prefill step.
func (e *Engine) leaveStep(r *request) {
	if e.partial == r {
		e.partial = nil
	}
	for i := range e.step.chunks {
		if e.step.chunks[i].r == r {
			e.step.chunks[i].r = nil
		}
	}
}
