package gcp

import (
	"fmt"
	"net/http"
	"sync"
	"time"

	"skyserve/internal/service"
	"skyserve/provision"
)

// clock is the cloud's, as its answers tell it, beside this machine's.
type clock struct {
	mu   sync.Mutex
	skew time.Duration // by how much this machine's is ahead
	seen bool
}

// read takes the date of an answer; one without a date says nothing.
func (c *clock) read(answer *http.Response) {
	at, err := http.ParseTime(answer.Header.Get("Date"))
	if err != nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.skew, c.seen = time.Since(at).Truncate(time.Second), true
}

// maxSkew is how far this machine's clock may be from Google's, which gives no tokens to
// keys that sign five minutes off.
const maxSkew = 4 * time.Minute

// findClock compares the clocks; nothing where Google has not answered.
func (p *Provider) findClock() []provision.Finding {
	p.mu.Lock()
	s := p.session
	p.mu.Unlock()
	if s == nil {
		return nil
	}
	s.clock.mu.Lock()
	defer s.clock.mu.Unlock()
	if !s.clock.seen {
		return nil
	}
	f := provision.Finding{Where: service.CloudGCP, OK: s.clock.skew.Abs() < maxSkew, What: fmt.Sprintf("clock: %s ahead of Google's", s.clock.skew)}
	if !f.OK {
		f.Hint = setClock
	}
	return []provision.Finding{f}
}

const setClock = "set this machine's clock: Google gives no tokens to keys that sign five minutes off"
