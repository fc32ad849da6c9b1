package batch

import (
	"cmp"
	"context"
	"net/http"
	"slices"

	"skyserve/lbd/batch/job"
)

// TokenPrice is the price of a model in USD per token.
type TokenPrice = job.TokenPrice

// OpenBatch is a batch that has not ended.
type OpenBatch struct {
	job.EstimateInput
	Estimate job.Estimate
	// Backlog is the prompt of the requests without a result, by model.
	Backlog []job.Backlog
}

// OpenBatches returns the batches that have not ended, as known to this balancer, the earliest deadline first. Their
// chunks must not be changed.
func (s *Service) OpenBatches() []OpenBatch {
	open, estimates, backlogs := s.estimateOpen(nil)
	all := make([]OpenBatch, len(open))
	for i := range open {
		all[i] = OpenBatch{open[i], estimates[i], backlogs[i]}
	}
	slices.SortFunc(all, func(a, b OpenBatch) int {
		return cmp.Or(a.Deadline().Compare(b.Deadline()), cmp.Compare(a.Batch.ID, b.Batch.ID))
	})
	return all
}

// estimateOpen estimates the open batches. own replaces the batch of its id or is added to them; nil = none.
func (s *Service) estimateOpen(own *job.Record) (open []job.EstimateInput, estimates []job.Estimate, backlogs [][]job.Backlog) {
	w, now := s.worker, s.now()
	w.mu.Lock()
	defer w.mu.Unlock()
	add := func(r *job.Record, rate *job.RateMeter) {
		o := job.EstimateInput{Record: *r}
		if rate != nil {
			o.RequestsPerSecond = rate.PerSecond(now, done(r))
		}
		open = append(open, o)
	}
	for key, r := range w.open {
		if own == nil || r.Batch.ID != own.Batch.ID {
			add(&r.Record, w.rates[key])
		}
	}
	if own != nil {
		add(own, w.rates[batchKey(own.Tenant, own.Batch.ID)])
	}
	return open, job.EstimateBatches(open, &w.past, now, s.opts.Price), job.BacklogOf(open, &w.past)
}

// setEstimate sets the headers with the estimate of a batch that has not ended, and with what it waits for.
func (s *Service) setEstimate(w http.ResponseWriter, r *job.Record) {
	if r.Batch.Status.Final() {
		return
	}
	_, estimates, _ := s.estimateOpen(r)
	if text := estimates[len(estimates)-1].Header(); text != "" {
		w.Header().Set(job.HeaderEstimate, text)
	}
	if wait := r.Wait(s.now()); wait != nil {
		w.Header().Set(job.HeaderWait, wait.Header())
	}
}

// firstLoad returns the load of an input that is not validated yet: all of its lines request the model of the
// first one. It is nil if that is unknown.
func (s *Service) firstLoad(ctx context.Context, f *fileRecord, endpoint string) []job.ModelInput {
	if f.Lines == 0 {
		return nil
	}
	in := job.NewReader(s.store.ReadObject(ctx, f.File.ID, 0, f.File.Bytes), endpoint, s.limits, nil)
	line, err := in.Next()
	if err != nil { // the validation reports it
		return nil
	}
	return []job.ModelInput{{Model: line.Model, Requests: min(f.Lines, s.limits.Requests), Bytes: f.File.Bytes}}
}
