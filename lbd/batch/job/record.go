package job

import (
	"errors"
	"time"

	"skyserve/internal/service"
)

// Chunk is a range of consecutive lines: what a balancer claims.
type Chunk struct {
	Skip          int64  `json:"s,omitempty"` // bytes between the previous chunk and this one
	Bytes         int64  `json:"b"`
	Lines         int    `json:"n"`
	Worker        string `json:"w,omitempty"` // who claims it; empty = nobody
	Done          bool   `json:"d,omitempty"` // all results are recorded
	Completed     int    `json:"c,omitempty"`
	Failed        int    `json:"f,omitempty"`
	ClaimedBefore bool   `json:"t,omitempty"` // it was claimed before, so some results may be recorded
	// InputTokens and OutputTokens are those of the completed requests.
	InputTokens  int64 `json:"i,omitempty"`
	OutputTokens int64 `json:"o,omitempty"`
	// Wait is what all of its requests without a result wait for; nil = nothing.
	Wait *Wait `json:"q,omitempty"`
}

// Record is a stored batch. Every change is one of its methods; callers store it by
// compare-and-swap on its revision.
type Record struct {
	Batch     Batch  `json:"batch"`
	Tenant    string `json:"tenant"`
	Key       string `json:"key"`            // name of the API key or user that created it; empty without keys
	KeyIsUser bool   `json:"user,omitempty"` // Key is a user with identity tokens
	// UserLimits are the limits of the user's token when the batch was created: a balancer that has not seen the token
	// does not know them. They are nil for an API key, whose limits balancers know, and unknown in a record of an earlier
	// version.
	UserLimits *service.KeyLimits `json:"user_limits,omitempty"`
	// WindowMillis is the completion window.
	WindowMillis int64 `json:"window_ms"`
	// CreatedMillis is Batch.CreatedAt in milliseconds.
	CreatedMillis int64   `json:"created_ms"`
	Chunks        []Chunk `json:"chunks,omitempty"`
	// FinalStatus is the final state that Finalizing or Cancelling leads to; empty before.
	FinalStatus Status `json:"ending,omitempty"`
	// Worker validates the input or writes the output files; empty = nobody.
	Worker string `json:"worker,omitempty"`
	// Files are those that Worker is writing. If it dies, they are deleted.
	Files []string `json:"files,omitempty"`
	// Models are the requested models, sorted, without repetition.
	Models []string `json:"models,omitempty"`
	// Load is the input by model, in the order of Models. Before the validation it is that of the first line,
	// as if all lines requested the same model.
	Load []ModelInput `json:"load,omitempty"`
	// OutputExpirySeconds is the lifetime of the files that the batch creates; 0 = unlimited.
	OutputExpirySeconds int64 `json:"output_expiry_seconds,omitempty"`
}

// Errors of changes.
var (
	// ErrLostClaim means that another worker has the claim, or that the batch no longer runs.
	ErrLostClaim = errors.New("the claim belongs to another worker")
	// ErrFinal means that the batch has ended.
	ErrFinal = errors.New("the batch has ended")
)

// New returns a new batch. It is validated next.
func New(id string, p Params, window time.Duration, tenant, key string, now time.Time) Record {
	r := Record{
		Batch: Batch{
			ID: id, Object: "batch", Endpoint: p.Endpoint, InputFileID: p.InputFileID, CompletionWindow: p.CompletionWindow,
			Status: Validating, CreatedAt: now.Unix(), ExpiresAt: now.Add(window).Unix(), Metadata: p.Metadata,
		},
		Tenant: tenant, Key: key, WindowMillis: window.Milliseconds(), CreatedMillis: now.UnixMilli(),
	}
	if p.OutputExpiresAfter != nil {
		r.OutputExpirySeconds = p.OutputExpiresAfter.Seconds
	}
	return r
}

// Window returns the completion window.
func (r *Record) Window() time.Duration { return time.Duration(r.WindowMillis) * time.Millisecond }

// Created returns the time of creation.
func (r *Record) Created() time.Time { return time.UnixMilli(r.CreatedMillis) }

// Deadline returns the time at which the batch expires.
func (r *Record) Deadline() time.Time { return r.Created().Add(r.Window()) }

func seconds(now time.Time) *int64 {
	s := now.Unix()
	return &s
}

// aliveFunc reports whether a worker is alive, so that its claims are valid. It is never called with an empty name.
type aliveFunc = func(worker string) bool

func isClaimed(worker string, live aliveFunc) bool { return worker != "" && live(worker) }

// ClaimValidation claims the validation. files are those that the worker may write. It returns the files
// of an earlier worker, and false if there is nothing to validate or a live worker does it.
func (r *Record) ClaimValidation(worker string, live aliveFunc, files ...string) (stale []string, ok bool) {
	if r.Batch.Status != Validating {
		return nil, false
	}
	return r.claimFiles(worker, live, files)
}

func (r *Record) claimFiles(worker string, live aliveFunc, files []string) (stale []string, ok bool) {
	if isClaimed(r.Worker, live) {
		return nil, false
	}
	stale, r.Worker, r.Files = r.Files, worker, files
	return stale, true
}

// Start ends a validation without errors.
func (r *Record) Start(worker string, in Input, now time.Time) error {
	if r.Batch.Status != Validating || r.Worker != worker {
		return ErrLostClaim
	}
	r.Chunks, r.Models, r.Load, r.Worker, r.Files = in.Chunks, nil, in.Load, "", nil
	for _, l := range in.Load {
		r.Models = append(r.Models, l.Model)
	}
	for _, c := range in.Chunks {
		r.Batch.RequestCounts.Total += c.Lines
	}
	if len(r.Models) == 1 {
		r.Batch.Model = r.Models[0]
	}
	r.Batch.Status, r.Batch.InProgressAt = InProgress, seconds(now)
	return nil
}

// Fail ends a validation with errors. errorFile is the file that lists all of them; empty = none.
func (r *Record) Fail(worker string, problems []Problem, errorFile string, now time.Time) error {
	if r.Batch.Status != Validating || r.Worker != worker {
		return ErrLostClaim
	}
	r.Worker, r.Files = "", nil
	r.Batch.Status, r.Batch.FailedAt = Failed, seconds(now)
	r.Batch.Errors = &Problems{Object: "list", Data: problems}
	if errorFile != "" {
		r.Batch.ErrorFileID = &errorFile
	}
	return nil
}

// LoseInput ends a batch that runs and whose input is lost: the results so far are written to its files, and then it fails
// with the problem.
func (r *Record) LoseInput(problem Problem, now time.Time) error {
	if r.Batch.Status != InProgress {
		return ErrLostClaim
	}
	r.FinalStatus, r.Batch.Errors = Failed, &Problems{Object: "list", Data: []Problem{problem}}
	r.finalize(now)
	return nil
}

// finalize begins the writing of the output files.
func (r *Record) finalize(now time.Time) {
	r.Batch.Status, r.Batch.FinalizingAt, r.Worker = Finalizing, seconds(now), ""
}

// Claimable returns the first chunk that no live worker claims; -1 if there is none.
func (r *Record) Claimable(live aliveFunc) int {
	if r.Batch.Status != InProgress {
		return -1
	}
	for i := range r.Chunks {
		if c := &r.Chunks[i]; !c.Done && !isClaimed(c.Worker, live) {
			return i
		}
	}
	return -1
}

// Claim claims a chunk; ErrLostClaim if a live worker has it or the batch does not run.
func (r *Record) Claim(chunk int, worker string, live aliveFunc) error {
	if r.Batch.Status != InProgress || chunk >= len(r.Chunks) || r.Chunks[chunk].Done || isClaimed(r.Chunks[chunk].Worker, live) {
		return ErrLostClaim
	}
	r.Chunks[chunk].Worker, r.Chunks[chunk].ClaimedBefore, r.Chunks[chunk].Wait = worker, true, nil
	return nil
}

// Position returns the offset of a chunk in the file, and the index of its first request, from 0.
func (r *Record) Position(chunk int) (offset int64, first int) {
	for i := range r.Chunks[:chunk] {
		offset += r.Chunks[i].Skip + r.Chunks[i].Bytes
		first += r.Chunks[i].Lines
	}
	return offset + r.Chunks[chunk].Skip, first
}

// Progress is the progress of a chunk.
type Progress struct {
	Completed, Failed int   // requests
	Usage             Usage // of the completed requests
	Wait              *Wait // see Chunk.Wait
}

// Report records the progress of a claimed chunk. The chunk is done once every line has a result.
func (r *Record) Report(chunk int, worker string, p Progress) error {
	if r.Batch.Status != InProgress && r.Batch.Status != Cancelling || chunk >= len(r.Chunks) {
		return ErrLostClaim
	}
	c := &r.Chunks[chunk]
	if c.Done || c.Worker != worker {
		return ErrLostClaim
	}
	c.Completed, c.Failed, c.InputTokens, c.OutputTokens, c.Wait = p.Completed, p.Failed, p.Usage.InputTokens, p.Usage.OutputTokens, p.Wait
	if p.Completed+p.Failed == c.Lines {
		c.Done, c.Worker, c.Wait = true, "", nil
	}
	r.sumChunkCounts()
	return nil
}

// sumChunkCounts sums the counts of the chunks.
func (r *Record) sumChunkCounts() {
	r.Batch.RequestCounts.Completed, r.Batch.RequestCounts.Failed = 0, 0
	for i := range r.Chunks {
		r.Batch.RequestCounts.Completed += r.Chunks[i].Completed
		r.Batch.RequestCounts.Failed += r.Chunks[i].Failed
	}
}

// Release gives up a claim on a chunk.
func (r *Record) Release(chunk int, worker string) {
	if chunk < len(r.Chunks) && r.Chunks[chunk].Worker == worker {
		r.Chunks[chunk].Worker, r.Chunks[chunk].Wait = "", nil
	}
}

// Cancel requests the cancellation; ErrFinal if the batch has ended. Nothing more is sent. A batch whose
// output files are being written completes.
func (r *Record) Cancel(now time.Time) error {
	switch r.Batch.Status {
	case Validating, InProgress:
		r.Batch.Status, r.Batch.CancellingAt, r.FinalStatus, r.Worker = Cancelling, seconds(now), Cancelled, ""
		return nil
	case Cancelling, Finalizing:
		return nil
	}
	return ErrFinal
}

// Advance applies what time and results require: a batch whose requests all have a result is finalized,
// and so is one whose deadline has passed. It reports whether the record changed.
func (r *Record) Advance(now time.Time) bool {
	switch r.Batch.Status {
	case InProgress:
		done := true
		for i := range r.Chunks {
			done = done && r.Chunks[i].Done
		}
		switch {
		case done:
			r.FinalStatus = Completed
		case !now.Before(r.Deadline()):
			r.FinalStatus = Expired
		default:
			return false
		}
	case Validating:
		if now.Before(r.Deadline()) {
			return false
		}
		r.FinalStatus = Expired
	default:
		return false
	}
	r.finalize(now)
	return true
}

// ClaimFinish claims the writing of the output files. files and stale are as in ClaimValidation.
func (r *Record) ClaimFinish(worker string, live aliveFunc, files ...string) (stale []string, ok bool) {
	if r.Batch.Status != Finalizing && r.Batch.Status != Cancelling {
		return nil, false
	}
	return r.claimFiles(worker, live, files)
}

// ReleaseFiles gives up the claim on the validation or the writing of the output files.
func (r *Record) ReleaseFiles(worker string) {
	if r.Worker == worker {
		r.Worker = ""
	}
}

// Finish ends a batch whose output files are written; an empty id means that there is no such file.
// counts and usage are those of the files.
func (r *Record) Finish(worker, outputFile, errorFile string, counts Counts, usage Usage, now time.Time) error {
	if r.Batch.Status != Finalizing && r.Batch.Status != Cancelling || r.Worker != worker {
		return ErrLostClaim
	}
	if outputFile != "" {
		r.Batch.OutputFileID = &outputFile
	}
	if errorFile != "" {
		r.Batch.ErrorFileID = &errorFile
	}
	r.Batch.Usage = &usage
	r.Batch.Status, r.Batch.RequestCounts, r.Worker, r.Files, r.Chunks = r.FinalStatus, counts, "", nil, nil
	switch r.FinalStatus {
	case Expired:
		r.Batch.ExpiredAt = seconds(now)
	case Cancelled:
		r.Batch.CancelledAt = seconds(now)
	case Failed:
		r.Batch.FailedAt = seconds(now)
	default:
		r.Batch.CompletedAt = seconds(now)
	}
	return nil
}
