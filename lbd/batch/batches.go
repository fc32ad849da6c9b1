package batch

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"

	"skyserve/internal/store"
	"skyserve/lbd/batch/job"
	"skyserve/lbd/openai"
)

// Limits of the API of batches.
const (
	defaultBatchPage = 20 // OpenAI's
	maxBatchPage     = 100
	maxParams        = 64 << 10 // metadata has at most 16 x 576 characters
)

// serveBatches serves a path below PathBatches.
func (s *Service) serveBatches(w http.ResponseWriter, req *http.Request, c Caller, rest string) *openai.Error {
	id, action, hasAction := strings.Cut(rest, "/")
	get := req.Method == http.MethodGet || req.Method == http.MethodHead
	switch {
	case rest == "" && req.Method == http.MethodPost:
		return s.createBatch(w, req, c)
	case rest == "" && get:
		return s.listBatches(w, req, c)
	case rest == "":
		return errMethod(w, req, http.MethodGet, http.MethodPost)
	case hasAction && action != "cancel":
		return errNoPath(req)
	case hasAction && req.Method != http.MethodPost:
		return errMethod(w, req, http.MethodPost)
	case !hasAction && !get:
		return errMethod(w, req, http.MethodGet)
	}
	if !validID("batch_", id) {
		return errMissing("batch", id)
	}
	key := batchKey(c.Tenant, id)
	var r job.Record
	var err error
	if hasAction {
		r, _, err = s.updateBatch(req.Context(), key, func(r *job.Record) error { return r.Cancel(s.now()) })
	} else {
		r, _, err = s.readBatch(req.Context(), key)
	}
	switch {
	case errors.Is(err, job.ErrFinal):
		return &openai.Error{
			Status: http.StatusConflict, Kind: openai.TypeInvalid, Code: "batch_ended",
			Message: fmt.Sprintf("Cannot cancel a batch with status '%s'.", r.Batch.Status),
		}
	case errors.Is(err, store.ErrNotFound):
		return errMissing("batch", id)
	case err != nil:
		return s.errStore(req, err)
	}
	s.setEstimate(w, &r)
	writeJSON(w, r.Batch)
	return nil
}

// readBatch returns a record and its revision.
func (s *Service) readBatch(ctx context.Context, key string) (r job.Record, revision uint64, err error) {
	value, revision, err := s.records.Get(ctx, key)
	if err == nil {
		err = json.Unmarshal(value, &r)
	}
	return r, revision, err
}

// updateBatch changes a record; if another balancer changed it meanwhile, it reads it again and repeats. It returns
// the record and its revision: the changed record, or the unchanged one with the error that change returned.
func (s *Service) updateBatch(ctx context.Context, key string, change func(*job.Record) error) (r job.Record, revision uint64, err error) {
	for {
		if r, revision, err = s.readBatch(ctx, key); err != nil {
			return r, 0, err
		}
		before := encode(r)
		if err := change(&r); err != nil {
			return r, revision, err
		}
		after := encode(r)
		if bytes.Equal(before, after) {
			return r, revision, nil
		}
		if revision, err = s.records.CompareAndSwap(ctx, key, after, revision); !errors.Is(err, store.ErrConflict) {
			return r, revision, err
		}
	}
}

// openBatches returns a tenant's batches that have not ended.
func (s *Service) openBatches(ctx context.Context, tenant string) (open []job.Record, err error) {
	entries, err := s.records.List(ctx, "batch."+tenantKey(tenant)+".")
	for _, e := range entries {
		var r job.Record
		if json.Unmarshal(e.Value, &r) == nil && !r.Batch.Status.Final() {
			open = append(open, r)
		}
	}
	return open, err
}

// createBatch stores a batch. 200 means that it is on disk.
func (s *Service) createBatch(w http.ResponseWriter, req *http.Request, c Caller) *openai.Error {
	ctx := req.Context()
	body, err := io.ReadAll(http.MaxBytesReader(w, req.Body, maxParams))
	var tooLarge *http.MaxBytesError
	if errors.As(err, &tooLarge) {
		return &openai.Error{
			Status: http.StatusRequestEntityTooLarge, Kind: openai.TypeInvalid, Code: "request_too_large",
			Message: fmt.Sprintf("reading the request body: must have at most %d bytes", tooLarge.Limit),
		}
	}
	var p job.Params
	if refused := errBody(err, "request body"); refused != nil {
		return refused
	}
	if err == nil {
		err = json.Unmarshal(body, &p)
	}
	if err != nil {
		return openai.Invalid("", "invalid_json", "reading the request body as JSON: "+err.Error())
	}
	window, err := p.Check()
	if err != nil {
		return errParam(err)
	}
	f, err := s.getFile(ctx, c.Tenant, p.InputFileID)
	switch {
	case errors.Is(err, store.ErrNotFound):
		e := errMissing("file", p.InputFileID)
		e.Param = "input_file_id"
		return e
	case err != nil:
		return s.errStore(req, err)
	case f.File.Purpose != job.PurposeBatch:
		return openai.Invalid("input_file_id", "invalid_value", fmt.Sprintf("input_file_id: the purpose of the file must be %s, got %s", job.PurposeBatch, f.File.Purpose))
	}
	open, err := s.openBatches(ctx, c.Tenant)
	if err != nil {
		return s.errStore(req, err)
	}
	ofKey := 0
	for i := range open {
		if open[i].Key == c.Key && open[i].KeyIsUser == c.IsUser {
			ofKey++
		}
	}
	if len(open) >= s.limits.TenantBatches || c.Key != "" && ofKey >= s.limits.KeyBatches {
		return &openai.Error{
			Status: http.StatusTooManyRequests, Kind: openai.TypeRateLimit, Code: "batch_limit", RetryAfter: 60,
			Message: fmt.Sprintf("a tenant can have at most %d batches that have not ended, and an API key at most %d: wait or cancel one", s.limits.TenantBatches, s.limits.KeyBatches),
		}
	}
	now := s.now()
	r := job.New(newID("batch_", now), p, window, c.Tenant, c.Key, now)
	r.KeyIsUser, r.UserLimits = c.IsUser, c.Limits
	r.Load = s.firstLoad(ctx, &f, p.Endpoint)
	if _, err := s.records.Create(ctx, batchKey(c.Tenant, r.Batch.ID), encode(r)); err != nil {
		return s.errStore(req, err)
	}
	s.setEstimate(w, &r)
	writeJSON(w, r.Batch)
	return nil
}

// listBatches lists a tenant's batches, the newest first.
func (s *Service) listBatches(w http.ResponseWriter, req *http.Request, c Caller) *openai.Error {
	p, apiErr := readPage(req, "batch_", defaultBatchPage, maxBatchPage)
	if apiErr != nil {
		return apiErr
	}
	entries, err := s.records.Keys(req.Context(), "batch."+tenantKey(c.Tenant)+".")
	if err != nil {
		return s.errStore(req, err)
	}
	entries = p.selectAfter(entries)
	more := len(entries) > p.limit
	data := make([]job.Batch, 0, min(len(entries), p.limit))
	for _, e := range entries[:min(len(entries), p.limit)] {
		r, _, err := s.readBatch(req.Context(), e.Key)
		if errors.Is(err, store.ErrNotFound) {
			continue
		}
		if err != nil {
			return s.errStore(req, err)
		}
		data = append(data, r.Batch)
	}
	writeJSON(w, newList(data, func(b *job.Batch) string { return b.ID }, more))
	return nil
}
