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

// The defaults, each with its reason.
const (
	// DefaultDrain is how long requests in flight may go on after the end, then
	// they count as cancelled: most answers take less.
	DefaultDrain = 5 * time.Second
	// interruptedDrain is the same after an interruption: somebody waits at a
	// terminal.
	interruptedDrain = time.Second
	// DefaultMaxInFlight bounds the open loop's concurrency, so that a service
	// that answers nothing costs the generator its report and not its memory. A
	// row that has to wait for it is counted as delayed.
	DefaultMaxInFlight = 8192
	// dialTimeout is how long a connection may take to be made.
	dialTimeout = 5 * time.Second
	// maxErrorBody is how much of an error's body is read for its message.
	maxErrorBody = 64 << 10
)

// Target is where the clients of a region send their requests.
type Target struct {
	// Region is the place, such as us.
	Region string
	// URL is the base URL, without /v1.
	URL string
}

// Config is what both kinds of load need.
type Config struct {
	// Targets has one entry a region, at least one.
	Targets []Target
	// Model and Tier are put into requests that name none.
	Model string
	Tier  service.Tier
	// APIKey is sent as a bearer token when it is not empty.
	APIKey string
	// Timeout bounds one request; it fails when it takes longer. 0 = none.
	Timeout time.Duration
	// Drain is how long requests in flight may go on after the end; 0 = DefaultDrain.
	Drain time.Duration
	// MaxInFlight bounds the open loop's concurrency; 0 = DefaultMaxInFlight.
	MaxInFlight int
	// KeepEOS lets a model end its answer early. Without it ignore_eos is sent,
	// so that answers have the length that the workload says.
	KeepEOS bool
	// Transport carries the requests; nil = one made for many streams.
	Transport http.RoundTripper
	// Progress, when set, is called every ProgressEvery while the load runs.
	Progress func(Progress)
}

// ProgressEvery is the time between two calls of Config.Progress.
const ProgressEvery = 500 * time.Millisecond

// Progress is a running load at one instant.
type Progress struct {
	Elapsed  time.Duration
	InFlight int
	OK       int
	// Failed counts the rejected ones too.
	Failed int
	// TokensPerSecond is over the time since the last call.
	TokensPerSecond float64
}

// NewTransport makes a transport for many concurrent streams: connections are
// kept, bodies are not decompressed, and large prompts leave in few writes.
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

// FirstModel asks a target which models it serves and gives the first one.
func FirstModel(ctx context.Context, c Config, target Target) (string, error) {
	url := target.URL + "/v1/models"
	fail := func(err error) (string, error) { return "", fmt.Errorf("asking %s for its models: %w", url, err) }
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
		return fail(err)
	}
	if resp.StatusCode != http.StatusOK {
		return fail(fmt.Errorf("status %d: %s", resp.StatusCode, errorMessage(body)))
	}
	var list struct {
		Data []struct {
			ID string `json:"id"`
		} `json:"data"`
	}
	if err := json.Unmarshal(body, &list); err != nil {
		return fail(err)
	}
	if len(list.Data) == 0 || list.Data[0].ID == "" {
		return fail(fmt.Errorf("it lists none"))
	}
	return list.Data[0].ID, nil
}

func (c *Config) authorize(req *http.Request) {
	if c.APIKey != "" {
		req.Header.Set("Authorization", "Bearer "+c.APIKey)
	}
}

// transport is the configured transport, or a new one; done frees the new one.
func (c *Config) transport() (t http.RoundTripper, done func()) {
	if c.Transport != nil {
		return c.Transport, func() {}
	}
	own := NewTransport()
	return own, own.CloseIdleConnections
}
