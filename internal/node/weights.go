package node

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// Weights are files of a model in a bucket that an engine reads instead of the hub's.
type Weights struct {
	// From is s3://bucket/prefix: everything below the prefix is fetched, with the
	// identity of the machine.
	From string `json:"from"`
	// To is the directory of the container where they are, for reading only.
	To string `json:"to"`
}

const (
	// chunk is what one request fetches, and fetchers how many run at once: together a
	// few hundred MiB a second, and a broken one costs little.
	chunk    = 32 << 20
	fetchers = 16
	// fetchTries bounds how often one chunk is asked for.
	fetchTries   = 5
	fetchTimeout = 2 * time.Minute // of a chunk: slower than 0.3 MB/s is broken
	fetchPause   = time.Second
	// keysLeft is how long before their end credentials are asked for anew.
	keysLeft = 5 * time.Minute
)

// bucket fetches from a bucket of S3 as the machine.
type bucket struct {
	metadata string // base URL of the machine's metadata; empty = AWS's
	endpoint string // base URL of S3; empty = that of the bucket's region
	client   *http.Client
	now      func() time.Time
	pause    time.Duration

	mu     sync.Mutex
	region string
	keys   awsKeys
}

// newBucket fetches from S3 itself.
func newBucket() *bucket {
	carrier := &http.Transport{MaxIdleConnsPerHost: fetchers, ResponseHeaderTimeout: 30 * time.Second, Proxy: http.ProxyFromEnvironment}
	return &bucket{client: &http.Client{Transport: carrier}, now: time.Now, pause: fetchPause}
}

// stored is an object of a bucket.
type stored struct {
	Key          string
	Size         int64
	LastModified time.Time
}

// fetchWeights brings everything below a prefix into a directory, and tells how far it is.
// What is there already is not fetched again. Errors name the object.
func (b *bucket) fetchWeights(ctx context.Context, from, dir string, note func(string)) error {
	name, prefix, _ := strings.Cut(strings.TrimPrefix(from, "s3://"), "/")
	prefix = strings.TrimRight(prefix, "/") + "/"
	objects, err := b.list(ctx, name, prefix)
	if err != nil {
		return fmt.Errorf("listing %s: %w", from, err)
	}
	if len(objects) == 0 {
		return fmt.Errorf("listing %s: nothing is below it", from)
	}
	p := &progress{note: note}
	for _, o := range objects {
		p.total += o.Size
	}
	p.add(0)
	for _, o := range objects {
		path := strings.TrimPrefix(o.Key, prefix)
		if strings.HasSuffix(path, "/") || path == "" {
			continue // what consoles make for a folder
		}
		if !filepath.IsLocal(path) {
			return fmt.Errorf("fetching s3://%s/%s: its name leads out of the directory", name, o.Key)
		}
		if err := b.fetch(ctx, name, o, filepath.Join(dir, path), p); err != nil {
			return fmt.Errorf("fetching s3://%s/%s: %w", name, o.Key, err)
		}
	}
	return nil
}

// progress adds up what was fetched.
type progress struct {
	note  func(string)
	total int64
	done  atomic.Int64
}

func (p *progress) add(n int64) {
	const gb = 1e9
	p.note(fmt.Sprintf("%.1f of %.1f GB", float64(p.done.Add(n))/gb, float64(p.total)/gb))
}

// fetch brings one object to a path, in chunks side by side.
func (b *bucket) fetch(ctx context.Context, name string, o stored, path string, p *progress) error {
	if have, err := os.Stat(path); err == nil && have.Size() == o.Size && !have.ModTime().Before(o.LastModified) {
		p.add(o.Size)
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil { // containers read it, whoever they run as
		return err
	}
	f, err := os.OpenFile(path+".part", os.O_CREATE|os.O_RDWR|os.O_TRUNC, 0o644)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var running sync.WaitGroup
	tokens := make(chan struct{}, fetchers)
	for at := int64(0); at < o.Size && ctx.Err() == nil; at += chunk {
		tokens <- struct{}{}
		running.Go(func() {
			defer func() { <-tokens }()
			n := min(chunk, o.Size-at)
			if err := b.part(ctx, name, o.Key, f, at, n); err != nil {
				cancel(err)
				return
			}
			p.add(n)
		})
	}
	running.Wait()
	err = context.Cause(ctx)
	if e := f.Close(); err == nil {
		err = e
	}
	if err == nil {
		err = os.Rename(path+".part", path)
	}
	return err
}

// part writes n bytes of an object, from one on, into a file, and tries again what breaks.
func (b *bucket) part(ctx context.Context, name, key string, f io.WriterAt, at, n int64) error {
	var err error
	for try := range fetchTries {
		if try > 0 {
			select {
			case <-ctx.Done():
				return context.Cause(ctx)
			case <-time.After(b.pause << try):
			}
		}
		var refused *metadataError
		if err = b.partOnce(ctx, name, key, f, at, n); err == nil || errors.As(err, &refused) && refused.status < http.StatusInternalServerError {
			return err
		}
	}
	return err
}

func (b *bucket) partOnce(ctx context.Context, name, key string, f io.WriterAt, at, n int64) error {
	ctx, cancel := context.WithTimeout(ctx, fetchTimeout)
	defer cancel()
	resp, err := b.get(ctx, "/"+name+"/"+key, nil, http.Header{"Range": {fmt.Sprintf("bytes=%d-%d", at, at+n-1)}})
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	got, err := io.Copy(io.NewOffsetWriter(f, at), io.LimitReader(resp.Body, n))
	if err == nil && got != n {
		err = fmt.Errorf("%w: %d of %d bytes from %d on", io.ErrUnexpectedEOF, got, n, at)
	}
	return err
}

// list is everything below a prefix of a bucket.
func (b *bucket) list(ctx context.Context, name, prefix string) ([]stored, error) {
	var all []stored
	query := map[string]string{"list-type": "2", "prefix": prefix}
	for {
		var page struct {
			Contents              []stored
			IsTruncated           bool
			NextContinuationToken string
		}
		resp, err := b.get(ctx, "/"+name, query, http.Header{})
		if err != nil {
			return nil, err
		}
		err = xml.NewDecoder(resp.Body).Decode(&page)
		resp.Body.Close()
		if err != nil {
			return nil, fmt.Errorf("reading the list: %w", err)
		}
		all = append(all, page.Contents...)
		if !page.IsTruncated {
			return all, nil
		}
		query["continuation-token"] = page.NextContinuationToken
	}
}

// get asks S3, and once more where the bucket is in another region than it was looked for.
func (b *bucket) get(ctx context.Context, path string, query map[string]string, header http.Header) (*http.Response, error) {
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
		text, _ := io.ReadAll(io.LimitReader(resp.Body, 4<<10)) // what can be had of it
		resp.Body.Close()
		there := resp.Header.Get("X-Amz-Bucket-Region")
		if b.moved(there) {
			continue
		}
		var said struct{ Code, Message string }
		_ = xml.Unmarshal(text, &said) // the status says enough where it says nothing
		return nil, fmt.Errorf("%w: %s %s", &metadataError{path, resp.StatusCode}, said.Code, said.Message)
	}
	return nil, errors.New("S3 sends it from one region to another")
}

// moved takes up the region that a bucket turned out to be in; false where it is known.
func (b *bucket) moved(region string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if region == "" || region == b.region {
		return false
	}
	b.region = region
	return true
}

// request makes a signed request.
func (b *bucket) request(ctx context.Context, path string, query map[string]string, header http.Header) (*http.Request, error) {
	keys, region, err := b.identity(ctx)
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
	u.RawQuery = strings.ReplaceAll(values.Encode(), "+", "%20") // sorted, as a signature wants it
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return nil, err
	}
	req.Header = header.Clone()
	keys.sign(req, region, b.now())
	return req, nil
}

// identity is the credentials of the machine's role, and the bucket's region, which is the
// machine's as long as nothing else is known.
func (b *bucket) identity(ctx context.Context) (awsKeys, string, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.keys.AccessKeyID != "" && b.keys.Expiration.After(b.now().Add(keysLeft)) {
		return b.keys, b.region, nil
	}
	base := orBase(b.metadata, awsMetadata)
	ask, err := askAWS(ctx, base)
	if err != nil {
		return awsKeys{}, "", fmt.Errorf("asking for the machine's credentials: %w", err)
	}
	const roles = "/latest/meta-data/iam/security-credentials/"
	role, err := ask(ctx, roles)
	var text string
	if err == nil {
		text, err = ask(ctx, roles+strings.TrimSpace(role))
	}
	if err == nil {
		err = json.Unmarshal([]byte(text), &b.keys)
	}
	if err == nil && b.region == "" {
		b.region, err = ask(ctx, "/latest/meta-data/placement/region")
	}
	if err != nil {
		return awsKeys{}, "", fmt.Errorf("asking for the machine's credentials: %w", err)
	}
	return b.keys, b.region, nil
}

// weightsDir is where what is fetched from one place is kept, below the agent's directory.
func weightsDir(dir string, w *Weights) string {
	sum := sha256.Sum256([]byte(w.From))
	return filepath.Join(dir, "weights", hex.EncodeToString(sum[:8]))
}
