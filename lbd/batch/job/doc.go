// Package job contains the rules of batches: OpenAI's objects, the states of a batch, the validation of
// its lines, the claims of balancers on parts of it, and the order in which batches are served. It is
// pure: callers pass the time and store the results.
//
// Read object.go first (what clients see), then record.go (what is stored, and every change of it),
// lines.go (JSONL) and schedule.go (whose batch is next).
package job
