package gcp

import (
	"net/http"
	"sync"
	"time"

	"skyserve/internal/service"
	"skyserve/provision"
)

// clock measures the offset between this machine's clock and the cloud's, from its responses.
type clock struct {
	mu    sync.Mutex
	skew  time.Duration // how far this machine's clock is ahead
	known bool
}

// observe records the date of a response; one without a date is ignored.
func (c *clock) observe(response *http.Response) {
	at, err := http.ParseTime(response.Header.Get("Date"))
	if err != nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.skew, c.known = time.Since(at).Truncate(time.Second), true
}

// maxSkew is the maximum difference between this machine's clock and Google's. Google rejects token
// requests whose time differs by five minutes.
const maxSkew = 4 * time.Minute

// checkClock compares the clocks; no finding before the first response of Google.
func (p *Provider) checkClock() []provision.CheckResult {
	p.mu.Lock()
	s := p.session
	p.mu.Unlock()
	if s == nil {
		return nil
	}
	s.clock.mu.Lock()
	defer s.clock.mu.Unlock()
	if !s.clock.known {
		return nil
	}
	f := provision.CheckResult{Where: service.CloudGCP, OK: s.clock.skew.Abs() < maxSkew, Message: provision.DescribeClock(s.clock.skew, "Google")}
	if !f.OK {
		f.Hint = clockHint
	}
	return []provision.CheckResult{f}
}

const clockHint = "correct this machine's clock: Google rejects token requests whose time differs by five minutes"
