// Package engine is a model of an inference engine: one replica with continuous
// batching, chunked prefill, a bounded KV memory and a radix prefix cache. It
// has no clock, no goroutine and no I/O: time is a duration since the engine's
// epoch, handed in by whoever drives it. The simulator drives many of them from
// an event heap; internal/sim/engine/server drives one in scaled real time.
//
// Read engine.go first (what a driver calls), then step.go (what happens when),
// cache.go (prefix reuse) and profile.go (how long things take). parallel.go joins
// several into a data-parallel engine whose ranks wait for each other. token.go and
// speech.go turn text into tokens and make up answers.
package engine
