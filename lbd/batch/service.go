package batch

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"skyserve/internal/service"
	"skyserve/internal/store"
	"skyserve/lbd/batch/job"
	"skyserve/lbd/openai"
)

// Paths of the APIs.
const (
	PathFiles   = "/v1/files"
	PathBatches = "/v1/batches"
)

// Caller is the client of a request.
type Caller struct {
	Tenant string
	Key    string // name of its API key or user; empty if clients need none
	IsUser bool   // Key is a user with identity tokens
	// Limits are the limits of the user, as of the token that the user presented; nil for an API key, and if they are
	// unknown.
	Limits *service.KeyLimits
}

// Options configures a Service.
type Options struct {
	// Store contains files and batches.
	Store *store.Store
	// Sender sends the requests of batches.
	Sender Sender
	// Balancer is the id of this balancer.
	Balancer string
	// Limits are those of clients; zero = job.DefaultLimits.
	Limits job.Limits
	// IdleTimeout is the time after which a client that sends or receives nothing is disconnected.
	IdleTimeout time.Duration
	// Price returns the price of a model as requested; false = unknown. nil = all are unknown.
	Price func(model string) (TokenPrice, bool)
	// Logger receives failures; nil = none.
	Logger *slog.Logger

	heartbeat, sweep, lostAfter time.Duration // 0 = heartbeatInterval, sweepInterval, lostAfter
}

// Service is the API and the worker of one balancer. It is safe for concurrent use.
type Service struct {
	opts    Options
	limits  job.Limits
	log     *slog.Logger
	store   *store.Store
	records *store.Bucket // file.TENANT.ID, batch.TENANT.ID, worker.ID
	results *store.Bucket // BATCH.CHUNK.INDEX
	now     func() time.Time
	metrics metrics
	worker  *worker
}

// New returns a service; RunWorker executes batches.
func New(o Options) *Service {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Limits == (job.Limits{}) {
		o.Limits = job.DefaultLimits()
	}
	if o.Price == nil {
		o.Price = func(string) (TokenPrice, bool) { return TokenPrice{}, false }
	}
	o.IdleTimeout = cmp.Or(o.IdleTimeout, time.Minute)
	o.heartbeat = cmp.Or(o.heartbeat, heartbeatInterval)
	o.lostAfter = cmp.Or(o.lostAfter, lostAfter)
	s := &Service{
		opts: o, limits: o.Limits, log: o.Logger, store: o.Store, records: o.Store.BatchRecords(), results: o.Store.BatchResults(),
		now: time.Now, metrics: newMetrics(),
	}
	s.worker = newWorker(s)
	return s
}

// tenantKey is a tenant's part of keys: its name may contain any character.
func tenantKey(tenant string) string {
	sum := sha256.Sum256([]byte(tenant))
	return hex.EncodeToString(sum[:12])
}

func fileKey(tenant, id string) string  { return "file." + tenantKey(tenant) + "." + id }
func batchKey(tenant, id string) string { return "batch." + tenantKey(tenant) + "." + id }

// newID returns an id whose order is that of creation, to the millisecond.
func newID(prefix string, now time.Time) string {
	return fmt.Sprintf("%s%011x%s", prefix, now.UnixMilli(), strings.ToLower(rand.Text()[:12]))
}

// validID reports whether a client's id can be one of newID.
func validID(prefix, id string) bool {
	rest, ok := strings.CutPrefix(id, prefix)
	return ok && len(rest) == 23 && strings.Trim(rest, "abcdefghijklmnopqrstuvwxyz0123456789") == ""
}

// idTime returns the time of creation in a valid id.
func idTime(prefix, id string) time.Time {
	millis, _ := strconv.ParseInt(id[len(prefix):len(prefix)+11], 16, 64) // 0 is an old one
	return time.UnixMilli(millis)
}

// fileRecord is a stored file.
type fileRecord struct {
	File   job.File `json:"file"`
	Tenant string   `json:"tenant"`
	// Lines is the number of lines that are not blank; 0 = unknown.
	Lines int `json:"lines,omitempty"`
}

// expired reports whether the file is to be deleted.
func (f *fileRecord) expired(now time.Time) bool {
	return f.File.ExpiresAt > 0 && now.Unix() >= f.File.ExpiresAt
}

// Serve serves a request to one of the paths.
func (s *Service) Serve(w http.ResponseWriter, req *http.Request, c Caller) {
	var apiErr *openai.Error
	if rest, ok := strings.CutPrefix(req.URL.Path, PathFiles); ok {
		apiErr = s.serveFiles(w, req, c, strings.Trim(rest, "/"))
	} else {
		apiErr = s.serveBatches(w, req, c, strings.Trim(strings.TrimPrefix(req.URL.Path, PathBatches), "/"))
	}
	if apiErr != nil {
		WriteError(w, apiErr)
	}
}

// WriteError writes an error in OpenAI's format.
func WriteError(w http.ResponseWriter, e *openai.Error) {
	if e.RetryAfter > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(e.RetryAfter))
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(e.Status)
	_, _ = w.Write(e.Body()) // an error means that the client disconnected
}

func writeJSON(w http.ResponseWriter, document any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(document) // an error means that the client disconnected
}

func errMethod(w http.ResponseWriter, req *http.Request, methods ...string) *openai.Error {
	allowed := strings.Join(methods, ", ")
	w.Header().Set("Allow", allowed)
	return &openai.Error{
		Status: http.StatusMethodNotAllowed, Kind: openai.TypeInvalid, Code: "method_not_allowed",
		Message: req.Method + " " + req.URL.Path + ": method not allowed, use " + allowed,
	}
}

func errNoPath(req *http.Request) *openai.Error {
	return &openai.Error{
		Status: http.StatusNotFound, Kind: openai.TypeInvalid, Code: "not_found",
		Message: "unknown request URL: " + req.Method + " " + req.URL.Path,
	}
}

func errMissing(kind, id string) *openai.Error {
	return &openai.Error{
		Status: http.StatusNotFound, Kind: openai.TypeInvalid, Param: "id", Code: kind + "_not_found",
		Message: fmt.Sprintf("No such %s: %s", kind, openai.Clip([]byte(id))),
	}
}

// errBody returns the error for a body, of the given kind, that does not arrive in time, which clients retry, or that
// its reader refuses; nil for any other error.
func errBody(err error, kind string) *openai.Error {
	var refused *openai.Error
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return &openai.Error{
			Status: http.StatusRequestTimeout, Kind: openai.TypeInvalid, Code: "request_timeout",
			Message: "reading the " + kind + ": not received in time: send it again, or use a faster connection",
		}
	}
	errors.As(err, &refused)
	return refused
}

// errStore returns the response to a failure of the store.
func (s *Service) errStore(req *http.Request, err error) *openai.Error {
	if req.Context().Err() == nil {
		s.log.Warn("serving files and batches failed", "path", req.URL.Path, "err", err)
	}
	return &openai.Error{
		Status: http.StatusServiceUnavailable, Kind: openai.TypeServer, Code: "store_unavailable", RetryAfter: 5,
		Message: "the store of files and batches does not respond or is full: retry later",
	}
}

func errParam(err error) *openai.Error {
	var p *job.ParamError
	if errors.As(err, &p) {
		return openai.Invalid(p.Param, p.Code, p.Message)
	}
	return openai.Invalid("", "invalid_request", err.Error())
}

// page is a range of a list.
type page struct {
	after     string
	limit     int
	ascending bool
}

// readPage reads the parameters of a list.
func readPage(req *http.Request, prefix string, defaultLimit, maxLimit int) (p page, apiErr *openai.Error) {
	q := req.URL.Query()
	p = page{after: q.Get("after"), limit: defaultLimit}
	if text := q.Get("limit"); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 || n > maxLimit {
			return p, openai.Invalid("limit", "invalid_value", fmt.Sprintf("limit: must be 1 to %d, got %q", maxLimit, job.Truncate(text)))
		}
		p.limit = n
	}
	if p.after != "" && !validID(prefix, p.after) {
		return p, openai.Invalid("after", "invalid_value", fmt.Sprintf("after: must be the id of an object, got %q", job.Truncate(p.after)))
	}
	switch order := q.Get("order"); order {
	case "", "desc":
	case "asc":
		p.ascending = true
	default:
		return p, openai.Invalid("order", "invalid_value", fmt.Sprintf("order: must be asc or desc, got %q", job.Truncate(order)))
	}
	return p, nil
}

// selectAfter orders entries by their ids and removes those up to after.
func (p *page) selectAfter(entries []store.Entry) []store.Entry {
	if !p.ascending {
		slices.Reverse(entries)
	}
	if p.after == "" {
		return entries
	}
	i := slices.IndexFunc(entries, func(e store.Entry) bool {
		id := e.Key[strings.LastIndexByte(e.Key, '.')+1:]
		return p.ascending && id > p.after || !p.ascending && id < p.after
	})
	if i < 0 {
		return nil
	}
	return entries[i:]
}

// list is a page in OpenAI's format.
type list[T any] struct {
	Object  string  `json:"object"`
	Data    []T     `json:"data"`
	FirstID *string `json:"first_id"`
	LastID  *string `json:"last_id"`
	HasMore bool    `json:"has_more"`
}

func newList[T any](data []T, id func(*T) string, more bool) list[T] {
	l := list[T]{Object: "list", Data: data, HasMore: more}
	if len(data) > 0 {
		first, last := id(&data[0]), id(&data[len(data)-1])
		l.FirstID, l.LastID = &first, &last
	} else {
		l.Data = []T{}
	}
	return l
}

// idleTimeoutBody extends the connection's deadlines while the client sends.
type idleTimeoutBody struct {
	io.Reader
	control *http.ResponseController
	timeout time.Duration
}

// Read reads from the client within the timeout.
func (b *idleTimeoutBody) Read(p []byte) (int, error) {
	extendDeadlines(b.control, b.timeout)
	return b.Reader.Read(p)
}

// extendDeadlines sets the deadlines of a connection. A connection without deadlines may block.
func extendDeadlines(c *http.ResponseController, timeout time.Duration) {
	_ = c.SetReadDeadline(time.Now().Add(timeout))
	_ = c.SetWriteDeadline(time.Now().Add(2 * timeout))
}

// idleTimeoutWriter extends the connection's write deadline while the client receives.
type idleTimeoutWriter struct {
	http.ResponseWriter
	control *http.ResponseController
	timeout time.Duration
}

// Write sends to the client within the timeout.
func (w *idleTimeoutWriter) Write(p []byte) (int, error) {
	_ = w.control.SetWriteDeadline(time.Now().Add(w.timeout)) // as in extendDeadlines
	return w.ResponseWriter.Write(p)
}

// getFile returns a tenant's file; store.ErrNotFound if there is none.
func (s *Service) getFile(ctx context.Context, tenant, id string) (f fileRecord, err error) {
	if !validID("file-", id) {
		return f, store.ErrNotFound
	}
	value, _, err := s.records.Get(ctx, fileKey(tenant, id))
	if err != nil {
		return f, err
	}
	if err := json.Unmarshal(value, &f); err != nil {
		return f, fmt.Errorf("reading the record of %s: %w", id, err)
	}
	if f.expired(s.now()) {
		return f, store.ErrNotFound
	}
	return f, nil
}

// encode returns a record as JSON.
func encode(v any) []byte {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	_ = e.Encode(v) // records contain only strings, numbers and lists of them
	return bytes.TrimSuffix(b.Bytes(), []byte("\n"))
}
