package agent

import (
	"context"
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"
)

// s3Bucket is a bucket of S3.
type s3Bucket struct {
	name     string
	metadata string // base URL of the metadata server; empty = AWS's
	endpoint string // base URL of S3; empty = that of the bucket's region
	client   *http.Client
	now      func() time.Time

	mu     sync.Mutex
	region string
	keys   awsCredentials
}

func (b *s3Bucket) open(ctx context.Context, o object, from, size int64) (io.ReadCloser, error) {
	resp, err := b.get(ctx, "/"+b.name+"/"+o.Key, nil, rangeHeader(from, size))
	if err != nil {
		return nil, err
	}
	return partialBody(resp, from, size)
}

func (b *s3Bucket) list(ctx context.Context, prefix string) ([]object, error) {
	var all []object
	query := map[string]string{"list-type": "2", "prefix": prefix}
	for {
		var page struct {
			Contents              []object
			IsTruncated           bool
			NextContinuationToken string
		}
		resp, err := b.get(ctx, "/"+b.name, query, http.Header{})
		if err != nil {
			return nil, err
		}
		err = xml.NewDecoder(resp.Body).Decode(&page)
		resp.Body.Close()
		if err != nil {
			return nil, fmt.Errorf("parsing the list of objects: %w", err)
		}
		all = append(all, page.Contents...)
		if !page.IsTruncated {
			return all, nil
		}
		query["continuation-token"] = page.NextContinuationToken
	}
}

// get performs a request to S3. It retries once if S3 reports another region of the bucket.
func (b *s3Bucket) get(ctx context.Context, path string, query map[string]string, header http.Header) (*http.Response, error) {
	for range 2 {
		req, err := b.request(ctx, path, query, header)
		if err != nil {
			return nil, err
		}
		resp, err := b.client.Do(req)
		if err != nil {
			return nil, err
		}
		if resp.StatusCode == http.StatusOK || resp.StatusCode == http.StatusPartialContent {
			return resp, nil
		}
		text, _ := io.ReadAll(io.LimitReader(resp.Body, 4<<10)) // best effort
		resp.Body.Close()
		region := resp.Header.Get("X-Amz-Bucket-Region")
		if b.setRegion(region) {
			continue
		}
		var body struct{ Code, Message string }
		_ = xml.Unmarshal(text, &body) // without a body, the status is enough
		return nil, fmt.Errorf("%w: %s: %s", &httpStatusError{path, resp.StatusCode}, body.Code, body.Message)
	}
	return nil, errors.New("S3 redirected the request twice to another region")
}

// setRegion records the bucket's region that S3 reported, and reports whether it has changed.
func (b *s3Bucket) setRegion(region string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if region == "" || region == b.region {
		return false
	}
	b.region = region
	return true
}

// request returns a signed request.
func (b *s3Bucket) request(ctx context.Context, path string, query map[string]string, header http.Header) (*http.Request, error) {
	keys, region, err := b.credentials(ctx)
	if err != nil {
		return nil, err
	}
	base := b.endpoint
	if base == "" {
		base = "https://s3." + region + ".amazonaws.com"
	}
	u, err := url.Parse(base)
	if err != nil {
		return nil, err
	}
	u.Path, u.RawPath = path, awsEscape(path, true)
	values := url.Values{}
	for key, value := range query {
		values.Set(key, value)
	}
	u.RawQuery = strings.ReplaceAll(values.Encode(), "+", "%20") // sorted, as a signature requires
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return nil, err
	}
	req.Header = header.Clone()
	keys.sign(req, region, b.now())
	return req, nil
}

// credentials returns the credentials of the machine's IAM role, and the bucket's region: that of the
// machine, unless S3 has reported another one.
func (b *s3Bucket) credentials(ctx context.Context) (awsCredentials, string, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.keys.AccessKeyID != "" && b.keys.Expiration.After(b.now().Add(credentialsMargin)) {
		return b.keys, b.region, nil
	}
	base := baseURLOr(b.metadata, awsMetadata)
	read, err := newIMDSSession(ctx, base)
	if err != nil {
		return awsCredentials{}, "", fmt.Errorf("getting the machine's credentials: %w", err)
	}
	const roles = "/latest/meta-data/iam/security-credentials/"
	role, err := read(ctx, roles)
	var text string
	if err == nil {
		text, err = read(ctx, roles+strings.TrimSpace(role))
	}
	if isNotFound(err) {
		err = fmt.Errorf("%w: the machine has no IAM role; run 'skyserve up' to repair it", err)
	}
	if err == nil {
		err = json.Unmarshal([]byte(text), &b.keys)
	}
	if err == nil && b.region == "" {
		b.region, err = read(ctx, "/latest/meta-data/placement/region")
	}
	if err != nil {
		return awsCredentials{}, "", fmt.Errorf("getting the machine's credentials: %w", err)
	}
	return b.keys, b.region, nil
}
