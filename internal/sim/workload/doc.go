// Package workload generates the requests of an LLM service's clients: closed-loop clients (trees of
// thoughts, conversations) and request traces in public formats. The load generator sends them over
// HTTP in real time, the simulator in virtual time; both get the same requests from the same seed.
//
// It is pure: a client is a state machine that returns the next requests when a request has ended, and
// a trace is read from an io.Reader row by row. The package opens no files, reads no clock and starts
// no goroutines.
//
// Read request.go first, then kinds.go (the generators: tree.go, chat.go, batch.go) and trace.go (the
// readers: csv.go, jsonl.go, rates.go).
package workload
