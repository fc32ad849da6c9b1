package aws

import (
	"net/http"
	"sync"
	"time"
)

// dates is a transport that reads the cloud's clock from the Date header of its responses.
type dates struct {
	next http.RoundTripper
	now  func() time.Time

	mu   sync.Mutex
	skew time.Duration
	seen bool
}

// RoundTrip sends a request and records the date of the response.
func (d *dates) RoundTrip(r *http.Request) (*http.Response, error) {
	answer, err := d.next.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	if at, err := http.ParseTime(answer.Header.Get("Date")); err == nil { // a response without a date is ignored
		d.mu.Lock()
		d.skew, d.seen = d.now().Sub(at), true
		d.mu.Unlock()
	}
	return answer, nil
}

// ahead returns by how much this machine's clock is ahead of the cloud's, in whole seconds; false until
// a response was received.
func (d *dates) ahead() (time.Duration, bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.skew.Truncate(time.Second), d.seen
}
