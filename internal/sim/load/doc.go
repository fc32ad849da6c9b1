// Package load generates load: it sends the clients and traces of internal/sim/workload to an
// OpenAI-compatible service over HTTP, and reports the results as seen by a client of the service.
//
// A closed loop (RunClosed) issues a client's next requests after the responses to the previous ones;
// an open loop (Replay) issues a trace's rows at their times and never waits for a response. Both
// stream and measure with the monotonic clock, and every request ends in exactly one of ok, rejected,
// failed or cancelled.
//
// The generator often shares its machine with the measured service, so it is light: one goroutine per
// request, kept-alive connections, and events read without decoding their JSON.
//
// Read config.go first, then closed.go and replay.go, request.go (one request), events.go (its stream),
// tally.go and report.go (the results).
package load
