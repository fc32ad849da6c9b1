package gcp

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"time"
)

// A call has up to tries attempts. The backoff starts with minBackoff and doubles up to maxBackoff:
// about 9 s in all. A rate-limited call has maxRateLimitAttempts attempts, over at least a minute: Google counts
// rates by the minute, and they refill at the next full one. callTimeout is the maximum duration of one
// attempt, so that a dead connection is detected.
const (
	maxAttempts          = 6
	maxRateLimitAttempts = 12
	minBackoff           = 300 * time.Millisecond
	maxBackoff           = 20 * time.Second
	callTimeout          = time.Minute
)

// retryTransport is a transport that retries rate-limited calls, internal errors and calls without a
// response. That is safe: every call that changes something carries a request id, by which the cloud
// recognizes a repetition. Responses are read in full.
type retryTransport struct {
	next   http.RoundTripper
	pauses bool
	clock  *clock // reads the date of every response
}

// RoundTrip sends a request until it gets a final response.
func (t *retryTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	wait := minBackoff
	for try := 1; ; try++ {
		answer, text, err := t.attempt(r)
		if r.Context().Err() != nil || try >= maxAttemptsFor(answer, text, err) {
			return answer, err
		}
		if t.pauses {
			if err := sleep(r.Context(), wait/2+rand.N(wait)); err != nil {
				return nil, err
			}
		}
		wait = min(2*wait, maxBackoff)
	}
}

// attempt sends a request once, and reads the response, whose body can be read again.
func (t *retryTransport) attempt(r *http.Request) (*http.Response, []byte, error) {
	ctx, cancel := context.WithTimeout(r.Context(), callTimeout)
	defer cancel()
	sent := r.Clone(ctx)
	if r.GetBody != nil {
		body, err := r.GetBody()
		if err != nil {
			return nil, nil, fmt.Errorf("rewinding the body of %s %s: %w", r.Method, r.URL.Path, err)
		}
		sent.Body = body
	}
	answer, err := t.next.RoundTrip(sent)
	if err != nil {
		return nil, nil, err
	}
	t.clock.observe(answer)
	text, err := io.ReadAll(answer.Body)
	answer.Body.Close()
	if err != nil {
		return nil, nil, fmt.Errorf("reading the response to %s %s: %w", r.Method, r.URL.Path, err)
	}
	answer.Body = io.NopCloser(bytes.NewReader(text))
	return answer, text, nil
}

// maxAttemptsFor returns the number of attempts for a call with this response: one, unless a retry may
// succeed.
func maxAttemptsFor(answer *http.Response, text []byte, failed error) int {
	if failed != nil {
		return maxAttempts
	}
	switch answer.StatusCode {
	case http.StatusInternalServerError, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return maxAttempts
	case http.StatusTooManyRequests:
		return maxRateLimitAttempts
	case http.StatusForbidden: // Compute Engine also reports an exceeded rate with this status
		if slices.ContainsFunc(reasonsOf(text), func(reason string) bool {
			return reason == "rateLimitExceeded" || reason == "userRateLimitExceeded"
		}) {
			return maxRateLimitAttempts
		}
	}
	return 1
}

// reasonsOf returns the reasons in an API error; none where the text is not one.
func reasonsOf(text []byte) []string {
	var refusal struct {
		Error struct {
			Errors []struct {
				Reason string `json:"reason"`
			} `json:"errors"`
		} `json:"error"`
	}
	if json.Unmarshal(text, &refusal) != nil {
		return nil
	}
	var reasons []string
	for _, e := range refusal.Error.Errors {
		reasons = append(reasons, e.Reason)
	}
	return reasons
}

// regionOfCall returns the region in a call's path. The number of calls in flight is limited per
// region: Google has one host for all regions, and counts rates by region. It is empty for calls about
// the whole project.
func regionOfCall(r *http.Request) string {
	parts := strings.Split(r.URL.Path, "/")
	for i, part := range parts[:len(parts)-1] {
		switch part {
		case "zones":
			return regionOf(parts[i+1]).Place()
		case "regions":
			return parts[i+1]
		}
	}
	return ""
}
