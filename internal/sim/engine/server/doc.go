// Package server serves the engine model of internal/sim/engine over HTTP: an OpenAI-compatible server
// that also serves Anthropic's Messages API, with the metrics of vLLM or SGLang, token timing in scaled
// real time, and fault injection. It replaces a GPU where none is needed: in the quickstart, in tests of
// the balancer, in rehearsals.
//
// Read server.go first (the routes), then driver.go (model time and wall time), generate.go (a
// generation request), respond.go (the Responses API), stored.go (stored responses), messages.go and
// messagesrespond.go (the Messages API), body.go and render.go (request bodies), form.go (structured
// outputs), score.go, audio.go and realtime.go (the other endpoints), and fault.go (fault injection).
package server
