package proxy

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"skyserve/internal/service"
	"skyserve/lbd/openai"
)

// A chat is continued only by an engine that was proven to do so: see openai.CheckBody.
// Each replica's process is checked once, with two requests of at most openai.CheckTokens output
// tokens: after it became ready if Options.CheckContinuation is set, else before the first
// continuation that it would receive. Several continuations wait for one check.

// Limits of a check.
const (
	checkTimeout  = 30 * time.Second // of both requests together; a busy engine queues them
	maxCheckBytes = 64 << 10         // of a response: a few tokens
	// checkBackoff is the minimum time between a check without a result and the next one that a request causes,
	// unless the request has a key for the engine that the check lacked. For startChecks it doubles with each
	// such check, at most maxDoublings times.
	checkBackoff = 10 * time.Second
	maxDoublings = 6
	// checkTicks is the number of ticks between two searches for unchecked replicas.
	checkTicks = 10
	// restartTicks is the number of ticks without a response after which a replica may have been
	// replaced by another process at the same URL.
	restartTicks = 100
)

// checkID is the beginning of the request ids of checks, for the logs of engines.
const checkID = "continuation-check-"

// errNoProof is the error of an attempt whose target is not proven to continue the response of another.
type errNoProof struct{ reason string }

func (e errNoProof) Error() string { return e.reason }

// proof records whether a replica's process can continue the response of another replica.
type proof struct {
	mu      sync.Mutex
	process int           // number of the process; a check of an earlier one has no result
	running chan struct{} // closed when the check in progress ends; nil = none
	ready   bool          // the last report
	checkResult
}

// checkResult is the result of the checks of a process.
type checkResult struct {
	state      ContinuationState // empty = unknown
	cause      error             // why the state is not proven
	retryAt    time.Duration     // earliest time of the next check after one without a result
	keyMissing bool              // that check had no result because the engine requires a key that it lacked
	failures   int               // checks without a result
}

// ContinuationState is whether a replica can continue the response of another one, as far as known.
type ContinuationState string

// The states.
const (
	ContinuationUnknown  ContinuationState = "unknown" // not checked yet
	ContinuationProven   ContinuationState = "proven"
	ContinuationUnproven ContinuationState = "unproven" // the engine would begin a new response
)

// continuation returns the state of a replica's proof. The simulated engine is known to continue responses.
func (r *replica) continuation() ContinuationState {
	if r.cfg.Kind == service.EngineSim {
		return ContinuationProven
	}
	p := &r.count.proof
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.stateNow()
}

func (p *proof) stateNow() ContinuationState {
	if p.state == "" {
		return ContinuationUnknown
	}
	return p.state
}

// recordReport records a report of the replica. silent: it did not respond for so long that its process
// may be another one.
func (p *proof) recordReport(ready, silent bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !ready || silent {
		p.startProcess()
	}
	p.ready = ready
}

// startProcess discards the result of an earlier process; the proof must be locked.
func (p *proof) startProcess() {
	p.checkResult = checkResult{}
	p.process++
}

// changeModel discards the result of another model of the same engine.
func (p *proof) changeModel() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.startProcess()
}

// refute records that the process began a new response instead of continuing one.
func (p *proof) refute(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.state, p.cause = ContinuationUnproven, err
}

// refuteContinuation records that the current replica began a new response.
func (x *exchange) refuteContinuation() {
	if rep := x.current.rank.replica; rep != nil {
		rep.count.proof.refute(errRestarted)
	}
}

// errRestarted is the cause of a replica's state after it began a new response.
var errRestarted = errors.New("its engine began a new response instead of continuing one")

// mayBeContinued reports whether a target exists that may continue a response of a failed replica: another
// replica of its model that is not known to be unable, or a peer, which checks its own replicas. Without
// both, the replica itself may return.
func (r *Runtime) mayBeContinued(failed *replica) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.peers) > 0 {
		return true
	}
	alone := true
	for _, rep := range r.replicas {
		if rep.cfg.Model != failed.cfg.Model || rep.cfg.ID == failed.cfg.ID {
			continue
		}
		if alone = false; rep.continuation() != ContinuationUnproven {
			return true
		}
	}
	return alone && failed.continuation() != ContinuationUnproven
}

// result returns the result without a check, if it is known; nil = proven. key is the Authorization header for
// the engine. The proof must be locked.
func (p *proof) result(now time.Duration, key []string) (known bool, err error) {
	switch {
	case p.state == ContinuationProven:
		return true, nil
	case p.state == ContinuationUnproven, now < p.retryAt && (key == nil || !p.keyMissing):
		return true, errNoProof{p.cause.Error()}
	}
	return false, nil
}

// proveContinuation returns nil if the replica is proven to continue a chat. If that is not known, it
// runs the check, or waits for the one in progress. key is the Authorization header for the engine, nil
// if there is none. The error is an errNoProof unless ctx ended.
func (r *Runtime) proveContinuation(ctx context.Context, rep *replica, key []string) error {
	if rep.cfg.Kind == service.EngineSim {
		return nil
	}
	p := &rep.count.proof
	for {
		p.mu.Lock()
		known, err := p.result(r.Elapsed(), key)
		running, process := p.running, p.process
		if !known && running == nil {
			p.running = make(chan struct{})
		}
		p.mu.Unlock()
		switch {
		case known:
			return err
		case running == nil:
			return r.runCheck(ctx, rep, key, process)
		}
		select {
		case <-running:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// runCheck runs a check of a replica's process and stores its result.
func (r *Runtime) runCheck(ctx context.Context, rep *replica, key []string, process int) error {
	p := &rep.count.proof
	state, err := r.checkContinuation(ctx, rep, key)
	p.mu.Lock()
	defer p.mu.Unlock()
	close(p.running)
	p.running = nil
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if p.process == process {
		p.checkResult = checkResult{state: state, cause: err, retryAt: r.Elapsed() + checkBackoff, keyMissing: errors.Is(err, errKeyMissing), failures: p.failures + 1}
	}
	if state == ContinuationUnproven {
		r.log.Warn("replica cannot continue chats of other replicas", "replica", rep.cfg.ID, "model", rep.cfg.Model, "cause", err)
	}
	if err != nil {
		return errNoProof{err.Error()}
	}
	return nil
}

// checkContinuation makes both requests of a check. The state is unknown if the responses do not show
// what the engine does.
func (r *Runtime) checkContinuation(ctx context.Context, rep *replica, key []string) (ContinuationState, error) {
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	open, status, err := r.requestCheck(ctx, rep, key, true)
	switch {
	case err != nil:
		return ContinuationUnknown, err
	case status != http.StatusOK:
		return ContinuationUnproven, fmt.Errorf("its engine rejects continue_final_message (%d)", status)
	}
	if err := open.ContinuesText(); err != nil {
		return ContinuationUnproven, err
	}
	closed, status, err := r.requestCheck(ctx, rep, key, false)
	switch {
	case err != nil:
		return ContinuationUnknown, err
	case refusesContinuation(status):
		return ContinuationProven, nil // without the parameter, the same chat is invalid (Mistral's templates)
	case status != http.StatusOK:
		return ContinuationUnproven, fmt.Errorf("its engine rejects a chat that ends in an assistant's message (%d)", status)
	}
	if err := openai.ProvesContinuation(&open, &closed); err != nil {
		return ContinuationUnproven, err
	}
	return ContinuationProven, nil
}

// errKeyMissing is the error of a check that lacked the engine's key.
var errKeyMissing = errors.New("its engine could not be checked without its API key")

// inconclusiveStatus returns an error for a status that shows neither that the engine can continue a response
// nor that it cannot.
func inconclusiveStatus(status int) error {
	switch {
	case status == http.StatusUnauthorized, status == http.StatusForbidden:
		return errKeyMissing
	case status >= 500, status == http.StatusTooManyRequests, status == http.StatusRequestTimeout:
		return fmt.Errorf("its engine could not be checked (%d)", status)
	}
	return nil
}

// errNoCheck is the error of a check whose requests failed.
var errNoCheck = errors.New("its engine could not be checked")

// requestCheck makes one request of a check. It returns an error if the response is inconclusive.
func (r *Runtime) requestCheck(ctx context.Context, rep *replica, key []string, open bool) (answer openai.CheckAnswer, status int, err error) {
	body := openai.CheckBody(rep.cfg.Model, open)
	req := &http.Request{
		Method: http.MethodPost, Host: rep.base.Host, ContentLength: int64(len(body)), Body: io.NopCloser(bytes.NewReader(body)),
		URL:    &url.URL{Scheme: rep.base.Scheme, Host: rep.base.Host, Path: strings.TrimSuffix(rep.base.Path, "/") + "/v1/chat/completions"},
		Header: http.Header{"Content-Type": {"application/json"}, headerRequestID: {checkID + requestID("")}},
	}
	if key != nil {
		req.Header["Authorization"] = key
	}
	rep.authorize(req.Header)
	resp, err := rep.transport.RoundTrip(req.WithContext(ctx))
	if err != nil {
		return answer, 0, errNoCheck
	}
	defer resp.Body.Close()
	stream, err := io.ReadAll(io.LimitReader(resp.Body, maxCheckBytes))
	if err != nil {
		return answer, 0, errNoCheck
	}
	return openai.ReadCheck(stream), resp.StatusCode, inconclusiveStatus(resp.StatusCode)
}

// startChecks checks one replica that is ready and was not checked yet, in every checkTicks-th tick.
func (r *Runtime) startChecks(ctx context.Context) {
	if !r.checksContinuation || r.noContinue.Load() || r.checking.Load() {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ticks%checkTicks != 0 {
		return
	}
	for _, rep := range r.sortedReplicas() {
		if rep.external == nil && rep.continuation() == ContinuationUnknown && rep.count.proof.isDue(r.Elapsed()) {
			r.checking.Store(true)
			r.goroutines.Go(func() {
				defer r.checking.Store(false)
				_ = r.proveContinuation(ctx, rep, nil) // the proof keeps the result
			})
			return
		}
	}
}

// isDue reports whether an unchecked replica can be checked.
func (p *proof) isDue(now time.Duration) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.failures == 0 {
		return p.ready
	}
	return p.ready && now >= p.retryAt+(checkBackoff<<min(p.failures-1, maxDoublings)-checkBackoff)
}
