// Package openai interprets the request bodies, responses and streams of OpenAI's API, and of
// Anthropic's Messages API. It reads and edits bytes, and does not deal with connections, replicas
// and tenants: lbd/proxy calls it and acts on the results.
//
// endpoint.go lists the endpoints. Read body.go first: ReadCall parses a body once into a Call with
// the model, the bounds and other relevant fields, and Changes lists the balancer's edits. scan.go is
// the underlying JSON reader, ambiguous.go and parameters.go define keys and parameters that a body
// must not contain.
//
// render.go writes a prompt into a prefix.Key in the order in which a chat template renders it.
// Answer (answer.go) extracts data from a forwarded response: usage, end, faults, and the key of
// the prompt with its answer. sse.go splits a stream into events. template.go recognises events
// that differ only in their text, so that they are not parsed again. cachemask.go hides the number
// of cached tokens. counts.go requests the usage so far and hides it.
//
// If the target of a stream fails, another one can continue it: Transcript (transcript.go) keeps
// the text that the client has, ContinuationBody (continue.go) creates the request for the
// remainder, and Splice (splice.go) makes the remainder part of the same stream. prove.go checks that
// an engine continues an answer, restart.go that it does not begin it anew. The stream
// contains no notice for the client, not even a comment, because some clients treat every line as
// data. Comments precede a stream only while a model has no replica (lbd/proxy/earlystream.go).
//
// errors.go contains errors in OpenAI's format, notfound.go interprets an engine's 404.
//
// The Messages API is a second format of the same calls (Endpoint.Messages). messages.go writes its
// prompts into the same keys, with jsonfilter.go for the input of tool calls. messagesanswer.go
// processes its events and messages, messagesmask.go hides the number of cached tokens, and
// messageserror.go contains its errors. Everything else applies to both APIs.
package openai
