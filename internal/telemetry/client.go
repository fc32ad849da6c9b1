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

// Bounds of the client. An admin API is near and its answers are small; a
// client that waits longer or reads more is talking to something else.
const (
	clientTimeout  = 10 * time.Second // a whole exchange, when the caller's context sets no earlier end
	dialTimeout    = 3 * time.Second  // reaching the host, half a world away included
	idleTimeout    = 30 * time.Second // keeps the connection between two polls
	maxAnswerBytes = 64 << 20         // a week of minutes of a large service stays under it
	maxErrorBytes  = 64 << 10         // what is read of an answer that is an error: every problem of a refused configuration
)

// Errors that callers react to; test for them with errors.Is.
var (
	// ErrNotFound is an answer of 404: no such replica, request or document.
	ErrNotFound = errors.New("not found")
	// ErrConflict is an answer of 409: the balancer holds a newer assignment.
	ErrConflict = errors.New("conflict")
)

// StatusError is an answer that is not a success.
type StatusError struct {
	Method  string
	URL     string // without a password
	Status  int    // HTTP status
	Message string // what the server said, or the status in words
}

// Error says the request, the status and the server's own words.
func (e *StatusError) Error() string {
	return fmt.Sprintf("%s %s: %d %s", e.Method, e.URL, e.Status, e.Message)
}

// Is makes 404 an ErrNotFound and 409 an ErrConflict.
func (e *StatusError) Is(target error) bool {
	return target == ErrNotFound && e.Status == http.StatusNotFound ||
		target == ErrConflict && e.Status == http.StatusConflict
}

// Worker is a replica as the admin API lists it.
type Worker struct {
	service.ReplicaConfig
	State  service.ReplicaState `json:"state"`
	Reason string               `json:"reason"`
	// Outstanding is how many requests the balancer sent it that have not ended.
	Outstanding int `json:"outstanding"`
	// DrainedBy is which program of ours had it drained; empty where it is not draining,
	// or a person had it drained.
	DrainedBy string `json:"drained_by,omitempty"`
}

// Who has a replica drained: see Worker.DrainedBy.
const (
	ByUp         = "up"         // before its engine is started again, or its machine goes
	ByController = "controller" // since it is wanted no more
)

// Client speaks to the admin API of one balancer. It is safe for concurrent use.
type Client struct {
	base string
	hc   *http.Client
}

// NewClient returns a client of the admin API at base, for example
// http://127.0.0.1:8101; a base without a scheme is taken as http. A nil hc
// means a client with timeouts that suit an admin API; one that carries an
// operator's certificate or token is the caller's to make.
func NewClient(base string, hc *http.Client) *Client {
	if !strings.Contains(base, "://") {
		base = "http://" + base
	}
	if hc == nil {
		hc = newHTTPClient(nil)
	}
	return &Client{base: strings.TrimRight(base, "/"), hc: hc}
}

// newHTTPClient returns the client used when the caller brings none. It follows
// no redirect: an admin API has none, and a POST must not end elsewhere. A nil config
// means Go's defaults.
func newHTTPClient(config *tls.Config) *http.Client {
	return &http.Client{
		Timeout: clientTimeout,
		Transport: &http.Transport{
			Proxy:                 http.ProxyFromEnvironment,
			DialContext:           (&net.Dialer{Timeout: dialTimeout}).DialContext,
			TLSHandshakeTimeout:   dialTimeout,
			TLSClientConfig:       config,
			ResponseHeaderTimeout: clientTimeout,
			IdleConnTimeout:       idleTimeout,
			MaxIdleConnsPerHost:   2,
			ForceAttemptHTTP2:     true,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// HTTPClient returns a client for admin APIs that ask for a token, to hand to
// NewClient; an empty token is not sent.
func HTTPClient(token string) *http.Client {
	hc := newHTTPClient(nil)
	hc.Transport = Bearer(token, hc.Transport)
	return hc
}

// SecureClient returns a client for admin APIs that know their callers by their
// certificates.
func SecureClient(config *tls.Config) *http.Client { return newHTTPClient(config) }

// Bearer returns a transport that sends requests by way of next, with a token;
// next itself where the token is empty.
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

// RoundTrip sends a copy of the request: one that was handed over must not change.
func (b bearer) RoundTrip(req *http.Request) (*http.Response, error) {
	req = req.Clone(req.Context())
	req.Header.Set("Authorization", "Bearer "+b.token)
	return b.next.RoundTrip(req)
}

// CloseIdleConnections closes those of the transport within.
func (b bearer) CloseIdleConnections() {
	if c, ok := b.next.(interface{ CloseIdleConnections() }); ok {
		c.CloseIdleConnections()
	}
}

// Base is the address that the client speaks to, without a password.
func (c *Client) Base() string { return redact(c.base) }

// Snapshot asks for the service as the balancer knows it now.
func (c *Client) Snapshot(ctx context.Context) (*Snapshot, error) {
	s := new(Snapshot)
	if err := c.getJSON(ctx, "/v1/snapshot", s); err != nil {
		return nil, err
	}
	return s, nil
}

// Service asks for the text of the service.yaml that the balancer belongs to;
// ErrNotFound when it was started without one.
func (c *Client) Service(ctx context.Context) ([]byte, error) {
	_, body, err := c.do(ctx, http.MethodGet, "/v1/service", nil)
	return body, err
}

// History asks for the points of all minutes from sinceMinute on (minutes since
// the Unix epoch). complete is false when the store was out of reach and the
// points are this balancer's own memory only.
func (c *Client) History(ctx context.Context, sinceMinute int64) (points []Point, complete bool, err error) {
	var answer struct {
		Complete bool    `json:"complete"`
		Points   []Point `json:"points"`
	}
	err = c.getJSON(ctx, "/v1/history?since="+strconv.FormatInt(sinceMinute, 10), &answer)
	return answer.Points, answer.Complete && err == nil, err
}

// Workers lists the replicas attached to the balancer.
func (c *Client) Workers(ctx context.Context) ([]Worker, error) {
	var answer struct {
		Workers []Worker `json:"workers"`
	}
	err := c.getJSON(ctx, "/workers", &answer)
	return answer.Workers, err
}

// AddWorker attaches a replica. added is false when it was attached already;
// ErrConflict when the balancer holds a newer epoch of it.
func (c *Client) AddWorker(ctx context.Context, r service.ReplicaConfig) (added bool, err error) {
	body, err := json.Marshal(r)
	if err != nil {
		return false, fmt.Errorf("encoding replica %s: %w", r.ID, err)
	}
	status, _, err := c.do(ctx, http.MethodPost, "/workers", body)
	return status == http.StatusCreated, err
}

// DrainWorker lets the replica id finish what it has and sends it nothing new; by is
// what Worker.DrainedBy tells from then on, unless it drains already. ErrNotFound when the
// balancer holds no such replica, or does not know its model.
func (c *Client) DrainWorker(ctx context.Context, id, by string) error {
	_, _, err := c.do(ctx, http.MethodPost, "/workers/"+url.PathEscape(id)+"/drain?by="+url.QueryEscape(by), nil)
	return err
}

// RemoveWorker detaches the replica id. An epoch other than 0 makes a balancer
// refuse (ErrConflict) when it holds a newer assignment; ErrNotFound when it
// holds no such replica.
func (c *Client) RemoveWorker(ctx context.Context, id string, epoch uint64) error {
	path := "/workers/" + url.PathEscape(id)
	if epoch != 0 {
		path += "?epoch=" + strconv.FormatUint(epoch, 10)
	}
	_, _, err := c.do(ctx, http.MethodDelete, path, nil)
	return err
}

// Healthy is nil when the balancer says that it is well.
func (c *Client) Healthy(ctx context.Context) error {
	_, _, err := c.do(ctx, http.MethodGet, "/healthz", nil)
	return err
}

// Decision asks why the request went where it went; ErrNotFound when the
// balancer never saw it or has forgotten it.
func (c *Client) Decision(ctx context.Context, requestID string) (json.RawMessage, error) {
	var answer json.RawMessage
	err := c.getJSON(ctx, "/v1/decisions/"+url.PathEscape(requestID), &answer)
	return answer, err
}

// Decisions asks how many decisions the balancer remembers.
func (c *Client) Decisions(ctx context.Context) (DecisionMemory, error) {
	var answer DecisionMemory
	err := c.getJSON(ctx, "/v1/decisions", &answer)
	return answer, err
}

// Requests lists the newest requests that the balancer remembers, at most limit (1 to
// MaxRequests), the newest first.
func (c *Client) Requests(ctx context.Context, limit int) ([]RequestSummary, error) {
	var answer struct {
		Requests []RequestSummary `json:"requests"`
	}
	err := c.getJSON(ctx, "/v1/requests?limit="+strconv.Itoa(limit), &answer)
	return answer.Requests, err
}

// getJSON fetches path and decodes its JSON document into v.
func (c *Client) getJSON(ctx context.Context, path string, v any) error {
	_, body, err := c.do(ctx, http.MethodGet, path, nil)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(body, v); err != nil {
		return fmt.Errorf("decoding the answer of GET %s: %w", redact(c.base+path), err)
	}
	return nil
}

// do performs one exchange and returns the status and the whole body of a
// success; anything but 2xx is a *StatusError.
func (c *Client) do(ctx context.Context, method, path string, body []byte) (int, []byte, error) {
	target := c.base + path
	req, err := http.NewRequestWithContext(ctx, method, target, bytes.NewReader(body))
	if err != nil {
		return 0, nil, fmt.Errorf("making %s %s: %w", method, redact(target), withoutURL(err))
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
	data, err := io.ReadAll(io.LimitReader(res.Body, maxAnswerBytes+1))
	if err != nil {
		return res.StatusCode, nil, fmt.Errorf("reading the answer of %s %s: %w", method, redact(target), err)
	}
	if len(data) > maxAnswerBytes {
		return res.StatusCode, nil, fmt.Errorf("reading the answer of %s %s: longer than %d MiB", method, redact(target), maxAnswerBytes>>20)
	}
	return res.StatusCode, data, nil
}

// statusError makes the error of an answer that is no success.
func statusError(method, target string, res *http.Response) error {
	data, err := io.ReadAll(io.LimitReader(res.Body, maxErrorBytes))
	message := printable.Line(errorMessage(data)) // whoever answers may not be what it was taken for
	if err != nil || message == "" {
		message = http.StatusText(res.StatusCode)
	}
	return &StatusError{Method: method, URL: target, Status: res.StatusCode, Message: message}
}

// errorMessage takes the message out of {"error":{"message":...}}, or the first
// line of any other text.
func errorMessage(data []byte) string {
	var answer struct {
		Error struct {
			Message string `json:"message"`
		} `json:"error"`
	}
	if json.Unmarshal(data, &answer) == nil && answer.Error.Message != "" {
		return answer.Error.Message
	}
	line, _, _ := strings.Cut(strings.TrimSpace(string(data)), "\n")
	return strings.TrimSpace(line)
}

// withoutURL drops the request that net/http and net/url write before the
// cause: do names it itself, in the form that holds no password. What is wrong with
// a URL that holds one may be a part of it.
func withoutURL(err error) error {
	var ue *url.Error
	switch {
	case !errors.As(err, &ue):
		return err
	case ue.Op == "parse" && strings.Contains(ue.URL, "@"):
		return errors.New("it cannot be read as a URL")
	}
	return ue.Err
}

// redact hides the password of a URL that holds one.
func redact(target string) string {
	u, err := url.Parse(target)
	if err != nil {
		return strings.ToValidUTF8(HideCredentials(target), "?")
	}
	return u.Redacted()
}

// HideCredentials hides what stands before an @ in a URL, or in several separated by
// commas, whether they can be read as URLs or not. It is for those that have no path.
func HideCredentials(urls string) string {
	parts := strings.Split(urls, "://")
	for i, part := range parts {
		if at := strings.LastIndexByte(part, '@'); at >= 0 {
			parts[i] = "***" + part[at:]
		}
	}
	return strings.Join(parts, "://")
}
