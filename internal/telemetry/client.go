package telemetry

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"skyserve/internal/printable"
	"skyserve/internal/service"
)

// Limits of the client.
const (
	clientTimeout    = 10 * time.Second // a whole exchange, unless the caller's context ends earlier
	dialTimeout      = 3 * time.Second  // enough for a host half a world away
	idleTimeout      = 30 * time.Second // keeps the connection between two polls
	maxResponseBytes = 64 << 20         // of a response other than a history
	maxErrorBytes    = 64 << 10         // of an error response: all problems of a rejected configuration
)

// Errors for callers to test with errors.Is.
var (
	// ErrNotFound is a response of 404: no such replica, request or document.
	ErrNotFound = errors.New("not found")
	// ErrConflict is a response of 409, such as for an older assignment than the balancer's.
	ErrConflict = errors.New("conflict")
	// ErrNoStore is a response with CodeNoStore: the request needs a store, and this balancer has none.
	ErrNoStore = errors.New("no store")
)

// CodeNoStore is the code of the admin API's error for a balancer that has no store.
const CodeNoStore = "no_store"

// StatusError is a response whose status is not 2xx.
type StatusError struct {
	Method  string
	URL     string // without a password
	Status  int    // HTTP status
	Message string // from the server, or the text of the status
	Code    string // of the kind of error, such as CodeNoStore; usually empty
}

// Error returns the request, the status and the server's message.
func (e *StatusError) Error() string {
	return fmt.Sprintf("%s %s returned %d: %s", e.Method, e.URL, e.Status, e.Message)
}

// Is makes 404 an ErrNotFound, 409 an ErrConflict and CodeNoStore an ErrNoStore.
func (e *StatusError) Is(target error) bool {
	return target == ErrNotFound && e.Status == http.StatusNotFound ||
		target == ErrNoStore && e.Code == CodeNoStore ||
		target == ErrConflict && e.Status == http.StatusConflict
}

// Worker is a replica as listed by the admin API.
type Worker struct {
	service.ReplicaConfig
	State  service.ReplicaState `json:"state"`
	Reason string               `json:"reason"`
	// Outstanding is the number of requests sent to it and not yet finished.
	Outstanding int `json:"outstanding"`
	// DrainedBy is the program that drains it; empty if it is not draining, or if a person
	// drains it.
	DrainedBy string `json:"drained_by,omitempty"`
	// Origin is why it is attached: config (the balancer's configuration), api (POST /add_worker, POST
	// /workers), controller, or the source that lists it: "file PATH", "dns URL" or "file PATH: dns URL".
	Origin string `json:"origin,omitempty"`
}

// Values of Worker.Origin.
const (
	OriginConfig = "config" // in the balancer's configuration
	OriginAPI    = "api"    // attached by POST /add_worker or POST /workers without an epoch
)

// The values of Worker.DrainedBy.
const (
	DrainedByUp         = "up"         // before its engine restarts or its VM is deleted
	DrainedByController = "controller" // because it is no longer needed
)

// Client is a client of the admin API of one balancer. It is safe for concurrent use.
type Client struct {
	base string
	hc   *http.Client
}

// NewClient returns a client of the admin API at base, for example
// http://127.0.0.1:8101; the default scheme is http. A nil hc means a client with the timeouts
// above. For a certificate or token, pass the client of SecureClient or HTTPClient.
func NewClient(base string, hc *http.Client) *Client {
	if !strings.Contains(base, "://") {
		base = "http://" + base
	}
	if hc == nil {
		hc = newHTTPClient(nil)
	}
	return &Client{base: strings.TrimRight(base, "/"), hc: hc}
}

// newHTTPClient returns the default client. It follows no redirects: an admin API has none,
// and a POST must not reach another server. A nil config means Go's defaults.
func newHTTPClient(config *tls.Config) *http.Client {
	return &http.Client{
		Timeout: clientTimeout,
		Transport: &http.Transport{
			Proxy:               http.ProxyFromEnvironment,
			DialContext:         (&net.Dialer{Timeout: dialTimeout}).DialContext,
			TLSHandshakeTimeout: dialTimeout,
			TLSClientConfig:     config,
			IdleConnTimeout:     idleTimeout,
			MaxIdleConnsPerHost: 2,
			ForceAttemptHTTP2:   true,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// HTTPClient returns a client that sends a token, for NewClient; an empty token is not
// sent.
func HTTPClient(token string) *http.Client {
	hc := newHTTPClient(nil)
	hc.Transport = Bearer(token, hc.Transport)
	return hc
}

// SecureClient returns a client for admin APIs that authenticate callers by certificate.
func SecureClient(config *tls.Config) *http.Client { return newHTTPClient(config) }

// Bearer returns a transport that adds a bearer token and sends requests through next; next
// itself if the token is empty.
func Bearer(token string, next http.RoundTripper) http.RoundTripper {
	if token == "" {
		return next
	}
	return bearer{token, next}
}

// bearer sends a token with every request.
type bearer struct {
	token string
	next  http.RoundTripper
}

// RoundTrip sends a copy of the request, because a RoundTripper must not modify its request.
func (b bearer) RoundTrip(req *http.Request) (*http.Response, error) {
	req = req.Clone(req.Context())
	req.Header.Set("Authorization", "Bearer "+b.token)
	return b.next.RoundTrip(req)
}

// CloseIdleConnections closes the idle connections of the wrapped transport.
func (b bearer) CloseIdleConnections() {
	if c, ok := b.next.(interface{ CloseIdleConnections() }); ok {
		c.CloseIdleConnections()
	}
}

// Base returns the URL of the admin API, without a password.
func (c *Client) Base() string { return redact(c.base) }

// Snapshot returns the current state of the service, as the balancer has it.
func (c *Client) Snapshot(ctx context.Context) (*Snapshot, error) {
	s := new(Snapshot)
	if err := c.getJSON(ctx, "/v1/snapshot", s); err != nil {
		return nil, err
	}
	return s, nil
}

// ReplicasOwn is the value of the parameter replicas of GET /v1/snapshot for OwnSnapshot.
const ReplicasOwn = "own"

// OwnSnapshot is Snapshot without the replicas of other balancers that the balancer reaches. A balancer of an older version
// returns all.
func (c *Client) OwnSnapshot(ctx context.Context) (*Snapshot, error) {
	s := new(Snapshot)
	if err := c.getJSON(ctx, "/v1/snapshot?replicas="+ReplicasOwn, s); err != nil {
		return nil, err
	}
	return s, nil
}

// Service returns the text of the balancer's current service.yaml; ErrNotFound if it was
// started without one.
func (c *Client) Service(ctx context.Context) ([]byte, error) {
	_, body, err := c.do(ctx, http.MethodGet, "/v1/service", nil)
	return body, err
}

// Workers lists the replicas attached to the balancer.
func (c *Client) Workers(ctx context.Context) ([]Worker, error) {
	var response struct {
		Workers []Worker `json:"workers"`
	}
	err := c.getJSON(ctx, "/workers", &response)
	return response.Workers, err
}

// AddWorker attaches a replica. added is false if it was already attached; ErrConflict if
// the balancer has a newer epoch of it.
func (c *Client) AddWorker(ctx context.Context, r service.ReplicaConfig) (added bool, err error) {
	body, err := json.Marshal(r)
	if err != nil {
		return false, fmt.Errorf("encoding replica %s: %w", r.ID, err)
	}
	status, _, err := c.do(ctx, http.MethodPost, "/workers", body)
	return status == http.StatusCreated, err
}

// DrainWorker drains a replica: it finishes its requests and receives no new ones. by
// becomes Worker.DrainedBy, unless it names a program and the replica is already draining. ErrNotFound if
// the replica is not attached to the balancer, or its model is unknown.
func (c *Client) DrainWorker(ctx context.Context, id, by string) error {
	_, _, err := c.do(ctx, http.MethodPost, "/workers/"+url.PathEscape(id)+"/drain?by="+url.QueryEscape(by), nil)
	return err
}

// RemoveWorker detaches a replica. With an epoch other than 0 it fails with ErrConflict if
// the balancer has a newer assignment; ErrNotFound if it has no such replica.
func (c *Client) RemoveWorker(ctx context.Context, id string, epoch uint64) error {
	path := "/workers/" + url.PathEscape(id)
	if epoch != 0 {
		path += "?epoch=" + strconv.FormatUint(epoch, 10)
	}
	_, _, err := c.do(ctx, http.MethodDelete, path, nil)
	return err
}

// Healthy returns nil if the balancer's health check passes.
func (c *Client) Healthy(ctx context.Context) error {
	_, _, err := c.do(ctx, http.MethodGet, "/healthz", nil)
	return err
}

// Decision returns the routing decisions of a request; ErrNotFound if the balancer does not
// have it in memory.
func (c *Client) Decision(ctx context.Context, requestID string) (json.RawMessage, error) {
	var response json.RawMessage
	err := c.getJSON(ctx, "/v1/decisions/"+url.PathEscape(requestID), &response)
	return response, err
}

// Decisions describes the decisions that the balancer has in memory.
func (c *Client) Decisions(ctx context.Context) (DecisionMemory, error) {
	var response DecisionMemory
	err := c.getJSON(ctx, "/v1/decisions", &response)
	return response, err
}

// Requests lists the newest requests that the balancer has in memory, newest first. limit is the
// maximum number, 1 to MaxRequests.
func (c *Client) Requests(ctx context.Context, limit int) ([]RequestSummary, error) {
	var response struct {
		Requests []RequestSummary `json:"requests"`
	}
	err := c.getJSON(ctx, "/v1/requests?limit="+strconv.Itoa(limit), &response)
	return response.Requests, err
}

// getJSON fetches path and decodes its JSON document into v.
func (c *Client) getJSON(ctx context.Context, path string, v any) error {
	_, body, err := c.do(ctx, http.MethodGet, path, nil)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(body, v); err != nil {
		return fmt.Errorf("decoding the response of GET %s: %w", redact(c.base+path), err)
	}
	return nil
}

// do sends one request and returns the status and the whole body; any status but 2xx is a
// *StatusError.
func (c *Client) do(ctx context.Context, method, path string, body []byte) (int, []byte, error) {
	target := c.base + path
	req, err := http.NewRequestWithContext(ctx, method, target, bytes.NewReader(body))
	if err != nil {
		return 0, nil, fmt.Errorf("creating request %s %s: %w", method, redact(target), withoutURL(err))
	}
	req.Header.Set("Accept", "application/json, */*")
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	res, err := c.hc.Do(req)
	if err != nil {
		return 0, nil, fmt.Errorf("%s %s: %w", method, redact(target), withoutURL(err))
	}
	defer res.Body.Close()
	if res.StatusCode/100 != 2 {
		return res.StatusCode, nil, statusError(method, redact(target), res)
	}
	data, err := io.ReadAll(io.LimitReader(res.Body, maxResponseBytes+1))
	if err != nil {
		return res.StatusCode, nil, fmt.Errorf("reading the response of %s %s: %w", method, redact(target), err)
	}
	if len(data) > maxResponseBytes {
		return res.StatusCode, nil, fmt.Errorf("reading the response of %s %s: longer than the maximum of %d MiB", method, redact(target), maxResponseBytes>>20)
	}
	return res.StatusCode, data, nil
}

// statusError returns the error of an unsuccessful response.
func statusError(method, target string, res *http.Response) error {
	data, err := io.ReadAll(io.LimitReader(res.Body, maxErrorBytes))
	message, code := errorMessage(data)
	message = printable.Line(message) // the server may not be an admin API
	if err != nil || message == "" {
		message = http.StatusText(res.StatusCode)
	}
	return &StatusError{Method: method, URL: target, Status: res.StatusCode, Message: message, Code: code}
}

// errorMessage returns message and code of {"error":{"message":...,"code":...}}, or the first line of any
// other text.
func errorMessage(data []byte) (message, code string) {
	var response struct {
		Error struct {
			Message string `json:"message"`
			Code    any    `json:"code"` // other servers send numbers
		} `json:"error"`
	}
	if json.Unmarshal(data, &response) == nil && response.Error.Message != "" {
		code, _ = response.Error.Code.(string)
		return response.Error.Message, code
	}
	line, _, _ := strings.Cut(strings.TrimSpace(string(data)), "\n")
	return strings.TrimSpace(line), ""
}

// withoutURL removes the URL that net/http and net/url put before the cause: do adds it without the
// password. The cause of an invalid URL may contain the password too, so it is replaced. The alert of a
// server that rejects a certificate says too little.
func withoutURL(err error) error {
	var ue *url.Error
	switch {
	case !errors.As(err, &ue):
		return err
	case ue.Op == "parse" && strings.Contains(ue.URL, "@"):
		return errors.New("invalid URL")
	}
	var remote *net.OpError
	if errors.As(ue.Err, &remote) && remote.Op == "remote error" && remote.Err.Error() == "tls: bad certificate" {
		return fmt.Errorf("the balancer rejects the certificate of this machine (%w): it may have been revoked; 'skyserve connect' with another invitation replaces it", remote.Err)
	}
	return ue.Err
}

// redact hides the password in a URL.
func redact(target string) string {
	u, err := url.Parse(target)
	if err != nil {
		return strings.ToValidUTF8(HideCredentials(target), "?")
	}
	return u.Redacted()
}

// HideCredentials hides everything before an @ in one or several comma-separated URLs, even
// if they are invalid. It is for URLs without a path.
func HideCredentials(urls string) string {
	parts := strings.Split(urls, "://")
	for i, part := range parts {
		if at := strings.LastIndexByte(part, '@'); at >= 0 {
			parts[i] = "***" + part[at:]
		}
	}
	return strings.Join(parts, "://")
}
