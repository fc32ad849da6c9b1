package proxy

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"strings"
	"time"

	"skyserve/internal/service"
	"skyserve/lbd/openai"
	"skyserve/lbd/quota"
)

// Caller is the client of a request for files or batches.
type Caller struct {
	Tenant string
	Key    string // the name of its API key or user; empty if clients need none
	IsUser bool   // Key is a user with identity tokens
	// Limits are the limits of the user, as of the token that the user presented; nil for an API key, and if they are
	// unknown.
	Limits *service.KeyLimits
}

// BatchHandler serves files and batches.
type BatchHandler func(w http.ResponseWriter, req *http.Request, c Caller)

// SetBatches sets the handler of files and batches. Without one they are answered with 503.
func (r *Runtime) SetBatches(h BatchHandler) { r.batches.Store(&h) }

// serveBatches serves a request for files or batches.
func (r *Runtime) serveBatches(w http.ResponseWriter, req *http.Request) {
	account, refused := r.authenticate(req.Context(), req.Header)
	h := r.batches.Load()
	switch {
	case refused != nil:
		r.refuseRequest(w, req, refused)
	case h == nil:
		r.refuseRequest(w, req, &openai.Error{
			Status: http.StatusServiceUnavailable, Kind: openai.TypeServer, Code: "no_store",
			Message: req.URL.Path + ": this balancer has no store, which files and batches need: set store_url in its configuration or --store, or run the service with 'skyserve up'",
		})
	default:
		var c Caller
		if account != nil {
			c.Tenant, _, _ = account.Rights()
			if c.Key, c.IsUser = account.Name(); c.IsUser {
				limits := account.Limits()
				c.Limits = &limits
			}
		}
		release, refused := r.decodeOwnBody(req, c.Tenant)
		if refused != nil {
			r.refuseRequest(w, req, refused)
			return
		}
		defer release()
		w.Header().Set(headerRegion, string(r.self.Region))
		w.Header().Set(headerRequestID, requestID(req.Header.Get(headerRequestID)))
		(*h)(w, req, c)
	}
}

// BatchRequest is a request of a batch. It is served like a client's request of the deferred tier (NIW).
type BatchRequest struct {
	ID     string
	Path   string // of its endpoint
	Body   []byte
	Caller Caller // who pays
	// Age is the time since the batch was created, and Due the time until its deadline.
	Age, Due time.Duration
}

// BatchResponse is the response to a BatchRequest.
type BatchResponse struct {
	Status int
	Header http.Header
	Body   []byte
	// Final means that the request is larger than a limit of its sender: another attempt would have the same response.
	Final bool
	// WaitsFor is the quota or budget of the sender that is used up until WaitsUntil; empty = none.
	WaitsFor   string
	WaitsUntil time.Time
}

// maxBatchResponse is the maximum size of a response: an embedding of 1,000 inputs has 60 MB.
const maxBatchResponse = 64 << 20

// batchSender is the key of a context that contains the sender of a batch's request.
type batchSender struct{}

// ServeBatchRequest serves a request of a batch and returns its response: a 502 if ctx ends before.
func (r *Runtime) ServeBatchRequest(ctx context.Context, b BatchRequest) BatchResponse {
	var denied quota.Denial
	o := &sender{denied: &denied, tenant: b.Caller.Tenant, tier: service.TierDeferred, age: b.Age, due: b.Due, keysRequired: r.RequiresKeys()}
	if b.Caller.Key != "" {
		var refused *openai.Error
		if o.account, refused = r.accountOf(b.Caller, time.Now().Add(-b.Age)); refused != nil {
			return BatchResponse{Status: refused.Status, Body: refused.Body()}
		}
	}
	w := &responseBuffer{header: http.Header{}}
	req, err := http.NewRequestWithContext(context.WithValue(ctx, batchSender{}, o), http.MethodPost, b.Path, bytes.NewReader(b.Body))
	if err != nil {
		return BatchResponse{Status: http.StatusBadRequest, Body: openai.Invalid("url", "invalid_url", err.Error()).Body()}
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set(headerRequestID, b.ID)
	req.Header.Set(headerSession, b.ID) // requests of a batch are not turns of one conversation
	func() {
		defer func() {
			if cause := recover(); cause != nil && cause != http.ErrAbortHandler { //nolint:errorlint // a panic's value is compared as net/http does
				panic(cause)
			} else if cause != nil {
				w.broken = true
			}
		}()
		r.serveRequest(w, req)
	}()
	response := w.response()
	response.Final = denied.Message != "" && denied.RetryAfter == 0
	response.WaitsFor, response.WaitsUntil = denied.Limit, denied.Until
	return response
}

// accountOf returns the account of the API key or user that created a batch at a time.
func (r *Runtime) accountOf(c Caller, created time.Time) (*quota.Account, *openai.Error) {
	if c.IsUser {
		a, err := r.ledger.UserOfBatch(c.Key, c.Tenant, c.Limits, created, r.Elapsed())
		if err != nil {
			return nil, errManyUsers("user that created the batch: ", err)
		}
		return a, nil
	}
	ring := r.keys.Load()
	names := r.keyNames.Load()
	if names == nil || names.ring != ring {
		names = &keyNames{ring: ring, accounts: make(map[string]*quota.Account, len(*ring))}
		for _, a := range *ring {
			name, _ := a.Name()
			names.accounts[name] = a
		}
		r.keyNames.Store(names)
	}
	a := names.accounts[c.Key]
	if a == nil {
		refused := r.errUnauthorized()
		refused.Message = fmt.Sprintf("the API key %q that created the batch was removed: create the batch again with another key", c.Key)
		return nil, refused
	}
	return a, nil
}

// keyNames are the accounts of a keyring by name.
type keyNames struct {
	ring     *quota.Keyring
	accounts map[string]*quota.Account
}

// responseBuffer is a http.ResponseWriter that stores a response.
type responseBuffer struct {
	header   http.Header
	status   int
	body     bytes.Buffer
	tooLarge bool
	broken   bool // the response is incomplete
}

// Header returns the header of the response.
func (w *responseBuffer) Header() http.Header { return w.header }

// WriteHeader sets the status of the response.
func (w *responseBuffer) WriteHeader(status int) {
	if w.status == 0 && status >= http.StatusOK {
		w.status = status
	}
}

// Write appends to the body. It fails if the response is too large.
func (w *responseBuffer) Write(p []byte) (int, error) {
	w.WriteHeader(http.StatusOK)
	if w.body.Len()+len(p) > maxBatchResponse {
		w.tooLarge = true
		return 0, http.ErrContentLength
	}
	return w.body.Write(p)
}

// Flush does nothing: the response is read when it is complete.
func (w *responseBuffer) Flush() {}

func (w *responseBuffer) response() BatchResponse {
	var failure *openai.Error
	switch {
	case w.tooLarge:
		failure = openai.Invalid("", "response_too_large", fmt.Sprintf("the response must have at most %d bytes in a batch: use fewer inputs or answers in this request, or send it outside of a batch", maxBatchResponse))
	case w.broken || w.status == 0:
		failure = &openai.Error{Status: http.StatusBadGateway, Kind: openai.TypeServer, Code: "incomplete_response", Message: "the response of the replica is incomplete"}
	default:
		return BatchResponse{Status: w.status, Header: w.header, Body: w.body.Bytes()}
	}
	return BatchResponse{Status: failure.Status, Header: w.header, Body: failure.Body()}
}

// AcceptsModel reports whether a name can be requested.
func (r *Runtime) AcceptsModel(name string) bool {
	return r.models.Load().accepts(name)
}

// ModelPrice returns the model of a requested name, and its price for clients, nil if it has none. known is
// false for an unknown name and for a split.
func (r *Runtime) ModelPrice(name string) (model string, price *service.TokenPrice, known bool) {
	t := r.models.Load()
	resolved, known := t.resolve([]byte(name))
	return resolved.Model, t.price(resolved.Model), known
}

// ReadyReplicas returns the number of ready replicas of this balancer that serve a requested name. For a
// split it is that of its models, and for an unknown name that of all models.
func (r *Runtime) ReadyReplicas(name string) int {
	t := r.models.Load()
	resolved, known := t.resolve([]byte(name))
	serves := func(model string) bool { return !known || model == resolved.Model }
	if s := t.splits[name]; s != nil {
		serves = func(model string) bool {
			_, part := s.modelOf(model)
			return part
		}
	}
	n := 0
	for _, rep := range r.View().Replicas {
		if rep.Ready && !rep.Draining && serves(rep.Model) {
			n++
		}
	}
	return n
}

// maxDeadline is the maximum of the header X-Skyserve-Deadline: that of slo.NIW.deadline.
const maxDeadline = 30 * 24 * time.Hour

// setDeadline parses the header X-Skyserve-Deadline of a deferred request: a duration such as 4h, or a
// time (RFC 3339).
func (o *sender) setDeadline(h http.Header, now time.Time) *openai.Error {
	value := strings.TrimSpace(h.Get(headerDeadline))
	if value == "" {
		return nil
	}
	due, err := time.ParseDuration(value)
	if err != nil {
		var at time.Time
		if at, err = time.Parse(time.RFC3339, value); err == nil {
			due = at.Sub(now)
		}
	}
	switch {
	case err != nil || due < time.Second || due > maxDeadline:
		return openai.Invalid(headerDeadline, "invalid_deadline", fmt.Sprintf("header %s: must be a duration such as 4h, or a time such as 2026-01-02T15:04:05Z, from 1s to 720h from now, got %s", headerDeadline, openai.Clip([]byte(value))))
	case o.tier != service.TierDeferred:
		return openai.Invalid(headerDeadline, "invalid_deadline", fmt.Sprintf("header %s: only requests of tier %s have a deadline, and this one has tier %s: set the header %s: %s", headerDeadline, service.TierDeferred.Word(), o.tier.Word(), headerTier, service.TierDeferred.Word()))
	}
	o.due = due
	return nil
}
