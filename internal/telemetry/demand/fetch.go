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

// Bounds of fetching, each with its reason.
const (
	dialTimeout = 5 * time.Second // reaching the host, half a world away included
	// answerTimeout is until an answer begins: as long as Prometheus itself lets a
	// query run by default.
	answerTimeout = 2 * time.Minute
	// maxAnswer bounds an answer, unpacked: two weeks of minutes of five hundred series.
	maxAnswer = 512 << 20
	// maxErrorAnswer is what is read of an answer that is an error.
	maxErrorAnswer = 4 << 10
)

// newHTTPClient is a client without a limit on a whole exchange: a long history
// is long, and the caller's context ends it.
func newHTTPClient() *http.Client {
	return &http.Client{Transport: &http.Transport{
		Proxy:                 http.ProxyFromEnvironment,
		DialContext:           (&net.Dialer{Timeout: dialTimeout}).DialContext,
		TLSHandshakeTimeout:   dialTimeout,
		ResponseHeaderTimeout: answerTimeout,
	}}
}

// Shown is a source as messages name it: of a URL no password, user or
// parameter, any of which may be a secret.
func Shown(source string) string {
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

// fetch reads what a URL answers.
func fetch(ctx context.Context, source string, o Options) (*found, error) {
	if o.HTTP == nil {
		o.HTTP = newHTTPClient()
		defer o.HTTP.CloseIdleConnections()
	}
	rest, isPrometheus := strings.CutPrefix(source, "prometheus+")
	u, err := url.Parse(rest)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return nil, fmt.Errorf("fetching history: want an http, https, prometheus+http or prometheus+https URL, got %q", Shown(source))
	}
	switch {
	case isPrometheus || o.PromQL != "":
		return askPrometheus(ctx, u, o)
	case strings.Trim(u.Path, "/") == "" && u.RawQuery == "":
		return askBalancer(ctx, rest, o)
	}
	return fetchFile(ctx, u, o)
}

// askBalancer asks an admin API.
func askBalancer(ctx context.Context, target string, o Options) (*found, error) {
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
		f.notes = append(f.notes, "the store is out of reach: this is what one balancer remembers")
	}
	return f, nil
}

// fetchFile reads the file at a URL.
func fetchFile(ctx context.Context, u *url.URL, o Options) (*found, error) {
	name := Shown(u.String())
	body, err := get(ctx, o.HTTP, u, nil)
	if err != nil {
		return nil, fmt.Errorf("fetching history %s: %w", name, err)
	}
	defer body.Close()
	return read(name, io.LimitReader(body, maxAnswer))
}

// refusal is an answer that is no success.
type refusal struct {
	status int
	body   []byte // its beginning
}

// Error is the status and the first line of the answer.
func (r *refusal) Error() string {
	line, _, _ := strings.Cut(strings.TrimSpace(string(r.body)), "\n")
	if line == "" {
		line = http.StatusText(r.status)
	}
	return fmt.Sprintf("%d %s", r.status, line)
}

// get opens what a URL answers. Its errors do not hold the URL.
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
	r := &refusal{status: res.StatusCode}
	r.body, _ = io.ReadAll(io.LimitReader(res.Body, maxErrorAnswer)) // what came of it is enough for a message
	return nil, r
}

// withoutURL drops the URL that net/http and net/url write before the cause.
func withoutURL(err error) error {
	var ue *url.Error
	if errors.As(err, &ue) {
		return ue.Err
	}
	return err
}
