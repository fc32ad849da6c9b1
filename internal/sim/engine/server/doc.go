// Package server puts the engine model of internal/sim/engine behind HTTP: an
// OpenAI-compatible server with the metrics of vLLM or SGLang, token timing in
// scaled real time, and faults on demand. It stands in for a GPU wherever one
// is not needed: the quickstart, the tests of the balancer, a rehearsal.
//
// Read server.go first (what runs), then driver.go (how model time and wall
// time meet), generate.go (the life of a request), respond.go (the same for the Responses API), kept.go (what it keeps), body.go and render.go (what
// clients may send), form.go (answers that are forced into a form),
// and fault.go (what can be made to go wrong).
package server
