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
)

// Weights are files of a model in a bucket that an engine reads instead of the hub's.
type Weights struct {
	// From is s3://bucket/prefix or gs://bucket/prefix: everything below the prefix is
	// fetched, with the identity of the machine.
	From string `json:"from"`
	// To is the directory of the container where they are, for reading only.
	To string `json:"to"`
}

const (
	// chunkSize is what one request fetches, and fetchers how many run at once: together a
	// few hundred MiB a second, and a broken one costs little.
	chunkSize       = 32 << 20
	parallelFetches = 16
	// maxFetchAttempts bounds how often a list, or one chunk, is asked for.
	maxFetchAttempts = 5
	fetchTimeout     = 2 * time.Minute // of a chunk: slower than 0.3 MB/s is broken
	fetchBackoff     = time.Second
	// credentialsMargin is how long before their end credentials are asked for anew.
	credentialsMargin = 5 * time.Minute
)

// bucket is where objects are read as the machine. Both methods may run many times at once.
type bucket interface {
	// revocationList is everything below a prefix.
	list(ctx context.Context, prefix string) ([]object, error)
	// open reads an object, size bytes from one on. The caller closes it.
	open(ctx context.Context, o object, from, size int64) (io.ReadCloser, error)
}

// object is an object of a bucket. Generation is which of its versions, where the cloud
// tells; empty = the one that is there when it is read.
type object struct {
	Key          string
	Size         int64
	LastModified time.Time
	Generation   string
}

// folderPattern is a folder of a bucket: its cloud's scheme, the bucket and a prefix.
var folderPattern = regexp.MustCompile(`^(s3|gs)://([^/]+)/.+$`)

// fetchWeights brings everything below a prefix into a directory, as the machine, and tells
// how far it is. What is there already is not fetched again. Errors name the object.
func fetchWeights(ctx context.Context, from, dir string, report func(string)) error {
	carrier := &http.Transport{MaxIdleConnsPerHost: parallelFetches, ResponseHeaderTimeout: 30 * time.Second, Proxy: http.ProxyFromEnvironment, Protocols: new(http.Protocols)}
	carrier.Protocols.SetHTTP1(true) // a connection for each part: by HTTP/2, which Google has, all would share one
	defer carrier.CloseIdleConnections()
	b, err := newBucket(from, &http.Client{Transport: carrier})
	if err != nil {
		return err
	}
	return fetcher{b, fetchBackoff}.fetchAll(ctx, from, dir, report)
}

// newBucket is the bucket of a folder.
func newBucket(from string, client *http.Client) (bucket, error) {
	switch m := folderPattern.FindStringSubmatch(from); {
	case m == nil:
		return nil, fmt.Errorf("fetching weights: want s3://BUCKET/PREFIX or gs://BUCKET/PREFIX, got %q", from)
	case m[1] == "gs":
		return &gcsBucket{name: m[2], client: client, now: time.Now}, nil
	default:
		return &s3Bucket{name: m[2], client: client, now: time.Now}, nil
	}
}

// fetcher brings objects of a bucket to the disk.
type fetcher struct {
	bucket  bucket
	backoff time.Duration // half of what is waited before a second try; it doubles before each further one
}

// fetchAll brings everything below a folder of the bucket into a directory.
func (f fetcher) fetchAll(ctx context.Context, from, dir string, report func(string)) error {
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
		return fmt.Errorf("listing %s: nothing is below it", from)
	}
	p := &progress{report: report}
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
			return fmt.Errorf("fetching %s%s: its name leads out of the directory", root, o.Key)
		}
		if err := f.fetchObject(ctx, o, filepath.Join(dir, path), p); err != nil {
			return fmt.Errorf("fetching %s%s: %w", root, o.Key, err)
		}
	}
	return nil
}

// progress adds up what was fetched.
type progress struct {
	report func(string)
	total  int64
	done   atomic.Int64
}

func (p *progress) add(n int64) {
	const gb = 1e9
	p.report(fmt.Sprintf("%.1f of %.1f GB", float64(p.done.Add(n))/gb, float64(p.total)/gb))
}

// fetchObject brings one object to a path, in chunks side by side.
func (f fetcher) fetchObject(ctx context.Context, o object, path string, p *progress) error {
	if have, err := os.Stat(path); err == nil && have.Size() == o.Size && !have.ModTime().Before(o.LastModified) {
		p.add(o.Size)
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil { // containers read it, whoever they run as
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

// fetchChunk writes n bytes of an object, from one on, into a file, and tries again what breaks.
func (f fetcher) fetchChunk(ctx context.Context, o object, file io.WriterAt, at, n int64) error {
	return f.retry(ctx, func() error {
		ctx, cancel := context.WithTimeout(ctx, fetchTimeout)
		defer cancel()
		body, err := f.bucket.open(ctx, o, at, n)
		if err != nil {
			return err
		}
		defer body.Close()
		got, err := io.Copy(io.NewOffsetWriter(file, at), io.LimitReader(body, n))
		if err == nil && got != n {
			err = fmt.Errorf("%w: %d of %d bytes from %d on", io.ErrUnexpectedEOF, got, n, at)
		}
		return err
	})
}

// errEncoded is about an object whose bytes are others than those that were put there.
var errEncoded = errors.New("want it stored without a Content-Encoding")

// retry does something until it succeeds, is refused for good or was tried often enough.
func (f fetcher) retry(ctx context.Context, do func() error) error {
	var err error
	for try := range maxFetchAttempts {
		if try > 0 {
			select {
			case <-ctx.Done():
				return context.Cause(ctx)
			case <-time.After(f.backoff << try):
			}
		}
		if err = do(); err == nil || isPermanent(err) {
			return err
		}
	}
	return err
}

// isPermanent says whether asking again is of no use. It is of use where the other side is
// broken or wants fewer requests.
func isPermanent(err error) bool {
	var answer *metadataError
	return errors.Is(err, errEncoded) || errors.As(err, &answer) && answer.status < http.StatusInternalServerError &&
		answer.status != http.StatusRequestTimeout && answer.status != http.StatusTooManyRequests
}

// rangeHeader is the header that asks for a part of an object.
func rangeHeader(from, size int64) http.Header {
	return http.Header{"Range": {fmt.Sprintf("bytes=%d-%d", from, from+size-1)}}
}

// weightsDir is where what is fetched from one place is kept, below the agent's directory.
func weightsDir(dir string, w *Weights) string {
	sum := sha256.Sum256([]byte(w.From))
	return filepath.Join(dir, "weights", hex.EncodeToString(sum[:8]))
}

// partialBody is the body of an answer to who asked for a part: one that has the whole instead
// would be written to the wrong place.
func partialBody(resp *http.Response, from, size int64) (io.ReadCloser, error) {
	if resp.StatusCode != http.StatusPartialContent {
		resp.Body.Close()
		return nil, fmt.Errorf("asking for %d bytes from %d on: want the status 206, got %d", size, from, resp.StatusCode)
	}
	return resp.Body, nil
}
