package aws

import (
	"net/http"
	"sync"
	"time"
)

// dates is a transport that reads the cloud's clock from its answers.
type dates struct {
	next http.RoundTripper
	now  func() time.Time

	mu   sync.Mutex
	skew time.Duration
	seen bool
}

// RoundTrip sends a request.
func (d *dates) RoundTrip(r *http.Request) (*http.Response, error) {
	answer, err := d.next.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	if at, err := http.ParseTime(answer.Header.Get("Date")); err == nil { // an answer without a date says nothing
		d.mu.Lock()
		d.skew, d.seen = d.now().Sub(at), true
		d.mu.Unlock()
	}
	return answer, nil
}

// ahead is by how much this machine's clock is ahead of the cloud's, which tells
// whole seconds; false as long as nothing was answered.
func (d *dates) ahead() (time.Duration, bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.skew.Truncate(time.Second), d.seen
}
