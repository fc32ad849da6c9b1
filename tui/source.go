package tui

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"skyserve/internal/telemetry"
)

// attemptTimeout is the timeout of one attempt at one admin API, after which the next one
// is tried.
const attemptTimeout = 2 * time.Second

// SnapshotSource fetches snapshots from the first of several admin APIs that responds, and keeps
// using it until it fails. It is safe for concurrent use.
type SnapshotSource struct {
	service string
	clients []*telemetry.Client

	mu      sync.Mutex
	current int
}

// NewSource returns a source that tries clients in this order. If service is not empty, a
// balancer of another service counts as failed.
func NewSource(service string, clients ...*telemetry.Client) *SnapshotSource {
	return &SnapshotSource{service: service, clients: clients}
}

// String lists the admin URLs.
func (s *SnapshotSource) String() string {
	urls := make([]string, len(s.clients))
	for i, c := range s.clients {
		urls[i] = c.Base()
	}
	return strings.Join(urls, ", ")
}

// Fetch returns a snapshot and the admin URL that it was fetched from. If all fail, the
// error joins the error of each.
func (s *SnapshotSource) Fetch(ctx context.Context) (*telemetry.Snapshot, string, error) {
	s.mu.Lock()
	first := s.current
	s.mu.Unlock()
	var errs []error
	for i := range s.clients {
		at := (first + i) % len(s.clients)
		snapshot, err := s.fetchFrom(ctx, s.clients[at])
		if err == nil {
			s.mu.Lock()
			s.current = at
			s.mu.Unlock()
			return snapshot, s.clients[at].Base(), nil
		}
		errs = append(errs, &attemptError{s.clients[at].Base(), err})
		if ctx.Err() != nil {
			break
		}
	}
	if len(errs) == 0 {
		return nil, "", errors.New("fetching a snapshot: no admin URLs")
	}
	return nil, "", errors.Join(errs...)
}

// fetchFrom fetches one snapshot from one admin API.
func (s *SnapshotSource) fetchFrom(ctx context.Context, c *telemetry.Client) (*telemetry.Snapshot, error) {
	ctx, cancel := context.WithTimeout(ctx, attemptTimeout)
	defer cancel()
	snapshot, err := c.Snapshot(ctx)
	if err != nil {
		return nil, err
	}
	if s.service != "" && snapshot.Service != s.service {
		return nil, fmt.Errorf("fetching a snapshot from %s: it serves %q, not %q", c.Base(), snapshot.Service, s.service)
	}
	return snapshot, nil
}

// attemptError is the failed attempt at one admin API.
type attemptError struct {
	base string
	err  error
}

func (e *attemptError) Error() string { return e.err.Error() }
func (e *attemptError) Unwrap() error { return e.err }

// short returns the address and the innermost cause, for one line on the screen.
func (e *attemptError) short() string {
	cause := e.err
	for inner := cause; inner != nil; inner = errors.Unwrap(inner) {
		cause = inner
	}
	var status *telemetry.StatusError
	if errors.As(e.err, &status) {
		return fmt.Sprintf("%s: %d %s", e.base, status.Status, status.Message)
	}
	return e.base + ": " + cause.Error()
}

// shortError returns a fetch error in one line.
func shortError(err error) string {
	parts := []error{err}
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		parts = joined.Unwrap()
	}
	words := make([]string, len(parts))
	for i, p := range parts {
		words[i] = strings.ReplaceAll(p.Error(), "\n", " ")
		var attempt *attemptError
		if errors.As(p, &attempt) {
			words[i] = attempt.short()
		}
	}
	return strings.Join(words, "; ")
}
