package telemetry

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
)

// FetchHistory gets the points since a minute from a URL: the base of a
// balancer's admin API (http://127.0.0.1:8101), or any address that answers a
// history in a form that ReadHistory takes. complete is false when a balancer
// answered from its own memory only. A nil hc means one with an admin API's
// timeouts.
func FetchHistory(ctx context.Context, target string, sinceMinute int64, hc *http.Client) (points []Point, complete bool, err error) {
	u, err := url.Parse(target)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return nil, false, fmt.Errorf("fetching history: want an http or https URL, got %q", redact(target))
	}
	if strings.Trim(u.Path, "/") == "" && u.RawQuery == "" {
		return NewClient(target, hc).History(ctx, sinceMinute)
	}
	if hc == nil {
		hc = newHTTPClient()
	}
	ctx, cancel := context.WithTimeout(ctx, clientTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, target, nil)
	if err != nil {
		return nil, false, fmt.Errorf("fetching history %s: %w", redact(target), withoutURL(err))
	}
	res, err := hc.Do(req)
	if err != nil {
		return nil, false, fmt.Errorf("fetching history %s: %w", redact(target), withoutURL(err))
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return nil, false, statusError(http.MethodGet, redact(target), res)
	}
	points, err = ReadHistory(redact(target), io.LimitReader(res.Body, maxHistoryBytes))
	return points, true, err
}
