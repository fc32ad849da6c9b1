package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime/multipart"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"skyserve/lbd/batch/job"
)

// maxAPIError is the maximum size of an error response that is read.
const maxAPIError = 64 << 10

// batchClient calls the Files and Batches APIs of a service. Every balancer serves every batch, so it uses the
// first one that can be reached.
type batchClient struct {
	bases []string // URLs of balancers
	key   string   // empty = none
	http  http.Client
}

// apiError is an error response of the API.
type apiError struct {
	status  int
	code    string
	message string
}

// Error returns the message of the API.
func (e *apiError) Error() string { return e.message }

// maxBatchRetries and maxBatchRetryAfter limit repetitions of a request, as OpenAI's clients do.
const (
	maxBatchRetries    = 2
	maxBatchRetryAfter = 10 * time.Second
)

// do sends a request like send, and repeats reads and uploads that a balancer asks to repeat later, as while its store is
// not connected right after the start of a service. Other requests may have been carried out.
func (c *batchClient) do(ctx context.Context, method, path, contentType string, body func() io.Reader) (*http.Response, error) {
	repeatable := method == http.MethodGet || path == "/v1/files"
	for retries := 0; ; retries++ {
		res, err := c.send(ctx, method, path, contentType, body)
		if err == nil || res == nil || res.StatusCode != http.StatusServiceUnavailable || !repeatable || retries == maxBatchRetries {
			return res, err
		}
		seconds, parseErr := strconv.Atoi(res.Header.Get("Retry-After"))
		after := time.Duration(seconds) * time.Second
		if parseErr != nil || after < 0 || after > maxBatchRetryAfter {
			return res, err
		}
		select {
		case <-ctx.Done():
			return res, err
		case <-time.After(after):
		}
	}
}

// send sends a request to the first balancer that can be reached. body returns the body anew for each attempt; nil =
// none. An error response is returned with its error and a closed body.
func (c *batchClient) send(ctx context.Context, method, path, contentType string, body func() io.Reader) (*http.Response, error) {
	var first error
	for _, base := range c.bases {
		var reader io.Reader
		if body != nil {
			reader = body()
		}
		req, err := http.NewRequestWithContext(ctx, method, base+path, reader)
		if err != nil {
			return nil, err
		}
		if contentType != "" {
			req.Header.Set("Content-Type", contentType)
		}
		if c.key != "" {
			req.Header.Set("Authorization", "Bearer "+c.key)
		}
		res, err := c.http.Do(req)
		if err == nil {
			return res, checkResponse(res)
		}
		if first == nil {
			first = err
		}
		var dial *net.OpError
		if !errors.As(err, &dial) || dial.Op != "dial" { // the request may have been received
			return nil, err
		}
	}
	return nil, first
}

// checkResponse returns the error of a response that is one, and closes that.
func checkResponse(res *http.Response) error {
	if res.StatusCode == http.StatusOK {
		return nil
	}
	defer res.Body.Close()
	text, err := io.ReadAll(io.LimitReader(res.Body, maxAPIError))
	if err != nil {
		return err
	}
	var e struct {
		Error struct {
			Message string `json:"message"`
			Code    string `json:"code"`
		} `json:"error"`
	}
	if json.Unmarshal(text, &e) != nil || e.Error.Message == "" {
		e.Error.Message = fmt.Sprintf("%s: %s", res.Status, strings.TrimSpace(string(text)))
	}
	return &apiError{res.StatusCode, e.Error.Code, e.Error.Message}
}

// call sends a JSON request and decodes the response into out.
func (c *batchClient) call(ctx context.Context, method, path string, in, out any) error {
	_, err := c.callHeader(ctx, method, path, in, out)
	return err
}

// callBatch is call for a path whose response is a batch.
func (c *batchClient) callBatch(ctx context.Context, method, path string, in any) (b batchAnswer, err error) {
	header, err := c.callHeader(ctx, method, path, in, &b.Batch)
	if text := header.Get(job.HeaderEstimate); text != "" && err == nil {
		var e job.Estimate
		e, err = job.ParseEstimate(text)
		b.Estimate = newEstimateDocument(&e)
	}
	if text := header.Get(job.HeaderWait); text != "" && err == nil {
		var w job.Wait
		w, err = job.ParseWait(text)
		b.Wait = &w
	}
	return b, err
}

// batchAnswer is a batch with its estimate, nil if the service knows none, and what it waits for, nil for nothing.
type batchAnswer struct {
	job.Batch
	Estimate *estimateDocument `json:"estimate"`
	Wait     *job.Wait         `json:"wait"`
}

// estimateDocument is an estimate as JSON; null is unknown.
type estimateDocument struct {
	Requests     *int     `json:"requests"`
	InputTokens  *int64   `json:"input_tokens"`
	OutputTokens *int64   `json:"output_tokens"`
	CostUSD      *float64 `json:"cost_usd"`
	FinishAt     *int64   `json:"finish_at"` // Unix seconds
	Late         bool     `json:"late"`
}

func newEstimateDocument(e *job.Estimate) *estimateDocument {
	d := &estimateDocument{InputTokens: e.InputTokens, OutputTokens: e.OutputTokens, CostUSD: e.CostUSD, Late: e.Late}
	if e.Requests > 0 {
		d.Requests = &e.Requests
	}
	if e.FinishAt != nil {
		at := e.FinishAt.Unix()
		d.FinishAt = &at
	}
	return d
}

// text describes the estimate; empty if nothing but the number of requests is known.
func (d *estimateDocument) text() string {
	var parts []string
	if d.InputTokens != nil && d.OutputTokens != nil {
		parts = append(parts, fmt.Sprintf("%d input and %d output tokens", *d.InputTokens, *d.OutputTokens))
	}
	if d.CostUSD != nil {
		parts = append(parts, fmt.Sprintf("$%.3f", *d.CostUSD))
	}
	if d.FinishAt != nil {
		text := "ends " + batchTime(*d.FinishAt)
		if d.Late {
			text += " (late)"
		}
		parts = append(parts, text)
	}
	return strings.Join(parts, ", ")
}

// callHeader is call, and returns the header of the response.
func (c *batchClient) callHeader(ctx context.Context, method, path string, in, out any) (http.Header, error) {
	var body func() io.Reader
	contentType := ""
	if in != nil {
		text, err := json.Marshal(in)
		if err != nil {
			return nil, err
		}
		body, contentType = func() io.Reader { return bytes.NewReader(text) }, "application/json"
	}
	res, err := c.do(ctx, method, path, contentType, body)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	if err := json.NewDecoder(res.Body).Decode(out); err != nil {
		return nil, fmt.Errorf("reading the response of %s: %w", path, err)
	}
	return res.Header, nil
}

// upload stores a file for a batch, which is streamed. sent receives the number of bytes as they are read.
func (c *batchClient) upload(ctx context.Context, file string, sent func(int64)) (f job.File, err error) {
	form := multipart.NewWriter(io.Discard)
	boundary := form.Boundary()
	res, err := c.do(ctx, http.MethodPost, "/v1/files", form.FormDataContentType(), func() io.Reader {
		read, write := io.Pipe()
		go func() {
			in, err := os.Open(file)
			if err == nil {
				defer in.Close()
				form := multipart.NewWriter(write)
				if err = form.SetBoundary(boundary); err == nil {
					err = writeUpload(form, filepath.Base(file), &countingReader{r: in, sent: sent})
				}
			}
			write.CloseWithError(err)
		}()
		return read
	})
	if err != nil {
		return f, err
	}
	defer res.Body.Close()
	if err := json.NewDecoder(res.Body).Decode(&f); err != nil {
		return f, fmt.Errorf("reading the response of /v1/files: %w", err)
	}
	return f, nil
}

// writeUpload writes the form of an upload.
func writeUpload(form *multipart.Writer, name string, in io.Reader) error {
	if err := form.WriteField("purpose", job.PurposeBatch); err != nil {
		return err
	}
	part, err := form.CreateFormFile("file", name)
	if err != nil {
		return err
	}
	if _, err := io.Copy(part, in); err != nil {
		return err
	}
	return form.Close()
}

// countingReader reports how much was read, and why reading failed.
type countingReader struct {
	r    io.Reader
	n    int64
	sent func(int64) // nil = nothing
	err  error       // other than io.EOF
}

// Read reads from the reader.
func (c *countingReader) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	c.n += int64(n)
	if c.sent != nil {
		c.sent(c.n)
	}
	if err != nil && !errors.Is(err, io.EOF) {
		c.err = err
	}
	return n, err
}

// batch returns a batch.
func (c *batchClient) batch(ctx context.Context, id string) (batchAnswer, error) {
	return c.callBatch(ctx, http.MethodGet, "/v1/batches/"+url.PathEscape(id), nil)
}

// batches returns the newest batches, at most limit.
func (c *batchClient) batches(ctx context.Context, limit int) (list []job.Batch, err error) {
	after := ""
	for len(list) < limit {
		var page struct {
			Data    []job.Batch `json:"data"`
			HasMore bool        `json:"has_more"`
		}
		if err := c.call(ctx, http.MethodGet, fmt.Sprintf("/v1/batches?limit=%d%s", min(100, limit-len(list)), after), nil, &page); err != nil {
			return nil, err
		}
		list = append(list, page.Data...)
		if !page.HasMore || len(page.Data) == 0 {
			break
		}
		after = "&after=" + url.QueryEscape(list[len(list)-1].ID)
	}
	return list, nil
}

// content writes the content of a file. received returns a function that receives the number of bytes as they are read,
// given their number; below 0 = unknown.
func (c *batchClient) content(ctx context.Context, id string, out io.Writer, received func(total int64) func(int64)) error {
	res, err := c.do(ctx, http.MethodGet, "/v1/files/"+url.PathEscape(id)+"/content", "", nil)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	_, err = io.Copy(out, &countingReader{r: res.Body, sent: received(res.ContentLength)})
	return err
}
