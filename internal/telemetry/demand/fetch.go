package demand

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"skyserve/internal/telemetry"
)

// Limits of fetching, each with its reason.
const (
	dialTimeout = 5 * time.Second // enough for a host half a world away
	// headerTimeout is the timeout of the response headers: the default query timeout of
	// Prometheus.
	headerTimeout = 2 * time.Minute
	// maxResponse is the maximum unpacked size of a response: two weeks of minutes of five
	// hundred series.
	maxResponse = 512 << 20
	// maxErrorResponse is how much of an error response is read.
	maxErrorResponse = 4 << 10
)

// newHTTPClient returns a client without a timeout on the whole exchange: the caller's
// context limits the duration, which is long for a long history.
func newHTTPClient() *http.Client {
	return &http.Client{Transport: &http.Transport{
		Proxy:                 http.ProxyFromEnvironment,
		DialContext:           (&net.Dialer{Timeout: dialTimeout}).DialContext,
		TLSHandshakeTimeout:   dialTimeout,
		ResponseHeaderTimeout: headerTimeout,
	}}
}

// Redact returns a source for messages: a URL without its user, password and parameters, which may be
// secrets.
func Redact(source string) string {
	if !IsURL(source) {
		return source
	}
	u, err := url.Parse(source)
	if err != nil {
		scheme, _, _ := strings.Cut(source, "://")
		return scheme + "://..."
	}
	return (&url.URL{Scheme: u.Scheme, Host: u.Host, Path: u.Path}).String()
}

// fetch reads the history at a URL.
func fetch(ctx context.Context, source string, o Options) (*found, error) {
	if o.HTTP == nil {
		o.HTTP = newHTTPClient()
		defer o.HTTP.CloseIdleConnections()
	}
	rest, isPrometheus := strings.CutPrefix(source, "prometheus+")
	u, err := url.Parse(rest)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return nil, fmt.Errorf("fetching history: the source must be an http, https, prometheus+http or prometheus+https URL, got %q", Redact(source))
	}
	switch {
	case isPrometheus || o.PromQL != "":
		return queryPrometheus(ctx, u, o)
	case strings.Trim(u.Path, "/") == "" && u.RawQuery == "":
		return queryBalancer(ctx, rest, o)
	}
	return fetchFile(ctx, u, o)
}

// queryBalancer fetches the history from an admin API.
func queryBalancer(ctx context.Context, target string, o Options) (*found, error) {
	since := int64(0)
	if !o.Since.IsZero() {
		since = o.Since.Unix() / 60
	}
	points, complete, err := telemetry.NewClient(target, nil).History(ctx, since)
	if err != nil {
		return nil, err
	}
	f := &found{points: points}
	if !complete {
		f.notes = append(f.notes, "the balancer's store does not respond, or it has none ('skyserve lb' without --store): the history contains only the minutes that this balancer has in memory")
	}
	return f, nil
}

// fetchFile reads the file at a URL.
func fetchFile(ctx context.Context, u *url.URL, o Options) (*found, error) {
	name := Redact(u.String())
	body, err := get(ctx, o.HTTP, u, nil)
	if err != nil {
		return nil, fmt.Errorf("fetching history %s: %w", name, err)
	}
	defer body.Close()
	return read(name, io.LimitReader(body, maxResponse))
}

// statusError is a response whose status is not 200.
type statusError struct {
	status int
	body   []byte // the first maxErrorResponse bytes
}

// Error returns the status and the first line of the response.
func (r *statusError) Error() string {
	line, _, _ := strings.Cut(strings.TrimSpace(string(r.body)), "\n")
	if line == "" {
		line = http.StatusText(r.status)
	}
	return fmt.Sprintf("the server returned %d: %s", r.status, line)
}

// get opens the response body of a URL. Its errors do not contain the URL.
func get(ctx context.Context, hc *http.Client, u *url.URL, header http.Header) (io.ReadCloser, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return nil, withoutURL(err)
	}
	for name, values := range header {
		req.Header[name] = values
	}
	res, err := hc.Do(req)
	if err != nil {
		return nil, withoutURL(err)
	}
	if res.StatusCode == http.StatusOK {
		return res.Body, nil
	}
	defer res.Body.Close()
	r := &statusError{status: res.StatusCode}
	r.body, _ = io.ReadAll(io.LimitReader(res.Body, maxErrorResponse)) // a partial body is enough for a message
	return nil, r
}

// withoutURL removes the URL that net/http and net/url put before the cause.
func withoutURL(err error) error {
	var ue *url.Error
	if errors.As(err, &ue) {
		return ue.Err
	}
	return err
}
