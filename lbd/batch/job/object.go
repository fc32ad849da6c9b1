package job

import (
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"
)

// Status is the state of a batch, as in OpenAI's API.
type Status string

// States of a batch. Failed, Completed, Expired and Cancelled are final.
const (
	Validating Status = "validating"
	Failed     Status = "failed"
	InProgress Status = "in_progress"
	Finalizing Status = "finalizing"
	Completed  Status = "completed"
	Expired    Status = "expired"
	Cancelling Status = "cancelling"
	Cancelled  Status = "cancelled"
)

// Final reports whether a batch in this state never changes again.
func (s Status) Final() bool {
	return s == Failed || s == Completed || s == Expired || s == Cancelled
}

// Purposes of files. Clients upload files for PurposeBatch; batches create files for PurposeOutput.
const (
	PurposeBatch  = "batch"
	PurposeOutput = "batch_output"
)

// File is a file as in OpenAI's API.
type File struct {
	ID        string `json:"id"`
	Object    string `json:"object"` // always file
	Bytes     int64  `json:"bytes"`
	CreatedAt int64  `json:"created_at"` // Unix seconds
	ExpiresAt int64  `json:"expires_at,omitempty"`
	Filename  string `json:"filename"`
	Purpose   string `json:"purpose"`
	Status    string `json:"status"` // always processed
}

// Counts are the numbers of requests of a batch.
type Counts struct {
	Total     int `json:"total"`
	Completed int `json:"completed"`
	Failed    int `json:"failed"`
}

// Problem is an error of a batch, usually of one line of its input.
type Problem struct {
	Code    string  `json:"code"`
	Message string  `json:"message"`
	Param   *string `json:"param"`
	Line    *int    `json:"line"` // from 1; null for the whole file
}

// Problems is a list of errors in OpenAI's format.
type Problems struct {
	Object string    `json:"object"` // always list
	Data   []Problem `json:"data"`
}

// Batch is a batch as in OpenAI's API. Times are Unix seconds; null = not reached.
type Batch struct {
	ID               string    `json:"id"`
	Object           string    `json:"object"` // always batch
	Endpoint         string    `json:"endpoint"`
	Errors           *Problems `json:"errors"`
	InputFileID      string    `json:"input_file_id"`
	CompletionWindow string    `json:"completion_window"`
	Status           Status    `json:"status"`
	OutputFileID     *string   `json:"output_file_id"`
	ErrorFileID      *string   `json:"error_file_id"`
	CreatedAt        int64     `json:"created_at"`
	InProgressAt     *int64    `json:"in_progress_at"`
	ExpiresAt        int64     `json:"expires_at"`
	FinalizingAt     *int64    `json:"finalizing_at"`
	CompletedAt      *int64    `json:"completed_at"`
	FailedAt         *int64    `json:"failed_at"`
	ExpiredAt        *int64    `json:"expired_at"`
	CancellingAt     *int64    `json:"cancelling_at"`
	CancelledAt      *int64    `json:"cancelled_at"`
	RequestCounts    Counts    `json:"request_counts"`
	// Model is the model of all requests; absent if it is unknown or there are several.
	Model string `json:"model,omitempty"`
	// Usage is that of all completed requests; absent before the batch has ended.
	Usage    *Usage            `json:"usage,omitempty"`
	Metadata map[string]string `json:"metadata"`
}

// Limits of files and batches. They are OpenAI's where OpenAI has one.
type Limits struct {
	FileBytes     int64 // of one file
	TenantBytes   int64 // of all files of a tenant
	TenantFiles   int   // of a tenant
	TenantBatches int   // of a tenant, not yet in a final state
	KeyBatches    int   // the same of one API key
	Requests      int   // of one batch
	LineBytes     int   // of one line
}

// DefaultLimits returns the limits, each with its reason.
func DefaultLimits() Limits {
	return Limits{
		FileBytes:     1 << 30, // five times OpenAI's 200 MB for batches
		TenantBytes:   4 << 30, // half of the store's capacity for files
		TenantFiles:   10_000,  // OpenAI's page of a list
		TenantBatches: 100,     // more only wait for each other
		KeyBatches:    50,      // one key cannot take all of its tenant's
		Requests:      50_000,  // OpenAI's
		LineBytes:     8 << 20, // a long prompt with images; larger ones need URLs
	}
}

// Limits of a batch's parameters.
const (
	maxMetadata      = 16  // OpenAI's
	maxMetadataKey   = 64  // OpenAI's
	maxMetadataValue = 512 // OpenAI's
	minWindow        = time.Minute
	maxWindow        = 30 * 24 * time.Hour // that of slo.NIW.deadline
)

// ParamError is an invalid parameter of a request that creates a batch.
type ParamError struct {
	Param, Code, Message string
}

// Error returns the message.
func (e *ParamError) Error() string { return e.Message }

// Params are the parameters of a new batch.
type Params struct {
	InputFileID      string            `json:"input_file_id"`
	Endpoint         string            `json:"endpoint"`
	CompletionWindow string            `json:"completion_window"`
	Metadata         map[string]string `json:"metadata"`
	// OutputExpiresAfter is when the files that the batch creates are deleted; nil = never.
	OutputExpiresAfter *Expiry `json:"output_expires_after"`
}

// Expiry is when a file is deleted, after its creation.
type Expiry struct {
	Anchor  string `json:"anchor"` // always created_at
	Seconds int64  `json:"seconds"`
}

// Bounds of Expiry in seconds, OpenAI's: one hour to 30 days.
const (
	minExpiry = 3600
	maxExpiry = 2592000
)

// Check returns a *ParamError for an invalid expiry; param is its name. nil is valid.
func (e *Expiry) Check(param string) error {
	if e != nil && (e.Anchor != "created_at" || e.Seconds < minExpiry || e.Seconds > maxExpiry) {
		return &ParamError{param, "invalid_value", fmt.Sprintf("%s: anchor must be created_at and seconds %d to %d, got %q and %d", param, minExpiry, maxExpiry, Truncate(e.Anchor), e.Seconds)}
	}
	return nil
}

// Endpoints are the endpoints that a batch may use: those with JSON in both directions.
func Endpoints() []string {
	return []string{"/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/rerank", "/v1/responses", "/v1/score"}
}

// Check returns the completion window, or a *ParamError. Windows are durations such as 24h, from one
// minute to 30 days: OpenAI allows only 24h.
func (p *Params) Check() (window time.Duration, err error) {
	if p.InputFileID == "" {
		return 0, &ParamError{"input_file_id", "missing_required_parameter", "input_file_id: is required"}
	}
	if !slices.Contains(Endpoints(), p.Endpoint) {
		return 0, &ParamError{"endpoint", "invalid_value", fmt.Sprintf("endpoint: must be one of %s, got %q", strings.Join(Endpoints(), ", "), Truncate(p.Endpoint))}
	}
	window, err = time.ParseDuration(p.CompletionWindow)
	if err != nil || window < minWindow || window > maxWindow {
		return 0, &ParamError{"completion_window", "invalid_value", fmt.Sprintf("completion_window: must be a duration from 1m to 720h such as 24h, got %q", Truncate(p.CompletionWindow))}
	}
	if len(p.Metadata) > maxMetadata {
		return 0, &ParamError{"metadata", "invalid_value", fmt.Sprintf("metadata: must have at most %d keys, got %d", maxMetadata, len(p.Metadata))}
	}
	for k, v := range p.Metadata {
		if utf8.RuneCountInString(k) > maxMetadataKey || utf8.RuneCountInString(v) > maxMetadataValue {
			return 0, &ParamError{"metadata", "invalid_value", fmt.Sprintf("metadata: keys must have at most %d characters and values at most %d", maxMetadataKey, maxMetadataValue)}
		}
	}
	return window, p.OutputExpiresAfter.Check("output_expires_after")
}

// Truncate shortens a client's text for a message.
func Truncate(s string) string {
	const maxLength = 64
	if len(s) <= maxLength {
		return s
	}
	return strings.ToValidUTF8(s[:maxLength], "") + "..."
}
