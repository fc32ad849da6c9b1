package proxy

import "time"

// Limits bounds everything that a balancer holds or waits for. A zero field
// takes the default that DefaultLimits gives it.
type Limits struct {
	// MaxBody is the largest request body in bytes; a larger one is answered 413.
	MaxBody int64
	// Memory is how many bytes requests and answers may take: bodies from their first byte
	// until nothing can be tried again, answers and the text of streams that are kept for
	// another try, and what HTTP/2 may hold of bodies that are on their way. More is
	// answered 503. TenantMemory is how much of it one tenant may have; more is answered
	// 429. Requests without a tenant are bounded by Memory alone.
	Memory       int64
	TenantMemory int64
	// StreamWindow is how many bytes of a body HTTP/2 takes in before they are read.
	StreamWindow int
	// Body is how long a client may take to send its request's body; then it is
	// answered 408.
	Body time.Duration
	// FirstByte is how long a target may take to its first byte of a streamed
	// answer, Idle how long between two pieces of any answer, Answer how long to
	// the first byte of an answer that is not streamed.
	FirstByte time.Duration
	Idle      time.Duration
	Answer    time.Duration
	// Silent is how long a replica may answer no probe and generate no token; then
	// what it has is given up and tried elsewhere.
	Silent time.Duration
	// Stall is how long a client may take nothing of its answer; then it is cut off
	// and its request stops at the engine.
	Stall time.Duration
	// MaxEvent is the most bytes of one SSE event that are held until it is
	// complete; a longer event is passed on in pieces and not looked into.
	MaxEvent int
	// MaxHeldAnswer is the most bytes of an answer that is not streamed that are
	// held back until it is complete; a longer one can no longer be retried.
	MaxHeldAnswer int
	// MaxKeyedAnswer is the most bytes of an answer that enter the prefix key.
	MaxKeyedAnswer int
	// MaxContinuedText is the most bytes of a stream's text that are kept, so that
	// another replica can go on with it, and MaxContinuedBody the largest request
	// whose body is kept for that beyond the first byte of its answer.
	MaxContinuedText int
	MaxContinuedBody int
	// Responses is how many stored responses' holders are remembered.
	Responses int
	// Lookups is how many questions to the peers about who holds a response may be
	// under way at once, TenantLookups how many of one tenant, and LookupWait how long
	// the peers may take to answer one. Misses is how many
	// responses are remembered that no peer held, and Miss for how long.
	Lookups       int
	TenantLookups int
	LookupWait    time.Duration
	Misses        int
	Miss          time.Duration
	// Decisions is how many requests' decisions are remembered.
	Decisions int
	// HistoryMinutes is how many minutes of points are remembered.
	HistoryMinutes int
	// RecordBuffer is how many steps may wait to be written to the record.
	RecordBuffer int
	// SubscriberBuffer is how many decisions may wait for one subscriber.
	SubscriberBuffer int
}

// DefaultLimits is the one table of the proxy's bounds.
func DefaultLimits() Limits {
	return Limits{
		MaxBody:      16 << 20,  // a 4 M-token text, or a dozen inlined images
		Memory:       1 << 30,   // half of what a balancer may take by default (service.Memory): 64 of the largest bodies, or 250,000 prompts of 1,000 tokens
		TenantMemory: 256 << 20, // a quarter: four tenants that upload all they can leave nobody out
		StreamWindow: 256 << 10, // 20 Mbit/s over 100 ms; net/http's own is four times as much

		Body:      2 * time.Minute,   // MaxBody at 1 Mbit/s
		FirstByte: 120 * time.Second, // a full engine queue and a long prefill; then another replica is the better bet
		Idle:      60 * time.Second,  // no engine pauses that long between tokens, not even under preemption
		Answer:    10 * time.Minute,  // nothing comes before the last token: 16,000 tokens at 27 a second
		Silent:    5 * time.Second,   // five probes of a second: its host is gone, as spot ones go
		Stall:     30 * time.Second,  // the connection's own buffers hold minutes of text before that

		MaxEvent:       1 << 20, // inlined audio; a token is 300 bytes
		MaxHeldAnswer:  1 << 20, // 50 times a long answer
		MaxKeyedAnswer: 1 << 18, // 64,000 tokens, longer than any engine's answer

		MaxContinuedText: 1 << 18, // as MaxKeyedAnswer
		MaxContinuedBody: 1 << 20, // a prompt of 250,000 tokens; larger bodies are images, and few

		Responses:        1 << 16,         // 16 MB; engines hold fewer, or forget them at a restart
		Lookups:          64,              // each takes a round trip to every peer: some hundred a second
		TenantLookups:    16,              // a quarter: four tenants that only ask leave nobody out
		LookupWait:       time.Second,     // half a world away and back, thrice
		Misses:           4096,            // 1 MB
		Miss:             2 * time.Second, // a client that polls has peers asked every other time; a peer that was away is asked again soon
		Decisions:        4096,
		HistoryMinutes:   8 * 24 * 60, // a week, the longest season that forecasts know, and a day
		RecordBuffer:     8192,        // a second of full traffic while a disk stalls
		SubscriberBuffer: 256,         // what a terminal redraws in a second
	}
}

// orDefault fills the zero fields in.
func (l Limits) orDefault() Limits {
	d := DefaultLimits()
	fill(&l.MaxBody, d.MaxBody)
	fill(&l.Memory, d.Memory)
	fill(&l.TenantMemory, d.TenantMemory)
	fill(&l.StreamWindow, d.StreamWindow)
	fill(&l.Body, d.Body)
	fill(&l.FirstByte, d.FirstByte)
	fill(&l.Idle, d.Idle)
	fill(&l.Answer, d.Answer)
	fill(&l.Silent, d.Silent)
	fill(&l.Stall, d.Stall)
	fill(&l.MaxEvent, d.MaxEvent)
	fill(&l.MaxHeldAnswer, d.MaxHeldAnswer)
	fill(&l.MaxKeyedAnswer, d.MaxKeyedAnswer)
	fill(&l.MaxContinuedText, d.MaxContinuedText)
	fill(&l.MaxContinuedBody, d.MaxContinuedBody)
	fill(&l.Responses, d.Responses)
	fill(&l.Lookups, d.Lookups)
	fill(&l.TenantLookups, d.TenantLookups)
	fill(&l.LookupWait, d.LookupWait)
	fill(&l.Misses, d.Misses)
	fill(&l.Miss, d.Miss)
	fill(&l.Decisions, d.Decisions)
	fill(&l.HistoryMinutes, d.HistoryMinutes)
	fill(&l.RecordBuffer, d.RecordBuffer)
	fill(&l.SubscriberBuffer, d.SubscriberBuffer)
	return l
}

func fill[T comparable](field *T, with T) {
	var zero T
	if *field == zero {
		*field = with
	}
}
