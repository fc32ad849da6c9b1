package load

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"time"

	"skyserve/internal/service"
	"skyserve/internal/sim/workload"
)

// outcome is how a request ended.
type outcome int

const (
	outcomeOK outcome = iota
	outcomeRejected
	outcomeFailed
	outcomeCancelled
)

// Reasons of failed requests, the keys of ClientFigures.Failures.
const (
	reasonConnect = "connect"       // no response
	reasonTimeout = "timeout"       // Config.Timeout exceeded
	reasonStatus  = "status"        // neither 200 nor a rejection
	reasonBroken  = "stream_broken" // the stream ended without [DONE]
	reasonError   = "stream_error"  // the stream contained an error event
)

// result is the result of one request.
type result struct {
	region  string
	outcome outcome
	// status is the HTTP status, 0 without a response.
	status int
	// reason and detail describe why a request failed or was rejected.
	reason, detail string
	// retryAfter is the wait that a rejection requested.
	retryAfter time.Duration

	ttft, e2e time.Duration
	// gaps are the times between two events with content.
	gaps []time.Duration
	// events counts the events with content, inWindow those before the load ended.
	events, inWindow int
	usage            *usage
	forwarded        bool
	// endedInWindow reports that the request ended before the load.
	endedInWindow bool
	response      []byte
}

// outputTokens returns the length of the response: the service's count, or else one token per event.
func (r *result) outputTokens() int {
	if r.usage != nil && r.usage.output > 0 {
		return r.usage.output
	}
	return r.events
}

// body is the body of a chat completion request.
type body struct {
	Model         string             `json:"model"`
	Messages      []workload.Message `json:"messages"`
	MaxTokens     int                `json:"max_tokens"`
	IgnoreEOS     bool               `json:"ignore_eos,omitempty"`
	Stream        bool               `json:"stream"`
	StreamOptions streamOptions      `json:"stream_options"`
	User          string             `json:"user,omitempty"`
}

type streamOptions struct {
	IncludeUsage bool `json:"include_usage"`
}

// encode returns the body of a request.
func (c *Config) encode(r workload.Request) ([]byte, error) {
	b := body{
		Model: cmp.Or(r.Model, c.Model), Messages: r.Messages, MaxTokens: r.OutputTokens, IgnoreEOS: !c.HonorEOS,
		Stream: true, StreamOptions: streamOptions{IncludeUsage: true}, User: r.User,
	}
	var out bytes.Buffer
	out.Grow(6*r.InputTokens + 512) // approximate size of words and quotes
	encoder := json.NewEncoder(&out)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(b); err != nil {
		return nil, fmt.Errorf("encoding a request of session %s: %w", r.Session, err)
	}
	return out.Bytes(), nil
}

// post returns the HTTP request.
func (c *Config) post(ctx context.Context, target Target, r workload.Request, payload []byte) (*http.Request, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, target.URL+"/v1/chat/completions", bytes.NewReader(payload))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "text/event-stream")
	if r.Session != "" {
		req.Header.Set("X-Session-ID", r.Session)
	}
	if tier := cmp.Or(r.Tier, c.Tier); tier != "" {
		req.Header.Set("X-Skyserve-Tier", string(tier))
	}
	c.authorize(req)
	return req, nil
}

// sendRequest sends one request and reads its response.
func (r *run) sendRequest(target Target, request workload.Request) result {
	res := result{region: target.Region}
	ctx, cancel := context.WithCancelCause(r.requests)
	defer cancel(nil)
	if r.config.Timeout > 0 {
		timer := time.AfterFunc(r.config.Timeout, func() { cancel(errTimeout) })
		defer timer.Stop()
	}
	payload, err := r.config.encode(request)
	if err != nil {
		res.fail(reasonConnect, err.Error())
		return res
	}
	req, err := r.config.post(ctx, target, request, payload)
	if err != nil {
		res.fail(reasonConnect, err.Error())
		return res
	}
	start := time.Now()
	resp, err := r.client.Do(req)
	if err != nil {
		res.failWithError(ctx, reasonConnect, err)
		return res
	}
	defer resp.Body.Close()
	res.status = resp.StatusCode
	if at := resp.Header.Get("X-Skyserve-Region"); at != "" {
		res.forwarded = service.Region(at).ShortName() != service.Region(target.Region).ShortName()
	}
	if resp.StatusCode != http.StatusOK {
		res.rejectStatus(resp)
		return res
	}
	r.stream(ctx, &res, resp.Body, start)
	if res.usage != nil && hidesCache(resp.Header) {
		res.usage.hasCached = false
	}
	if res.outcome == outcomeOK {
		finish(resp.Body, cancel)
	}
	return res
}

// hidesCache reports whether the response came through a balancer that hides the cached tokens from its
// client; the count is then always 0.
func hidesCache(h http.Header) bool {
	return h.Get("X-Skyserve-Region") != "" && h.Get("X-Skyserve-Prefix-Match") == ""
}

// errTimeout is the cause of a request that exceeded Config.Timeout.
var errTimeout = errors.New("the request timed out")

// fail records a failure.
func (r *result) fail(reason, detail string) {
	r.outcome, r.reason, r.detail = outcomeFailed, reason, shorten(detail)
}

// failWithError records a request that ended with an error: a cancellation or timeout of the generator, or a
// failure of the service.
func (r *result) failWithError(ctx context.Context, reason string, err error) {
	switch cause := context.Cause(ctx); {
	case cause == nil:
		r.fail(reason, err.Error())
	case errors.Is(cause, errTimeout):
		r.fail(reasonTimeout, errTimeout.Error())
	default:
		r.outcome = outcomeCancelled
	}
}

// rejectStatus records a response that is not a stream: 429 and 503 are rejections, all others failures.
func (r *result) rejectStatus(resp *http.Response) {
	text, _ := io.ReadAll(io.LimitReader(resp.Body, maxErrorBody)) // a partial body is enough for a message
	detail := fmt.Sprintf("status %d: %s", resp.StatusCode, errorMessage(text))
	r.fail(reasonStatus, detail)
	if resp.StatusCode == http.StatusTooManyRequests || resp.StatusCode == http.StatusServiceUnavailable {
		r.outcome = outcomeRejected
		if seconds, err := strconv.ParseFloat(resp.Header.Get("Retry-After"), 64); err == nil && seconds > 0 {
			r.retryAfter = time.Duration(min(seconds, maxBackoff.Seconds()) * float64(time.Second))
		}
	}
}

// stream reads a response to its end.
func (r *run) stream(ctx context.Context, res *result, body io.Reader, start time.Time) {
	in := lines{in: body}
	last := start
	for {
		line, err := in.nextLine()
		if err != nil {
			if errors.Is(err, io.EOF) {
				err = errors.New("stream ended without [DONE]")
			}
			res.failWithError(ctx, reasonBroken, err)
			return
		}
		e := parseEvent(line)
		if e.usage != nil {
			res.usage = e.usage
		}
		switch {
		case e.token:
			last = r.token(res, e, start, last)
		case e.failed:
			res.fail(reasonError, e.failure)
			return
		case e.done:
			res.e2e = time.Since(start)
			return
		}
	}
}

// token records an event with content and returns its time.
func (r *run) token(res *result, e event, start, last time.Time) time.Time {
	now := time.Now()
	if res.events == 0 {
		res.ttft = now.Sub(start)
	} else {
		res.gaps = append(res.gaps, now.Sub(last))
	}
	res.events++
	if !r.ended.Load() {
		res.inWindow++
	}
	r.live.tokens.Add(1)
	res.response = appendUnescaped(res.response, e.content)
	return now
}

// finish reads the rest of the body after [DONE] so that the connection can be reused; if the service
// does not end the body, the connection is closed.
func finish(body io.Reader, cancel context.CancelCauseFunc) {
	timer := time.AfterFunc(time.Second, func() { cancel(nil) })
	defer timer.Stop()
	_, _ = io.Copy(io.Discard, io.LimitReader(body, firstBuffer)) // the response is already complete
}
