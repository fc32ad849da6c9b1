package batch

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"skyserve/internal/store"
	"skyserve/lbd/batch/job"
)

// outputFile is a file that a batch writes, line by line. It is stored while it is written.
type outputFile struct {
	s       *Service
	ctx     context.Context //nolint:containedctx // of the whole file
	record  fileRecord
	pipe    *io.PipeWriter // nil before the first line
	writing sync.WaitGroup
	err     error
}

// newOutputFile returns a file of a batch; it exists once it has a line.
func (s *Service) newOutputFile(ctx context.Context, r *job.Record, id, suffix string) *outputFile {
	now := s.now()
	f := &outputFile{s: s, ctx: ctx, record: fileRecord{Tenant: r.Tenant, File: job.File{
		ID: id, Object: "file", CreatedAt: now.Unix(), Filename: r.Batch.ID + suffix, Purpose: job.PurposeOutput, Status: "processed",
	}}}
	if r.OutputExpirySeconds > 0 {
		f.record.File.ExpiresAt = now.Unix() + r.OutputExpirySeconds
	}
	return f
}

// writeFrom appends everything that a reader returns.
func (f *outputFile) writeFrom(in io.Reader) error {
	if f.pipe == nil {
		out, pipe := io.Pipe()
		f.pipe = pipe
		f.writing.Go(func() {
			f.record.File.Bytes, f.err = f.s.store.WriteObject(f.ctx, f.record.File.ID, out)
			out.CloseWithError(errors.Join(f.err, io.ErrClosedPipe))
		})
	}
	_, err := io.Copy(f.pipe, in)
	return err
}

// close ends the file and stores its record. It returns the id; empty if the file has no line.
func (f *outputFile) close(cause error) (id string, err error) {
	if f.pipe == nil {
		return "", nil
	}
	f.pipe.CloseWithError(cause) // nil = end of file
	f.writing.Wait()
	if cause != nil || f.err != nil {
		return "", f.err
	}
	_, err = f.s.records.Put(f.ctx, fileKey(f.record.Tenant, f.record.File.ID), encode(f.record))
	return f.record.File.ID, err
}

// dropFiles deletes files that a worker wrote and that no batch refers to.
func (s *Service) dropFiles(ctx context.Context, tenant string, ids []string) error {
	for _, id := range ids {
		value, _, err := s.records.Get(ctx, fileKey(tenant, id))
		if errors.Is(err, store.ErrNotFound) {
			// It has no record: the worker died while it wrote. Its size is unknown.
			if err := s.store.DeleteObject(ctx, id); err != nil {
				return err
			}
			continue
		}
		var f fileRecord
		if err == nil {
			err = json.Unmarshal(value, &f)
		}
		if err == nil {
			err = s.removeFile(ctx, &f)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// validateInput validates the input of a batch, and starts or fails the batch. Invalid lines are listed in the
// error file.
func (w *worker) validateInput(ctx context.Context, key string, r *job.Record, errorID string) error {
	s := w.s
	input, err := s.getFile(ctx, r.Tenant, r.Batch.InputFileID)
	if errors.Is(err, store.ErrNotFound) {
		problem := job.LineError{Code: "file_not_found", Param: "input_file_id", Message: "the input file " + r.Batch.InputFileID + " was deleted"}
		return w.changeBatch(ctx, key, func(r *job.Record) error {
			return r.Fail(w.id, []job.Problem{problem.Problem()}, "", s.now())
		})
	}
	if err != nil {
		return err
	}
	var valid job.Input
	var problems []job.Problem
	var id string
	err = s.untilLost(ctx, s.lostAt(), func() (err error) {
		valid, problems, id, err = w.validateLines(ctx, r, &input, errorID)
		return err
	})
	if errors.Is(err, store.ErrNotFound) {
		s.log.Warn("the input file is lost: the batch fails", "batch", r.Batch.ID, "err", err)
		return w.changeBatch(ctx, key, func(r *job.Record) error {
			return r.Fail(w.id, []job.Problem{job.InputLost(r.Batch.InputFileID)}, "", s.now())
		})
	}
	if err != nil {
		return err
	}
	return w.changeBatch(ctx, key, func(r *job.Record) error {
		if len(problems) > 0 {
			return r.Fail(w.id, problems, id, s.now())
		}
		return r.Start(w.id, valid, s.now())
	})
}

// validateLines validates the lines of the input, and lists invalid ones in the error file, whose id it returns; empty =
// none.
func (w *worker) validateLines(ctx context.Context, r *job.Record, input *fileRecord, errorID string) (valid job.Input, problems []job.Problem, id string, err error) {
	s := w.s
	errorFile := s.newOutputFile(ctx, r, errorID, "_error.jsonl")
	in := job.NewReader(s.store.ReadObject(ctx, input.File.ID, 0, input.File.Bytes), r.Batch.Endpoint, s.limits, s.opts.Sender.Accepts)
	valid, problems, err = job.Validate(in, func(e *job.LineError) error {
		o := job.InvalidOutput(fmt.Sprintf("batch_req_%s-line-%d", r.Batch.ID, e.Line), e)
		return errorFile.writeFrom(bytes.NewReader(o.Encode()))
	})
	id, closeErr := errorFile.close(err)
	return valid, problems, id, errors.Join(err, closeErr)
}

// lostAt returns when an object that is missing or damaged now is lost.
func (s *Service) lostAt() time.Time { return s.now().Add(s.opts.lostAfter) }

// untilLost calls read again while an object is missing or damaged, until lostAt. Then it returns store.ErrNotFound.
func (s *Service) untilLost(ctx context.Context, lostAt time.Time, read func() error) error {
	for {
		err := read()
		if !errors.Is(err, store.ErrNotFound) || !s.now().Before(lostAt) {
			return err
		}
		sleep(ctx, retryMin/4)
	}
}

// changeBatch is tryChangeBatch with an error: that of f, or store.ErrUnavailable.
func (w *worker) changeBatch(ctx context.Context, key string, f func(*job.Record) error) error {
	var changeErr error
	if !w.tryChangeBatch(ctx, key, func(r *job.Record) error { changeErr = f(r); return changeErr }) {
		if changeErr != nil {
			return changeErr
		}
		return store.ErrUnavailable
	}
	return nil
}

// writeOutputs writes the output and error files in the order of the input, and ends the batch.
func (w *worker) writeOutputs(ctx context.Context, key string, r *job.Record, outputID, errorID string) error {
	s := w.s
	output, failures := s.newOutputFile(ctx, r, outputID, "_output.jsonl"), s.newOutputFile(ctx, r, errorID, "_error.jsonl")
	sum := totals{lostAt: s.lostAt()}
	var err error
	for chunk := 0; chunk < len(r.Chunks) && err == nil; chunk++ {
		err = w.finishChunk(ctx, r, chunk, output, failures, &sum)
	}
	outputID, closeErr := output.close(err)
	errorID, closeErr2 := failures.close(err)
	if err = errors.Join(err, closeErr, closeErr2); err != nil {
		return err
	}
	if err := w.changeBatch(ctx, key, func(r *job.Record) error { return r.Finish(w.id, outputID, errorID, sum.counts, sum.usage, s.now()) }); err != nil {
		return err
	}
	// What remains after a crash here is removed by sweep.
	err = s.results.Clear(ctx, r.Batch.ID+".")
	for _, o := range sum.objects {
		err = errors.Join(err, s.store.DeleteObject(ctx, o.Object))
	}
	if err != nil {
		s.log.Warn("removing the results of a batch failed", "batch", r.Batch.ID, "err", err)
	}
	return nil
}

// totals are sums over the results of a batch.
type totals struct {
	counts  job.Counts
	usage   job.Usage
	objects []result  // those whose line is an object
	lostAt  time.Time // when a missing object is lost
}

// finishChunk appends the results of a chunk to the files.
func (w *worker) finishChunk(ctx context.Context, r *job.Record, chunk int, output, failures *outputFile, sum *totals) error {
	s := w.s
	var results map[int]result
	var err error
	if r.Chunks[chunk].ClaimedBefore { // else it has none
		if results, err = s.chunkResults(ctx, r.Batch.ID, chunk); err != nil {
			return err
		}
	}
	var lines []job.Line
	if len(results) < r.Chunks[chunk].Lines {
		if lines, err = w.inputLines(ctx, r, chunk, sum.lostAt); err != nil {
			return err
		}
	}
	for i := range r.Chunks[chunk].Lines {
		line, done := results[i]
		id := fmt.Sprintf("batch_req_%s-%d-%d", r.Batch.ID, chunk, i)
		var text []byte
		switch {
		case !done:
			o := job.UnfinishedOutput(id, lines[i].CustomID, r.FinalStatus)
			line.Failed, text = true, o.Encode()
		case line.Object == "":
			text = append(line.Line, '\n')
		default:
			sum.objects = append(sum.objects, line)
			text, err = s.readLargeResult(ctx, line, sum.lostAt)
			if !errors.Is(err, store.ErrNotFound) {
				break
			}
			s.log.Warn("a result is lost: its request is written as failed", "batch", r.Batch.ID, "err", err)
			err = nil
			if lines == nil {
				lines, err = w.inputLines(ctx, r, chunk, sum.lostAt)
			}
			if err == nil {
				o := job.LostOutput(id, lines[i].CustomID)
				line.Failed, line.Usage, text = true, nil, o.Encode()
			}
		}
		if err != nil {
			return err
		}
		file := output
		sum.counts.Total++
		if line.Failed {
			file = failures
			sum.counts.Failed++
		} else {
			sum.counts.Completed++
		}
		if line.Usage != nil {
			sum.usage.Add(*line.Usage)
		}
		if err := file.writeFrom(bytes.NewReader(text)); err != nil {
			return err
		}
	}
	return nil
}

// inputLines reads the requests of a chunk. If the input file is lost, they are without their custom_id.
func (w *worker) inputLines(ctx context.Context, r *job.Record, chunk int, lostAt time.Time) ([]job.Line, error) {
	x := &execution{w: w, key: "", batch: r, chunk: chunk}
	lines, err := x.readLines(ctx, lostAt)
	if errors.Is(err, store.ErrNotFound) { // it will not come back, and the results must not wait for it
		w.s.log.Warn("the input file is lost: requests without a result are written without their custom_id", "batch", r.Batch.ID, "err", err)
		return make([]job.Line, r.Chunks[chunk].Lines), nil
	}
	return lines, err
}

// readLargeResult reads the line of a large result. Until lostAt it waits for a missing one, then it returns
// store.ErrNotFound.
func (s *Service) readLargeResult(ctx context.Context, r result, lostAt time.Time) (text []byte, err error) {
	err = s.untilLost(ctx, lostAt, func() (err error) {
		text, err = io.ReadAll(s.store.ReadObject(ctx, r.Object, 0, r.Size))
		return err
	})
	return text, err
}
