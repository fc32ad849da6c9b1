package telemetry

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"time"
)

// Backup copies a backup of the service's store to w. After an error what was copied is incomplete.
func (c *Client) Backup(ctx context.Context, w io.Writer) error {
	res, err := c.stream(ctx, http.MethodGet, "/v1/store/backup", http.NoBody, clientTimeout)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if _, err := io.Copy(w, res.Body); err != nil {
		if errors.Is(err, io.ErrUnexpectedEOF) { // the only sign by which a balancer can report a failure in between
			err = fmt.Errorf("the balancer ended it early (%w); 'skyserve logs' shows the reason", err)
		}
		return fmt.Errorf("reading the backup from %s: %w", redact(c.base), err)
	}
	return nil
}

// Restore replaces the data of the service's store with a backup and returns its description. It fails with ErrConflict
// if the store has data of before the backup, unless force is set, and with status 423 while another restore runs. The
// response comes after the last write, so that only ctx limits how long it takes.
func (c *Client) Restore(ctx context.Context, backup io.Reader, force bool) (b Backup, err error) {
	path := "/v1/store/restore?" + url.Values{"force": {strconv.FormatBool(force)}}.Encode()
	res, err := c.stream(ctx, http.MethodPost, path, backup, 0)
	if err != nil {
		return b, err
	}
	defer res.Body.Close()
	if err := json.NewDecoder(io.LimitReader(res.Body, maxResponseBytes)).Decode(&b); err != nil {
		return b, fmt.Errorf("decoding the response of POST %s: %w", redact(c.base+path), err)
	}
	return b, nil
}

// stream sends one request whose bodies may take longer than clientTimeout. headers limits the time until the headers
// of the response, 0 not at all. The caller closes the response's body; any status but 2xx is a *StatusError.
func (c *Client) stream(ctx context.Context, method, path string, body io.Reader, headers time.Duration) (*http.Response, error) {
	target := c.base + path
	ctx, cancel := context.WithCancelCause(ctx)
	if headers > 0 {
		timer := time.AfterFunc(headers, func() { cancel(fmt.Errorf("no response within %v", headers)) })
		defer timer.Stop()
	}
	req, err := http.NewRequestWithContext(ctx, method, target, body)
	if err != nil {
		cancel(nil)
		return nil, fmt.Errorf("creating request %s %s: %w", method, redact(target), withoutURL(err))
	}
	hc := *c.hc
	hc.Timeout = 0
	res, err := hc.Do(req)
	if err != nil {
		if cause := context.Cause(ctx); cause != nil {
			err = cause
		}
		cancel(nil)
		return nil, fmt.Errorf("%s %s: %w", method, redact(target), withoutURL(err))
	}
	res.Body = cancelingBody{res.Body, cancel}
	if res.StatusCode/100 != 2 {
		defer res.Body.Close()
		return nil, statusError(method, redact(target), res)
	}
	return res, nil
}

// cancelingBody ends the context of its request when it is closed.
type cancelingBody struct {
	io.ReadCloser
	cancel context.CancelCauseFunc
}

func (b cancelingBody) Close() error {
	defer b.cancel(nil)
	return b.ReadCloser.Close()
}
