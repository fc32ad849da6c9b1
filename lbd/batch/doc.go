// Package batch serves OpenAI's Files and Batches APIs and executes batches. Files and the state of
// batches live in the service's store, so every balancer answers for every batch, and any of them may
// execute a part of it: a batch is divided into chunks of consecutive lines, and the worker of a balancer
// claims a chunk in the store before it sends the requests of it. The rules are in lbd/batch/job.
//
// Read service.go first, then files.go and batches.go (the API), worker.go (what a balancer does for all
// batches), chunk.go (sending requests and recording results), finish.go (validation, output files) and sweep.go (removal
// of expired files and of what crashes left behind).
package batch
