package telemetry

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
)

// Backup copies a backup of the service's store to w. After an error what was copied is incomplete.
func (c *Client) Backup(ctx context.Context, w io.Writer) error {
	res, err := c.stream(ctx, http.MethodGet, "/v1/store/backup", http.NoBody)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if _, err := io.Copy(w, res.Body); err != nil {
		return fmt.Errorf("reading the backup from %s: %w", redact(c.base), err)
	}
	return nil
}

// Restore replaces the data of the service's store with a backup and returns its description. It fails with ErrConflict if the store has data of before the backup, unless force is set, and with status 423 while another restore runs.
func (c *Client) Restore(ctx context.Context, backup io.Reader, force bool) (b Backup, err error) {
	path := "/v1/store/restore?" + url.Values{"force": {strconv.FormatBool(force)}}.Encode()
	res, err := c.stream(ctx, http.MethodPost, path, backup)
	if err != nil {
		return b, err
	}
	defer res.Body.Close()
	if err := json.NewDecoder(io.LimitReader(res.Body, maxResponseBytes)).Decode(&b); err != nil {
		return b, fmt.Errorf("decoding the response of POST %s: %w", redact(c.base+path), err)
	}
	return b, nil
}

// stream sends one request whose bodies may take longer than clientTimeout. The caller closes the response's
// body; any status but 2xx is a *StatusError.
func (c *Client) stream(ctx context.Context, method, path string, body io.Reader) (*http.Response, error) {
	target := c.base + path
	req, err := http.NewRequestWithContext(ctx, method, target, body)
	if err != nil {
		return nil, fmt.Errorf("creating request %s %s: %w", method, redact(target), withoutURL(err))
	}
	hc := *c.hc
	hc.Timeout = 0
	res, err := hc.Do(req)
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w", method, redact(target), withoutURL(err))
	}
	if res.StatusCode/100 != 2 {
		defer res.Body.Close()
		return nil, statusError(method, redact(target), res)
	}
	return res, nil
}
