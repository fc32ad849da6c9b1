package load

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

	"skyserve/internal/service"
)

// Default values and limits.
const (
	// DefaultDrain is the time for requests in flight to finish after the load ends; then they count as
	// cancelled. Most responses take less.
	DefaultDrain = 5 * time.Second
	// interruptedDrain is the drain time after an interruption, when a user is waiting at a
	// terminal.
	interruptedDrain = time.Second
	// DefaultMaxInFlight limits the concurrency of an open loop, so that an unresponsive service does
	// not exhaust the generator's memory. A row that waits for a slot is counted as delayed.
	DefaultMaxInFlight = 8192
	// dialTimeout is the limit for establishing a connection.
	dialTimeout = 5 * time.Second
	// maxErrorBody limits how much of an error's body is read for its message.
	maxErrorBody = 64 << 10
)

// Target is the endpoint for the clients of a region.
type Target struct {
	// Region is a place, such as us.
	Region string
	// URL is the base URL, without /v1.
	URL string
}

// Config holds the options common to open and closed loops.
type Config struct {
	// Targets has one entry per region, at least one.
	Targets []Target
	// Model and Tier are the defaults for requests without them.
	Model string
	Tier  service.Tier
	// APIKey is sent as a bearer token unless empty.
	APIKey string
	// Timeout limits the duration of a request, which fails when it is exceeded; 0 = none.
	Timeout time.Duration
	// Drain is the time for requests in flight to finish after the end; 0 = DefaultDrain.
	Drain time.Duration
	// MaxInFlight limits the open loop's concurrency; 0 = DefaultMaxInFlight.
	MaxInFlight int
	// HonorEOS lets a model end its response early. Without it requests set ignore_eos, so that responses
	// have the length of the workload.
	HonorEOS bool
	// Transport sends the requests; nil = NewTransport.
	Transport http.RoundTripper
	// Progress, if set, is called every ProgressEvery while the load runs.
	Progress func(ProgressReport)
}

// ProgressEvery is the time between two calls of Config.Progress.
const ProgressEvery = 500 * time.Millisecond

// ProgressReport is the state of a running load.
type ProgressReport struct {
	Elapsed  time.Duration
	InFlight int
	OK       int
	// Failed includes rejected requests.
	Failed int
	// TokensPerSecond is the rate since the last call.
	TokensPerSecond float64
}

// NewTransport returns a transport for many concurrent streams: it keeps connections, does not
// decompress bodies, and sends large prompts in few writes.
func NewTransport() *http.Transport {
	return &http.Transport{
		Proxy:               http.ProxyFromEnvironment,
		DialContext:         (&net.Dialer{Timeout: dialTimeout}).DialContext,
		TLSHandshakeTimeout: dialTimeout,
		MaxIdleConnsPerHost: DefaultMaxInFlight,
		IdleConnTimeout:     90 * time.Second,
		DisableCompression:  true,
		WriteBufferSize:     32 << 10,
	}
}

// StatusError is a response of a target with another status than 200.
type StatusError struct {
	URL     string
	Status  int
	Message string // of its body
}

// Error returns the request, the status and the message.
func (e *StatusError) Error() string {
	return fmt.Sprintf("GET %s returned %d: %s", e.URL, e.Status, e.Message)
}

// FirstModel requests the models of a target and returns the first.
func FirstModel(ctx context.Context, c Config, target Target) (string, error) {
	url := target.URL + "/v1/models"
	fail := func(err error) (string, error) { return "", fmt.Errorf("listing the models: %w", err) }
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return fail(err)
	}
	c.authorize(req)
	transport, done := c.transport()
	defer done()
	resp, err := (&http.Client{Transport: transport}).Do(req)
	if err != nil {
		return fail(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	if err != nil {
		return fail(fmt.Errorf("reading the response of GET %s: %w", url, err))
	}
	if resp.StatusCode != http.StatusOK {
		return fail(&StatusError{URL: url, Status: resp.StatusCode, Message: errorMessage(body)})
	}
	var list struct {
		Data []struct {
			ID string `json:"id"`
		} `json:"data"`
	}
	if err := json.Unmarshal(body, &list); err != nil {
		return fail(fmt.Errorf("decoding the response of GET %s: %w", url, err))
	}
	if len(list.Data) == 0 || list.Data[0].ID == "" {
		return fail(fmt.Errorf("GET %s returned no models", url))
	}
	return list.Data[0].ID, nil
}

func (c *Config) authorize(req *http.Request) {
	if c.APIKey != "" {
		req.Header.Set("Authorization", "Bearer "+c.APIKey)
	}
}

// transport returns the configured transport, or a new one that done closes.
func (c *Config) transport() (t http.RoundTripper, done func()) {
	if c.Transport != nil {
		return c.Transport, func() {}
	}
	own := NewTransport()
	return own, own.CloseIdleConnections
}
