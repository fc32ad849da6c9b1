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
	// probeEvery is the interval of a record's health checks, and probeTimeout the time limit of one:
	// on the operator's own machines a second is long.
	probeEvery   = time.Second
	probeTimeout = time.Second
	// probeThreshold is how many consecutive checks must disagree before a record becomes unhealthy, or
	// healthy again, as with Route 53.
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
// once, the last check alone decides: the balancer may be starting, as the server itself.
func (p *recordHealth) observe(problem string) {
	p.reason = problem
	well := problem == ""
	switch {
	case !p.everHealthy:
		p.everHealthy, p.healthy = well, well
	case p.healthy == well:
		p.streak = 0
	default:
		if p.streak++; p.streak == probeThreshold {
			p.healthy, p.streak = well, 0
		}
	}
}

// healthWatcher contains the health of all records.
type healthWatcher struct {
	client  *http.Client
	mu      sync.Mutex
	records map[string]*recordHealth // of the records with a check, by id
}

// newWatch checks through transport; nil = the default one.
func newWatch(transport http.RoundTripper) *healthWatcher {
	if transport == nil {
		transport = &http.Transport{
			DisableKeepAlives: true,                                  // a terminating balancer must not wait for connections of its checks
			TLSClientConfig:   &tls.Config{InsecureSkipVerify: true}, //nolint:gosec // whether it answers is all that is asked; Route 53 does not look either
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
				return // not a result of the check
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

// checkURL returns why a URL does not answer 200, or an empty string.
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
		return fmt.Sprintf("GET %s: %s", url, res.Status)
	}
	return ""
}

// healthy reports whether a record is healthy, which one without a check always is, and why its last
// check failed.
func (w *healthWatcher) healthy(id string) (well bool, reason string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	p := w.records[id]
	if p == nil {
		return true, ""
	}
	return p.healthy, p.reason
}
