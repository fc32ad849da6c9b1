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

// A call has up to maxAttempts attempts. The backoff starts with minBackoff and doubles up to maxBackoff,
// about 9 s in total. A rate-limited call has up to maxRateLimitAttempts attempts, over at least a minute:
// Google's rate limits are per minute. callTimeout is the maximum duration of one attempt, so that a dead
// connection is detected.
const (
	maxAttempts          = 6
	maxRateLimitAttempts = 12
	minBackoff           = 300 * time.Millisecond
	maxBackoff           = 20 * time.Second
	callTimeout          = time.Minute
)

// retryTransport is a transport that retries rate-limited calls, internal errors and calls without a
// response. That is safe: every call that changes something has a request id, by which the cloud recognizes
// a repetition. Responses are read in full.
type retryTransport struct {
	next   http.RoundTripper
	pauses bool
	clock  *clock // reads the date of every response
}

// RoundTrip sends a request until it gets a final response.
func (t *retryTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	wait := minBackoff
	for attempt := 1; ; attempt++ {
		response, text, err := t.attempt(r)
		if r.Context().Err() != nil || attempt >= maxAttemptsFor(response, text, err) {
			return response, err
		}
		if t.pauses {
			if err := sleep(r.Context(), wait/2+rand.N(wait)); err != nil {
				return nil, err
			}
		}
		wait = min(2*wait, maxBackoff)
	}
}

// attempt sends a request once and reads the response. The body of the returned response can be read again.
func (t *retryTransport) attempt(r *http.Request) (*http.Response, []byte, error) {
	if err := makeRewindable(r); err != nil {
		return nil, nil, err
	}
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
	response, err := t.next.RoundTrip(sent)
	if err != nil {
		return nil, nil, err
	}
	t.clock.observe(response)
	text, err := io.ReadAll(response.Body)
	response.Body.Close()
	if err != nil {
		return nil, nil, fmt.Errorf("reading the response to %s %s: %w", r.Method, r.URL.Path, err)
	}
	response.Body = io.NopCloser(bytes.NewReader(text))
	return response, text, nil
}

// makeRewindable makes a body repeatable by a copy in memory: the parts of uploads are not.
func makeRewindable(r *http.Request) error {
	if r.Body == nil || r.GetBody != nil {
		return nil
	}
	text, err := io.ReadAll(r.Body)
	if err != nil {
		return fmt.Errorf("reading the body of %s %s: %w", r.Method, r.URL.Path, err)
	}
	r.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(text)), nil }
	return r.Body.Close()
}

// maxAttemptsFor returns the number of attempts for a call with this response: one, unless a retry may
// succeed.
func maxAttemptsFor(response *http.Response, text []byte, err error) int {
	if err != nil {
		return maxAttempts
	}
	switch response.StatusCode {
	case http.StatusInternalServerError, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return maxAttempts
	case http.StatusTooManyRequests:
		return maxRateLimitAttempts
	case http.StatusForbidden: // Compute Engine also reports an exceeded rate with this status
		if slices.ContainsFunc(reasonsOf(text), func(reason string) bool {
			return reason == codeRate || reason == codeUserRate
		}) {
			return maxRateLimitAttempts
		}
	}
	return 1
}

// reasonsOf returns the reasons in the text of an API error; none for another text.
func reasonsOf(text []byte) []string {
	var body struct {
		Error struct {
			Errors []struct {
				Reason string `json:"reason"`
			} `json:"errors"`
		} `json:"error"`
	}
	if json.Unmarshal(text, &body) != nil {
		return nil
	}
	var reasons []string
	for _, e := range body.Error.Errors {
		reasons = append(reasons, e.Reason)
	}
	return reasons
}

// regionOfCall returns the region in a call's path; empty for calls about the whole project. The number of
// calls in flight is limited per region, because Google has one host for all regions and counts rates per
// region.
func regionOfCall(r *http.Request) string {
	parts := strings.Split(r.URL.Path, "/")
	for i, part := range parts[:len(parts)-1] {
		switch part {
		case "zones":
			return regionOf(parts[i+1]).ShortName()
		case "regions":
			return parts[i+1]
		}
	}
	return ""
}
