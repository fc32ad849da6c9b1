// Package load generates load: it drives an OpenAI-compatible service over HTTP
// with the clients and traces of internal/sim/workload, and reports what came of
// it as a user of the service would have seen it.
//
// A closed loop (RunClosed) issues a client's next requests when the ones
// before were answered; an open loop (Replay) issues a trace's rows at their
// times and never waits for an answer. Both stream, both measure with the
// monotonic clock, and every request ends in exactly one of ok, rejected,
// failed or cancelled.
//
// It shares its machine with what it measures in many setups, so it is light: a
// goroutine a request, kept-alive connections, and events read without decoding
// their JSON.
//
// Read config.go first, then closed.go and replay.go, request.go (one request),
// events.go (its stream), tally.go and report.go (what is made of them).
package load
