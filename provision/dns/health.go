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
	// probeEvery is how often a record is checked, and probeTimeout how long an
	// answer may take: on one's own machines a second is long.
	probeEvery   = time.Second
	probeTimeout = time.Second
	// probeThreshold is how many checks in a row have to differ before a record
	// counts as sick, or as well again, as with Route 53.
	probeThreshold = 3
)

// pulse is the health of one record by its checks.
type pulse struct {
	proven  bool // it was well once
	healthy bool
	row     int    // checks in a row that said otherwise
	reason  string // of the last check that failed; empty when the last one did not
}

// saw notes a check; an empty problem is one that was answered. Until a record was
// well once, the last check decides: it may be starting, as the server itself.
func (p *pulse) saw(problem string) {
	p.reason = problem
	well := problem == ""
	switch {
	case !p.proven:
		p.proven, p.healthy = well, well
	case p.healthy == well:
		p.row = 0
	default:
		if p.row++; p.row == probeThreshold {
			p.healthy, p.row = well, 0
		}
	}
}

// watch is the health of all records.
type watch struct {
	client *http.Client
	mu     sync.Mutex
	pulses map[string]*pulse // of the records that have a check, by id
}

// newWatch checks by transport; nil = the usual one.
func newWatch(transport http.RoundTripper) *watch {
	if transport == nil {
		transport = &http.Transport{
			DisableKeepAlives: true,                                  // a balancer that ends must not be held up by its checks
			TLSClientConfig:   &tls.Config{InsecureSkipVerify: true}, //nolint:gosec // whether it answers is all that is asked; Route 53 does not look either
		}
	}
	return &watch{client: &http.Client{Timeout: probeTimeout, Transport: transport}, pulses: map[string]*pulse{}}
}

// round checks every URL once, all at the same time; urls are by record id.
func (w *watch) round(ctx context.Context, urls map[string]string) {
	var wg sync.WaitGroup
	for id, url := range urls {
		wg.Go(func() {
			problem := w.problem(ctx, url)
			if ctx.Err() != nil {
				return // it says nothing of the record
			}
			w.mu.Lock()
			defer w.mu.Unlock()
			if w.pulses[id] == nil {
				w.pulses[id] = &pulse{}
			}
			w.pulses[id].saw(problem)
		})
	}
	wg.Wait()
}

// problem says why a URL does not answer 200, or nothing.
func (w *watch) problem(ctx context.Context, url string) string {
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

// healthy says whether a record counts as healthy, which one without a check does,
// and what its last check had against it.
func (w *watch) healthy(id string) (well bool, reason string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	p := w.pulses[id]
	if p == nil {
		return true, ""
	}
	return p.healthy, p.reason
}
