package batch

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"time"

	"skyserve/lbd/batch/job"
)

// sweep removes expired files that no open batch reads, results of batches that have ended, and heartbeats of dead workers.
func (s *Service) sweep(ctx context.Context) error {
	files, err := s.records.List(ctx, "file.")
	if err != nil {
		return err
	}
	_, inputs, err := s.openBatchIDs(ctx)
	if err != nil {
		return err
	}
	for _, e := range files {
		var f fileRecord
		if json.Unmarshal(e.Value, &f) == nil && f.expired(s.now()) && !inputs[f.File.ID] {
			if err := s.removeFile(ctx, &f); err != nil {
				return err
			}
		}
	}
	return errors.Join(s.sweepResults(ctx), s.sweepObjects(ctx), s.sweepWorkers(ctx))
}

// orphanAge is the age at which an object without a record is no longer an upload in progress.
const orphanAge = 24 * time.Hour

// sweepObjects removes uploads, output files and large results that a balancer began and did not complete before it died.
func (s *Service) sweepObjects(ctx context.Context) error {
	return s.store.SweepObjects(ctx, sweepInterval, func(names []string) (orphans []string, err error) {
		// The records are read after the names, so that the record of every complete object is seen.
		records, err := s.records.Keys(ctx, "file.")
		if err != nil {
			return nil, err
		}
		open, _, err := s.openBatchIDs(ctx)
		if err != nil {
			return nil, err
		}
		files := map[string]bool{}
		for _, e := range records {
			files[e.Key[strings.LastIndexByte(e.Key, '.')+1:]] = true
		}
		for _, name := range names {
			batch, _, isResult := strings.Cut(name, resultInfix)
			switch {
			case isResult && !open[batch],
				validID("file-", name) && !files[name] && s.now().Sub(idTime("file-", name)) >= orphanAge:
				orphans = append(orphans, name)
			}
		}
		return orphans, nil
	})
}

// openBatchIDs returns the ids of the batches that have not ended, and of their input files.
func (s *Service) openBatchIDs(ctx context.Context) (open, inputs map[string]bool, err error) {
	batches, err := s.records.List(ctx, "batch.")
	open, inputs = map[string]bool{}, map[string]bool{}
	for _, e := range batches {
		var r job.Record
		if json.Unmarshal(e.Value, &r) != nil || !r.Batch.Status.Final() {
			open[e.Key[strings.LastIndexByte(e.Key, '.')+1:]] = true
			inputs[r.Batch.InputFileID] = true
		}
	}
	return open, inputs, err
}

// sweepResults removes the results of batches that have ended: those that a worker recorded too late.
func (s *Service) sweepResults(ctx context.Context) error {
	keys, err := s.results.Keys(ctx, "")
	if err != nil {
		return err
	}
	// After the keys: a batch with results was created before them.
	retain, _, err := s.openBatchIDs(ctx)
	if err != nil {
		return err
	}
	for _, e := range keys {
		id, _, _ := strings.Cut(e.Key, ".")
		if retain[id] {
			continue
		}
		retain[id] = true // it is cleared once
		if err := s.results.Clear(ctx, id+"."); err != nil {
			return err
		}
	}
	return nil
}

// sweepWorkers removes the heartbeats of workers that died.
func (s *Service) sweepWorkers(ctx context.Context) error {
	w, now := s.worker, s.now()
	var dead []string
	w.mu.Lock()
	for id, last := range w.heartbeatAt {
		if now.Sub(last) > 10*deadAfter*s.opts.heartbeat {
			dead = append(dead, id)
			delete(w.heartbeatAt, id)
		}
	}
	w.mu.Unlock()
	for _, id := range dead {
		if err := s.records.Delete(ctx, workerPrefix+id); err != nil {
			return err
		}
	}
	return nil
}
