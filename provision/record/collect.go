package record

import (
	"net/http"
	"time"
)

// Collector receives recorded calls.
type Collector interface{ Add(Call) }

// Collect returns a transport that passes each call to a collector, without its secrets, when its response was
// read. The collector must be safe for concurrent use if the transport is used concurrently.
func Collect(next http.RoundTripper, to Collector) http.RoundTripper {
	return (&Recorder{redactor: NewRedactor(nil), now: time.Now, collector: to}).Transport(next)
}
