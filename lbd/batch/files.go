package batch

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime/multipart"
	"net/http"
	"strconv"
	"strings"

	"skyserve/internal/store"
	"skyserve/lbd/batch/job"
	"skyserve/lbd/openai"
)

// Limits of the API of files.
const (
	defaultFilePage = 10_000 // OpenAI's
	maxFilePage     = 10_000
	maxField        = 1 << 10 // of a field of the form other than the file
	maxFilename     = 255
	// formOverhead is the maximum size of an upload beyond its file.
	formOverhead = 64 << 10
)

// serveFiles serves a path below PathFiles.
func (s *Service) serveFiles(w http.ResponseWriter, req *http.Request, c Caller, rest string) *openai.Error {
	id, action, hasAction := strings.Cut(rest, "/")
	switch {
	case rest == "" && req.Method == http.MethodPost:
		return s.uploadFile(w, req, c)
	case rest == "" && (req.Method == http.MethodGet || req.Method == http.MethodHead):
		return s.listFiles(w, req, c)
	case rest == "":
		return errMethod(w, req, http.MethodGet, http.MethodPost)
	case hasAction && action != "content":
		return errNoPath(req)
	case hasAction && req.Method != http.MethodGet && req.Method != http.MethodHead:
		return errMethod(w, req, http.MethodGet)
	case !hasAction && req.Method != http.MethodGet && req.Method != http.MethodHead && req.Method != http.MethodDelete:
		return errMethod(w, req, http.MethodGet, http.MethodDelete)
	}
	f, err := s.getFile(req.Context(), c.Tenant, id)
	switch {
	case errors.Is(err, store.ErrNotFound):
		return errMissing("file", id)
	case err != nil:
		return s.errStore(req, err)
	case hasAction:
		s.sendContent(w, req, &f)
		return nil
	case req.Method == http.MethodDelete:
		return s.deleteFile(w, req, c, &f)
	}
	writeJSON(w, f.File)
	return nil
}

// tenantFiles returns the number of a tenant's files and of their bytes.
func (s *Service) tenantFiles(ctx context.Context, tenant string) (files int, size int64, err error) {
	entries, err := s.records.List(ctx, "file."+tenantKey(tenant)+".")
	for _, e := range entries {
		var f fileRecord
		if json.Unmarshal(e.Value, &f) == nil && !f.expired(s.now()) {
			files, size = files+1, size+f.File.Bytes
		}
	}
	return files, size, err
}

// upload is a form with a file, as received so far.
type upload struct {
	id       string
	filename string
	received bool
	size     int64
	lines    job.LineCounter
	purpose  string
	anchor   string
	seconds  string
}

// uploadFile stores a file while it is received. 200 means that it is on disk.
func (s *Service) uploadFile(w http.ResponseWriter, req *http.Request, c Caller) *openai.Error {
	ctx := req.Context()
	files, stored, err := s.tenantFiles(ctx, c.Tenant)
	if err != nil {
		return s.errStore(req, err)
	}
	if files >= s.limits.TenantFiles {
		return errFull(fmt.Sprintf("a tenant can have at most %d files: delete files first", s.limits.TenantFiles))
	}
	if req.ContentLength > s.limits.FileBytes+formOverhead {
		return s.errFileSize()
	}
	control := http.NewResponseController(w)
	body := http.MaxBytesReader(w, req.Body, s.limits.FileBytes+formOverhead)
	req.Body = struct {
		io.Reader
		io.Closer
	}{&idleTimeoutBody{body, control, s.opts.IdleTimeout}, body}
	form, err := req.MultipartReader()
	if err != nil {
		return openai.Invalid("Content-Type", "invalid_content_type", "header Content-Type: must be multipart/form-data with a boundary")
	}
	u := upload{id: newID("file-", s.now())}
	apiErr := s.receiveForm(ctx, form, &u, stored)
	var record fileRecord
	if apiErr == nil {
		record, apiErr = s.checkUpload(c, &u)
	}
	refused := apiErr != nil
	if apiErr == nil {
		if refused, err = s.createFile(ctx, &record); err != nil {
			apiErr = s.errStore(req, err)
		}
	}
	extendDeadlines(control, s.opts.IdleTimeout)
	if refused {
		if err := s.store.DeleteObject(context.WithoutCancel(ctx), u.id); err != nil {
			s.log.Warn("deleting a refused file failed", "file", u.id, "err", err)
		}
	}
	if apiErr != nil {
		return apiErr
	}
	writeJSON(w, record.File)
	return nil
}

// createFile stores the record of an uploaded file. With an error, missing means that there is no record; else there may
// be one, and sweep removes the content later if there is none.
func (s *Service) createFile(ctx context.Context, f *fileRecord) (missing bool, err error) {
	key := fileKey(f.Tenant, f.File.ID)
	if _, err = s.records.Create(ctx, key, encode(f)); err == nil {
		return false, nil
	}
	_, _, readErr := s.records.Get(context.WithoutCancel(ctx), key)
	if readErr == nil {
		return false, nil // only the acknowledgement was lost
	}
	return errors.Is(readErr, store.ErrNotFound), err
}

// receiveForm stores the file of a form and reads its other fields, in any order. stored is the size of the
// tenant's other files.
func (s *Service) receiveForm(ctx context.Context, form *multipart.Reader, u *upload, stored int64) *openai.Error {
	for {
		part, err := form.NextPart()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return errForm(err)
		}
		if part.FormName() == "file" {
			if u.received {
				return openai.Invalid("file", "invalid_value", "file: must be sent once")
			}
			u.received, u.filename = true, part.FileName()
			limit := min(s.limits.FileBytes, s.limits.TenantBytes-stored)
			u.size, err = s.store.WriteObject(ctx, u.id, io.TeeReader(io.LimitReader(part, limit+1), &u.lines))
			var read *store.ReadError
			switch {
			case errors.As(err, &read):
				return errForm(err)
			case err != nil:
				s.log.Warn("storing a file failed", "file", u.id, "err", err)
				return &openai.Error{
					Status: http.StatusServiceUnavailable, Kind: openai.TypeServer, Code: "store_unavailable", RetryAfter: 5,
					Message: "the store of files does not respond or is full: retry later",
				}
			case u.size > s.limits.FileBytes:
				return s.errFileSize()
			case u.size > limit:
				return errFull(fmt.Sprintf("the files of a tenant can have at most %d bytes: delete files first", s.limits.TenantBytes))
			}
			continue
		}
		value, err := io.ReadAll(io.LimitReader(part, maxField))
		if err != nil {
			return errForm(err)
		}
		switch part.FormName() {
		case "purpose":
			u.purpose = string(value)
		case "expires_after[anchor]":
			u.anchor = string(value)
		case "expires_after[seconds]":
			u.seconds = string(value)
		}
	}
}

// checkUpload validates a received form and returns the record of its file.
func (s *Service) checkUpload(c Caller, u *upload) (record fileRecord, apiErr *openai.Error) {
	switch {
	case !u.received:
		return record, openai.Invalid("file", "missing_required_parameter", "file: is required")
	case u.purpose != job.PurposeBatch:
		return record, openai.Invalid("purpose", "invalid_value", fmt.Sprintf("purpose: must be %s, got %q", job.PurposeBatch, job.Truncate(u.purpose)))
	case u.size == 0:
		return record, openai.Invalid("file", "empty_file", "file: must not be empty")
	}
	now := s.now()
	record = fileRecord{Tenant: c.Tenant, Lines: u.lines.Lines(), File: job.File{
		ID: u.id, Object: "file", Bytes: u.size, CreatedAt: now.Unix(), Filename: clipName(u.filename), Purpose: u.purpose, Status: "processed",
	}}
	if u.anchor != "" || u.seconds != "" {
		n, _ := strconv.ParseInt(u.seconds, 10, 64) // 0 is invalid
		e := job.Expiry{Anchor: u.anchor, Seconds: n}
		if err := e.Check("expires_after"); err != nil {
			return record, errParam(err)
		}
		record.File.ExpiresAt = now.Unix() + n
	}
	return record, nil
}

func clipName(name string) string {
	if len(name) > maxFilename {
		name = name[:maxFilename]
	}
	return strings.ToValidUTF8(name, "")
}

func errFull(message string) *openai.Error {
	return &openai.Error{Status: http.StatusTooManyRequests, Kind: openai.TypeRateLimit, Code: "file_limit", Message: message}
}

func (s *Service) errFileSize() *openai.Error {
	return &openai.Error{
		Status: http.StatusRequestEntityTooLarge, Kind: openai.TypeInvalid, Param: "file", Code: "file_too_large",
		Message: fmt.Sprintf("file: must have at most %d bytes", s.limits.FileBytes),
	}
}

func errForm(err error) *openai.Error {
	var tooLarge *http.MaxBytesError
	if errors.As(err, &tooLarge) {
		return &openai.Error{
			Status: http.StatusRequestEntityTooLarge, Kind: openai.TypeInvalid, Param: "file", Code: "file_too_large",
			Message: fmt.Sprintf("reading the form: must have at most %d bytes", tooLarge.Limit),
		}
	}
	if refused := errBody(err, "form"); refused != nil {
		return refused
	}
	return openai.Invalid("", "invalid_multipart", "reading the form: "+err.Error())
}

// listFiles lists a tenant's files.
func (s *Service) listFiles(w http.ResponseWriter, req *http.Request, c Caller) *openai.Error {
	p, apiErr := readPage(req, "file-", defaultFilePage, maxFilePage)
	if apiErr != nil {
		return apiErr
	}
	entries, err := s.records.List(req.Context(), "file."+tenantKey(c.Tenant)+".")
	if err != nil {
		return s.errStore(req, err)
	}
	var data []job.File
	more := false
	purpose := req.URL.Query().Get("purpose")
	for _, e := range p.selectAfter(entries) {
		var f fileRecord
		if json.Unmarshal(e.Value, &f) != nil || f.expired(s.now()) || purpose != "" && f.File.Purpose != purpose {
			continue
		}
		if more = len(data) == p.limit; more {
			break
		}
		data = append(data, f.File)
	}
	writeJSON(w, newList(data, func(f *job.File) string { return f.ID }, more))
	return nil
}

// sendContent sends the bytes of a file.
func (s *Service) sendContent(w http.ResponseWriter, req *http.Request, f *fileRecord) {
	h := w.Header()
	h.Set("Content-Type", "application/octet-stream")
	h.Set("Content-Length", strconv.FormatInt(f.File.Bytes, 10))
	w.WriteHeader(http.StatusOK)
	if req.Method == http.MethodHead {
		return
	}
	out := &idleTimeoutWriter{w, http.NewResponseController(w), s.opts.IdleTimeout}
	if _, err := io.Copy(out, s.store.ReadObject(req.Context(), f.File.ID, 0, f.File.Bytes)); err != nil {
		s.log.Debug("sending a file failed", "file", f.File.ID, "err", err)
		panic(http.ErrAbortHandler) // the client must not mistake a part for the whole file
	}
}

// deleteFile deletes a file that no running batch needs.
func (s *Service) deleteFile(w http.ResponseWriter, req *http.Request, c Caller, f *fileRecord) *openai.Error {
	batches, err := s.openBatches(req.Context(), c.Tenant)
	if err != nil {
		return s.errStore(req, err)
	}
	for i := range batches {
		if batches[i].Batch.InputFileID == f.File.ID {
			return &openai.Error{
				Status: http.StatusConflict, Kind: openai.TypeInvalid, Code: "file_in_use",
				Message: fmt.Sprintf("%s is the input of %s, which has not ended: cancel the batch first", f.File.ID, batches[i].Batch.ID),
			}
		}
	}
	if err := s.removeFile(req.Context(), f); err != nil {
		return s.errStore(req, err)
	}
	writeJSON(w, map[string]any{"id": f.File.ID, "object": "file", "deleted": true})
	return nil
}

// removeFile deletes the content of a file, then its record, so that a failure can be retried.
func (s *Service) removeFile(ctx context.Context, f *fileRecord) error {
	if err := s.store.DeleteObject(ctx, f.File.ID); err != nil {
		return err
	}
	return s.records.Delete(ctx, fileKey(f.Tenant, f.File.ID))
}
