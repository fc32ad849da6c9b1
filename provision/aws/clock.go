package aws

import (
	"net/http"
	"sync"
	"time"
)

// clockTransport is a transport that reads the cloud's clock from the Date header of its responses.
type clockTransport struct {
	next http.RoundTripper
	now  func() time.Time

	mu    sync.Mutex
	skew  time.Duration
	known bool
}

// RoundTrip sends a request and records the date of the response.
func (d *clockTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	response, err := d.next.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	if at, err := http.ParseTime(response.Header.Get("Date")); err == nil { // a response without a date is ignored
		d.mu.Lock()
		d.skew, d.known = d.now().Sub(at), true
		d.mu.Unlock()
	}
	return response, nil
}

// aheadBy returns how far this machine's clock is ahead of the cloud's, in whole seconds; false until a
// response was received.
func (d *clockTransport) aheadBy() (time.Duration, bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.skew.Truncate(time.Second), d.known
}
