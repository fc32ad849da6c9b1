// Package openai says what a request body, an answer and a stream of OpenAI's API mean. It
// reads and edits bytes and knows nothing of connections, replicas and tenants: lbd/proxy
// asks it, and acts.
//
// Read body.go first: ReadCall reads a body once into a Call, which tells the model, the
// bounds and what else matters, and Changes lists what the balancer edits in it. scan.go is
// the JSON reader below it, ambiguous.go and parameters.go are what a body must not have.
//
// render.go writes a prompt into a prefix.Key in the order in which a chat template renders
// it. Answer (answer.go) learns from an answer as it passes: usage, end, faults, and the key
// of the prompt with its answer. sse.go finds the events of a stream; template.go skips the
// second reading of events that differ in their text only. cachemask.go hides what was
// cached, counts.go asks for the usage so far and hides it.
//
// A stream whose target fails can be continued by another one: Transcript (transcript.go)
// keeps what the client has, ContinuationBody (continue.go) is the request for the rest, and
// Splice (splice.go) makes the rest look like the same stream. Nothing in the stream tells
// the client: some clients take every line for data, so not even a comment is added.
//
// errors.go is the error in OpenAI's shape, notfound.go reads an engine's 404.
package openai
