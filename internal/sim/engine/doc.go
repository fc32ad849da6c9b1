// Package engine simulates an inference engine: one replica with continuous batching, chunked prefill,
// limited KV memory and a radix prefix cache. It has no clock, no goroutines and no I/O: times are
// durations since the engine's epoch, passed in by its driver. The simulator drives many engines from
// an event queue; internal/sim/engine/server drives one in scaled real time.
//
// Read engine.go first (the driver's API), then step.go (the scheduler), cache.go (prefix reuse) and
// profile.go (step times). parallel.go combines several engines into a data-parallel one whose ranks
// synchronise at every step. token.go and speech.go tokenise text and generate responses.
package engine
