package record

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// EnvDir is the environment variable with the directory of recordings. With it, a process records its calls
// to the clouds.
const EnvDir = "SKYSERVE_RECORD"

const (
	// maxBody is the maximum size of a recorded body, in bytes. A page of a price list has about a third.
	maxBody = 16 << 20
	// maxFile is the size of a file at which the recording ends, in bytes: a controller may run for weeks.
	maxFile = 512 << 20
)

// Recorder writes the calls of one process to a file. It is safe for concurrent use.
type Recorder struct {
	redactor *Redactor
	path     string
	now      func() time.Time
	calls    atomic.Int64
	// collector receives the calls; nil = the file.
	collector Collector

	mu      sync.Mutex // guards the fields below
	file    *os.File
	written int64
	failed  error // of the first failed write; nothing is written after it
}

// Open creates a file for a process in a directory. It creates the directory if it does not exist, for its
// owner only, and returns an error for a directory that others may read. Close the recorder at the end.
func Open(dir, command, version string) (*Recorder, error) {
	if err := checkDir(dir); err != nil {
		return nil, err
	}
	var err error
	r := &Recorder{redactor: NewRedactor(os.Environ()), now: time.Now}
	started := r.now().UTC()
	name := fmt.Sprintf("%s-%s-%d-*.jsonl", started.Format("20060102T150405.000"), strings.ReplaceAll(command, " ", "-"), os.Getpid())
	if r.file, err = os.CreateTemp(dir, name); err != nil { // for the owner only
		return nil, fmt.Errorf("creating a recording: %w", err)
	}
	r.path = r.file.Name()
	r.writeLine(Header{Format: Format, Command: command, Version: version, Started: started})
	return r, r.Err()
}

// Path returns the path of the file.
func (r *Recorder) Path() string { return r.path }

// Err returns the error that ended the recording; nil while it continues.
func (r *Recorder) Err() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.failed
}

// Close ends the recording. Calls that have no complete response yet are not recorded.
func (r *Recorder) Close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.failed == nil {
		r.failed = os.ErrClosed
	}
	return r.file.Close()
}

// writeLine appends a line.
func (r *Recorder) writeLine(v any) {
	var line bytes.Buffer
	encoder := json.NewEncoder(&line)
	encoder.SetEscapeHTML(false) // XML stays readable
	err := encoder.Encode(v)
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.failed != nil {
		return
	}
	if err == nil && r.written+int64(line.Len()) > maxFile {
		err = fmt.Errorf("the file has its maximum size of %d MiB", maxFile>>20)
	}
	if err == nil {
		var n int
		n, err = r.file.Write(line.Bytes())
		r.written += int64(n)
	}
	if err != nil {
		r.failed = fmt.Errorf("recording cloud calls in %s: %w", r.path, err)
	}
}

// checkDir creates a directory that only its owner can read, or checks that it is one.
func checkDir(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("creating the directory for recordings: %w", err)
	}
	info, err := os.Stat(dir)
	if err != nil {
		return fmt.Errorf("reading the directory for recordings: %w", err)
	}
	if mode := info.Mode().Perm(); mode&0o077 != 0 {
		return fmt.Errorf("opening the directory for recordings: %s must be private, got mode %04o: run chmod 700, or choose a new directory", dir, mode)
	}
	return nil
}

// process opens the recorder of this process with its first transport; nil where this process does not record.
var process atomic.Pointer[func() (*Recorder, error)]

// opened reports whether process was called.
var opened atomic.Bool

// Start records the calls of this process from now on, if the environment names a directory. A process without
// calls has no file. The error states why the directory cannot be used.
func Start(command, version string) error {
	dir := os.Getenv(EnvDir)
	if dir == "" {
		return nil
	}
	if err := checkDir(dir); err != nil {
		return fmt.Errorf("%s: %w", EnvDir, err)
	}
	open := sync.OnceValues(func() (*Recorder, error) {
		opened.Store(true)
		return Open(dir, command, version)
	})
	process.Store(&open)
	return nil
}

// Transport returns a transport that records the calls in this process's file; next itself if this process
// does not record.
func Transport(next http.RoundTripper) http.RoundTripper {
	open := process.Load()
	if open == nil {
		return next
	}
	r, err := (*open)()
	if err != nil {
		return failingTransport{fmt.Errorf("%s: %w", EnvDir, err)}
	}
	return r.Transport(next)
}

// failingTransport fails all calls: no call is made that should be recorded and is not.
type failingTransport struct{ err error }

// RoundTrip returns the error.
func (f failingTransport) RoundTrip(*http.Request) (*http.Response, error) { return nil, f.err }

// Finish returns the file of this process and the number of its calls, and the error that ended the recording
// early. The path is empty where this process has no recording.
func Finish() (path string, calls int, err error) {
	open := process.Load()
	if open == nil || !opened.Load() {
		return "", 0, nil
	}
	r, _ := (*open)()
	if r == nil {
		return "", 0, nil // each call has failed with the error
	}
	return r.path, int(r.calls.Load()), r.Err()
}

// Transport returns a transport that records each call when its response was read. A failure to record fails
// no call: see Err.
func (r *Recorder) Transport(next http.RoundTripper) http.RoundTripper {
	return &transport{recorder: r, next: next}
}

type transport struct {
	recorder *Recorder
	next     http.RoundTripper
}

// RoundTrip sends a request and copies what is read of both bodies.
func (t *transport) RoundTrip(sent *http.Request) (*http.Response, error) {
	r := t.recorder
	started := r.now()
	x := &exchange{recorder: r, started: started, number: int(r.calls.Add(1)), sent: sent}
	request := sent
	if sent.Body != nil && sent.Body != http.NoBody {
		request = sent.Clone(sent.Context())
		request.Body = &copiedBody{ReadCloser: sent.Body, copy: &x.requestCopy}
		if again := sent.GetBody; again != nil {
			request.GetBody = func() (io.ReadCloser, error) {
				body, err := again()
				if err != nil {
					return nil, err
				}
				x.requestCopy.reset()
				return &copiedBody{ReadCloser: body, copy: &x.requestCopy}, nil
			}
		}
	}
	response, err := t.next.RoundTrip(request)
	if err != nil {
		x.finish(err)
		return response, err
	}
	x.response = response
	x.status, x.headers = response.StatusCode, response.Header.Clone()
	if response.Body == nil {
		x.finish(nil)
		return response, nil
	}
	received := *response
	received.Body = &copiedBody{ReadCloser: response.Body, copy: &x.responseCopy, length: response.ContentLength, ended: x.finish}
	return &received, nil
}

// exchange is a call in flight.
type exchange struct {
	recorder     *Recorder
	started      time.Time
	number       int
	sent         *http.Request
	response     *http.Response // nil without one
	status       int
	headers      http.Header
	requestCopy  bodyCopy
	responseCopy bodyCopy
	once         sync.Once
}

// errUnread is the error of a response that was closed before its end.
var errUnread = errors.New("the response was closed before its end")

// finish records the call.
func (x *exchange) finish(err error) {
	x.once.Do(func() {
		r := x.recorder
		if r.Err() != nil {
			return
		}
		c := Call{Number: x.number, Time: x.started.UTC(), DurationMS: float64(r.now().Sub(x.started).Microseconds()) / 1000}
		d := r.redactor
		c.Request = d.request(x.sent, &x.requestCopy)
		if x.response != nil {
			c.Response = &Response{Status: x.status, Headers: d.joinHeaders(x.headers), Body: d.body(&x.responseCopy, x.headers)}
		}
		if err != nil {
			c.Error = d.Value(err.Error())
		}
		if r.collector != nil {
			r.collector.Add(c)
			return
		}
		r.writeLine(c)
	})
}

// bodyCopy is the copy of a body, up to maxBody bytes. The transport may still read a request's body when the
// response arrives.
type bodyCopy struct {
	mu   sync.Mutex
	text bytes.Buffer
	size int64
}

func (c *bodyCopy) add(p []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.size += int64(len(p))
	if c.size <= maxBody {
		c.text.Write(p)
	}
}

func (c *bodyCopy) reset() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.text.Reset()
	c.size = 0
}

// content returns the copy and the size of the body.
func (c *bodyCopy) content() ([]byte, int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return bytes.Clone(c.text.Bytes()), c.size
}

// copiedBody is a body that is copied while it is read.
type copiedBody struct {
	io.ReadCloser
	copy   *bodyCopy
	length int64       // -1 where it is unknown
	ended  func(error) // called once or more often at the end; nil for a request
}

// Read reads from the body.
func (b *copiedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.copy.add(p[:n])
	if err != nil && b.ended != nil {
		if errors.Is(err, io.EOF) {
			b.ended(nil)
		} else {
			b.ended(err)
		}
	}
	return n, err
}

// Close closes the body.
func (b *copiedBody) Close() error {
	if b.ended != nil {
		var err error
		if _, size := b.copy.content(); size != b.length { // a reader of a known length may not read until io.EOF
			err = errUnread
		}
		b.ended(err)
	}
	return b.ReadCloser.Close()
}
