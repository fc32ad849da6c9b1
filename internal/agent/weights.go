package agent

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"skyserve/internal/atomicfile"
	"skyserve/internal/telemetry"
)

// Weights are a model's files in a bucket, which an engine loads instead of those of the Hugging Face
// hub.
type Weights struct {
	// Source is s3://bucket/prefix or gs://bucket/prefix. All objects below the prefix are downloaded
	// with the machine's IAM role or service account.
	Source string `json:"from"`
	// MountPath is the directory of the container at which the files are mounted read-only.
	MountPath string `json:"to"`
}

const (
	// chunkSize is the size of one request, and parallelFetches the number of concurrent requests.
	// Together they reach a few hundred MiB/s, and the retry of a failed request is cheap.
	chunkSize       = 32 << 20
	parallelFetches = 16
	// maxFetchAttempts limits the attempts to list objects, or to download one chunk.
	maxFetchAttempts = 5
	fetchTimeout     = 2 * time.Minute // of a chunk: a connection below 0.3 MB/s is considered broken
	fetchBackoff     = time.Second
	// credentialsMargin is how long before their expiry credentials are renewed.
	credentialsMargin = 5 * time.Minute
)

// bucket is a source of objects: a bucket, which is read with the identity of the machine, or a hubRepo. Both
// methods may be called concurrently.
type bucket interface {
	// list returns all objects below a prefix.
	list(ctx context.Context, prefix string) ([]object, error)
	// open reads size bytes of an object, starting at from. The caller closes the reader.
	open(ctx context.Context, o object, from, size int64) (io.ReadCloser, error)
}

// object is an object in a bucket. Generation identifies its version; empty where the store reports none:
// each request then reads the newest version.
type object struct {
	Key          string
	Size         int64
	LastModified time.Time
	Generation   string
}

// folderPattern matches a folder of a bucket and captures the scheme of its cloud and the bucket.
var folderPattern = regexp.MustCompile(`^(s3|gs)://([^/]+)/.+$`)

// fetchWeights downloads everything below a prefix into a directory, with the identity of the
// machine, and reports progress. It skips files that are already complete. Errors name the
// object.
func fetchWeights(ctx context.Context, from, dir string, report func(telemetry.ByteCount)) error {
	transport := &http.Transport{MaxIdleConnsPerHost: parallelFetches, ResponseHeaderTimeout: 30 * time.Second, Proxy: http.ProxyFromEnvironment, Protocols: new(http.Protocols)}
	transport.Protocols.SetHTTP1(true) // one connection per chunk: with HTTP/2, as at Google, all chunks would share one
	defer transport.CloseIdleConnections()
	b, err := newBucket(from, &http.Client{Transport: transport})
	if err != nil {
		return err
	}
	return fetcher{b, fetchBackoff}.fetchAll(ctx, from, dir, report)
}

// newBucket returns the bucket of a folder.
func newBucket(from string, client *http.Client) (bucket, error) {
	switch m := folderPattern.FindStringSubmatch(from); {
	case m == nil:
		return nil, fmt.Errorf("downloading weights: the source must be s3://BUCKET/PREFIX or gs://BUCKET/PREFIX, got %q", from)
	case m[1] == "gs":
		return &gcsBucket{name: m[2], client: client, now: time.Now}, nil
	default:
		return &s3Bucket{name: m[2], client: client, now: time.Now}, nil
	}
}

// fetcher downloads objects of a bucket to the disk.
type fetcher struct {
	bucket  bucket
	backoff time.Duration // half of the wait before the second attempt; the wait doubles with each further attempt
}

// fetchAll downloads everything below a folder of the bucket into a directory.
func (f fetcher) fetchAll(ctx context.Context, from, dir string, report func(telemetry.ByteCount)) error {
	scheme, rest, _ := strings.Cut(from, "://")
	name, prefix, _ := strings.Cut(rest, "/")
	root, prefix := scheme+"://"+name+"/", strings.TrimRight(prefix, "/")+"/"
	var objects []object
	err := f.retry(ctx, func() (err error) {
		objects, err = f.bucket.list(ctx, prefix)
		return err
	})
	if err != nil {
		return fmt.Errorf("listing %s: %w", from, err)
	}
	if len(objects) == 0 {
		return fmt.Errorf("listing %s: no objects found; correct the folder in service.yaml or upload the files to it", from)
	}
	p := &progress{report: report}
	for _, o := range objects {
		p.total += o.Size
	}
	p.add(0)
	for _, o := range objects {
		path := strings.TrimPrefix(o.Key, prefix)
		if strings.HasSuffix(path, "/") || path == "" {
			continue // consoles create such an object for a folder
		}
		if !filepath.IsLocal(path) {
			return fmt.Errorf("downloading %s%s: the object's name must be a path below the prefix, without '..'", root, o.Key)
		}
		if err := f.fetchObject(ctx, o, filepath.Join(dir, path), p); err != nil {
			return fmt.Errorf("downloading %s%s: %w", root, o.Key, err)
		}
	}
	return nil
}

// progress counts the downloaded bytes.
type progress struct {
	report func(telemetry.ByteCount)
	total  int64
	done   atomic.Int64
}

func (p *progress) add(n int64) {
	p.report(telemetry.ByteCount{Done: p.done.Add(n), Total: p.total})
}

// fetchObject downloads one object to a path, in concurrent chunks.
func (f fetcher) fetchObject(ctx context.Context, o object, path string, p *progress) error {
	if info, err := os.Stat(path); err == nil && info.Size() == o.Size && !info.ModTime().Before(o.LastModified) {
		p.add(o.Size)
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil { // a container may run as any user
		return err
	}
	file, err := os.OpenFile(path+".part", os.O_CREATE|os.O_RDWR|os.O_TRUNC, 0o644)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var running sync.WaitGroup
	tokens := make(chan struct{}, parallelFetches)
	for at := int64(0); at < o.Size && ctx.Err() == nil; at += chunkSize {
		tokens <- struct{}{}
		running.Go(func() {
			defer func() { <-tokens }()
			n := min(chunkSize, o.Size-at)
			if err := f.fetchChunk(ctx, o, file, at, n); err != nil {
				cancel(err)
				return
			}
			p.add(n)
		})
	}
	running.Wait()
	err = context.Cause(ctx)
	if e := file.Close(); err == nil {
		err = e
	}
	if err == nil {
		err = atomicfile.Rename(path+".part", path)
	}
	return err
}

// fetchChunk writes n bytes of an object, starting at at, into a file, with retries.
func (f fetcher) fetchChunk(ctx context.Context, o object, file io.WriterAt, at, n int64) error {
	return f.retry(ctx, func() error {
		ctx, cancel := context.WithTimeout(ctx, fetchTimeout)
		defer cancel()
		body, err := f.bucket.open(ctx, o, at, n)
		if err != nil {
			return err
		}
		defer body.Close()
		received, err := io.Copy(io.NewOffsetWriter(file, at), io.LimitReader(body, n))
		if err == nil && received != n {
			err = fmt.Errorf("%w: received %d of %d bytes at offset %d", io.ErrUnexpectedEOF, received, n, at)
		}
		return err
	})
}

// errEncoded means that an object store may return other bytes than those that were uploaded.
var errEncoded = errors.New("the object must be stored without a Content-Encoding")

// retry calls do until it succeeds, returns a permanent error or has been attempted
// maxFetchAttempts times.
func (f fetcher) retry(ctx context.Context, do func() error) error {
	var err error
	for attempt := range maxFetchAttempts {
		if attempt > 0 {
			select {
			case <-ctx.Done():
				return context.Cause(ctx)
			case <-time.After(f.backoff << attempt):
			}
		}
		if err = do(); err == nil || isPermanent(err) {
			return err
		}
	}
	return err
}

// isPermanent reports whether a retry would fail again: the object is encoded, or the HTTP status is below
// 500, except 408 and 429.
func isPermanent(err error) bool {
	var response *httpStatusError
	return errors.Is(err, errEncoded) || errors.As(err, &response) && response.status < http.StatusInternalServerError &&
		response.status != http.StatusRequestTimeout && response.status != http.StatusTooManyRequests
}

// rangeHeader returns the header that requests a range of an object.
func rangeHeader(from, size int64) http.Header {
	return http.Header{"Range": {fmt.Sprintf("bytes=%d-%d", from, from+size-1)}}
}

// weightsDir returns the directory, below the agent's, of the files downloaded from one folder.
func weightsDir(dir, from string) string {
	sum := sha256.Sum256([]byte(from))
	return filepath.Join(dir, "weights", hex.EncodeToString(sum[:8]))
}

// partialBody returns the body of a response to a range request. It rejects a full response,
// which would be written to the wrong offset.
func partialBody(resp *http.Response, from, size int64) (io.ReadCloser, error) {
	if resp.StatusCode != http.StatusPartialContent {
		resp.Body.Close()
		return nil, fmt.Errorf("requesting %d bytes at offset %d: the HTTP status must be 206, got %d", size, from, resp.StatusCode)
	}
	return resp.Body, nil
}
