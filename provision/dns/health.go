package dns

import (
	"context"
	"crypto/tls"
	"fmt"
	"net/http"
	"sync"
	"time"
)

const (
	// probeEvery is the interval of a record's health checks, probeTimeout the timeout of one check. They are
	// short because the checked machines are the operator's own.
	probeEvery   = time.Second
	probeTimeout = time.Second
	// probeThreshold is the number of consecutive checks with the opposite result after which a record
	// becomes unhealthy, or healthy again, as with Route 53.
	probeThreshold = 3
)

// recordHealth is the health of one record by its checks.
type recordHealth struct {
	everHealthy bool // it has been healthy once
	healthy     bool
	streak      int    // consecutive checks with the opposite result
	reason      string // of the last check if it failed; else empty
}

// observe records the result of a check; an empty problem is a success. Until a record has been healthy
// once, the result of the last check is its health, because the balancer may still be starting.
func (p *recordHealth) observe(problem string) {
	p.reason = problem
	ok := problem == ""
	switch {
	case !p.everHealthy:
		p.everHealthy, p.healthy = ok, ok
	case p.healthy == ok:
		p.streak = 0
	default:
		if p.streak++; p.streak == probeThreshold {
			p.healthy, p.streak = ok, 0
		}
	}
}

// healthWatcher contains the health of all records.
type healthWatcher struct {
	client  *http.Client
	mu      sync.Mutex
	records map[string]*recordHealth // of the records with a check, by id
}

// newHealthWatcher returns a watcher that sends its checks through transport; nil = the default transport.
func newHealthWatcher(transport http.RoundTripper) *healthWatcher {
	if transport == nil {
		transport = &http.Transport{
			DisableKeepAlives: true,                                  // a terminating balancer must not wait for connections of its checks
			TLSClientConfig:   &tls.Config{InsecureSkipVerify: true}, //nolint:gosec // a check tests the response only; Route 53 does not verify certificates either
		}
	}
	return &healthWatcher{client: &http.Client{Timeout: probeTimeout, Transport: transport}, records: map[string]*recordHealth{}}
}

// checkAll checks every URL once, concurrently; urls are by record id.
func (w *healthWatcher) checkAll(ctx context.Context, urls map[string]string) {
	var wg sync.WaitGroup
	for id, url := range urls {
		wg.Go(func() {
			problem := w.checkURL(ctx, url)
			if ctx.Err() != nil {
				return // the error is that of ctx, not a result of the check
			}
			w.mu.Lock()
			defer w.mu.Unlock()
			if w.records[id] == nil {
				w.records[id] = &recordHealth{}
			}
			w.records[id].observe(problem)
		})
	}
	wg.Wait()
}

// checkURL returns the reason why a GET of a URL did not return 200; empty if it did.
func (w *healthWatcher) checkURL(ctx context.Context, url string) string {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err.Error()
	}
	res, err := w.client.Do(req)
	if err != nil {
		return err.Error()
	}
	res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return fmt.Sprintf("GET %s returned %s", url, res.Status)
	}
	return ""
}

// healthy reports whether a record is healthy, and the reason of its last failed check. A record without a
// check is always healthy.
func (w *healthWatcher) healthy(id string) (ok bool, reason string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	p := w.records[id]
	if p == nil {
		return true, ""
	}
	return p.healthy, p.reason
}
