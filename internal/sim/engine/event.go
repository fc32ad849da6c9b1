package engine

import (
	"fmt"
	"time"
)

// EventKind is the kind of an Event.
type EventKind uint8

// The kinds of event.
const (
	// TokenEmitted: a token was generated. With ReportChanges only the first one of each request is
	// reported.
	TokenEmitted EventKind = iota + 1
	// Finished: the request has generated all its tokens and has left the engine.
	Finished
	// Rejected: the request can never run here; it was not queued.
	Rejected
	// Preempted: memory ran out and the newest request went back to the head of the queue. It keeps its
	// tokens and continues later.
	Preempted
)

func (k EventKind) String() string {
	switch k {
	case TokenEmitted:
		return "token"
	case Finished:
		return "finished"
	case Rejected:
		return "rejected"
	case Preempted:
		return "preempted"
	}
	return fmt.Sprintf("EventKind(%d)", uint8(k))
}

// Reason is why a request finished or was rejected.
type Reason uint8

// The reasons.
const (
	// ReasonStop: the response was complete.
	ReasonStop Reason = iota + 1
	// ReasonLength: the response reached MaxNew, or filled the KV memory.
	ReasonLength
	// ReasonTooLong: the prompt and one token do not fit into the KV memory.
	ReasonTooLong
	// ReasonEmpty: the prompt has no token.
	ReasonEmpty
	// ReasonDuplicate: a request with this ID is in the engine already.
	ReasonDuplicate
)

func (r Reason) String() string {
	switch r {
	case ReasonStop:
		return "stop"
	case ReasonLength:
		return "length"
	case ReasonTooLong:
		return "too long"
	case ReasonEmpty:
		return "empty prompt"
	case ReasonDuplicate:
		return "duplicate id"
	}
	return fmt.Sprintf("Reason(%d)", uint8(r))
}

// Event is an event of one request.
type Event struct {
	At   time.Duration // since the engine's epoch; non-decreasing
	ID   uint64
	Kind EventKind

	// Reason is set on Finished and Rejected, and on the TokenEmitted of the last token.
	Reason Reason
	// Token, Text and Index are set on TokenEmitted. Index counts from 0; Text is empty if the request
	// has its own Output.
	Token Token
	Text  string
	Index int

	PromptTokens int // the length of the prompt
	CachedTokens int // prompt tokens that were cached when the request was first admitted
	OutputTokens int // emitted so far, including this one
}

// First reports whether a TokenEmitted event is the request's first token.
func (e Event) First() bool { return e.Kind == TokenEmitted && e.Index == 0 }
