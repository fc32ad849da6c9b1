// Package workload says what the clients of an LLM service ask for: closed-loop
// clients (trees of thoughts, conversations) and request traces read from the
// public formats. The load generator drives it with real time over HTTP, the
// simulator with virtual time; both get the same requests from the same seed.
//
// It is pure: a client is a state machine that is told which request ended and
// answers with the requests to issue next, and a trace is read from an
// io.Reader row by row. Nothing here opens a file, reads a clock or starts a
// goroutine.
//
// Read request.go first, then kinds.go (the generators: tree.go, chat.go, batch.go) and
// trace.go (the readers: csv.go, jsonl.go, rates.go).
package workload
