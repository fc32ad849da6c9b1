package proxy

import "time"

// Limits are the limits of everything that a balancer stores or waits for. A zero field means the
// default of DefaultLimits.
type Limits struct {
	// MaxBody is the maximum size of a request body in bytes; a larger one gets 413.
	MaxBody int64
	// Memory is how many bytes requests and responses may use: bodies from their first byte until no
	// retry is possible, responses and the text of streams that are buffered for a retry, and what
	// HTTP/2 may buffer of bodies being received. Beyond it a request gets 503. TenantMemory is how
	// much of it one tenant may use; beyond it a request gets 429. Requests without a tenant are
	// limited by Memory alone.
	Memory       int64
	TenantMemory int64
	// StreamWindow is how many bytes of a body HTTP/2 receives before they are read.
	StreamWindow int
	// BodyTimeout is how long a client may take to send a request body; after that it gets 408.
	BodyTimeout time.Duration
	// FirstByteTimeout is the timeout for the first byte of a streamed response, IdleTimeout for the next
	// piece of any response, ResponseTimeout for the first byte of a response that is not streamed.
	FirstByteTimeout time.Duration
	IdleTimeout      time.Duration
	ResponseTimeout  time.Duration
	// SilenceTimeout is how long a replica may answer no probe and generate no token. After that its requests
	// are stopped and retried at other replicas.
	SilenceTimeout time.Duration
	// StallTimeout is how long a client may read nothing of its response. After that it is disconnected and
	// its request stops at the engine.
	StallTimeout time.Duration
	// MaxEvent is the maximum size in bytes of an SSE event that is buffered until it is complete. A
	// longer event is forwarded in pieces and not parsed.
	MaxEvent int
	// MaxBufferedResponse is the maximum size in bytes of a non-streamed response that is buffered until it
	// is complete. A longer one can no longer be retried.
	MaxBufferedResponse int
	// MaxKeyedResponse is how many bytes of a response enter the prefix key.
	MaxKeyedResponse int
	// MaxContinuedText is how many bytes of a stream's text are kept, so that another replica can
	// continue it. MaxContinuedBody is the largest request whose body is kept for that beyond the
	// first byte of the response.
	MaxContinuedText int
	MaxContinuedBody int
	// MaxStoredResponses is how many stored responses' holders are remembered.
	MaxStoredResponses int
	// MaxLookups is how many lookups of stored responses at the peers may run concurrently, MaxTenantLookups
	// how many of one tenant, and LookupTimeout the timeout of one. MaxMisses is how many responses
	// that no peer holds are remembered, and MissTTL for how long.
	MaxLookups       int
	MaxTenantLookups int
	LookupTimeout    time.Duration
	MaxMisses        int
	MissTTL          time.Duration
	// MaxDecisions is how many requests' decisions are remembered.
	MaxDecisions int
	// HistoryMinutes is how many minutes of points are remembered.
	HistoryMinutes int
	// RecordBuffer is how many steps may be queued for the record.
	RecordBuffer int
	// SubscriberBuffer is how many decisions may be queued for one subscriber.
	SubscriberBuffer int
}

// DefaultLimits returns the defaults of all limits, each with its reason.
func DefaultLimits() Limits {
	return Limits{
		MaxBody:      16 << 20,  // a 4 M-token text, or a dozen inlined images
		Memory:       1 << 30,   // half of what a balancer may use by default (service.Memory): 64 of the largest bodies, or 250,000 prompts of 1,000 tokens
		TenantMemory: 256 << 20, // a quarter: four tenants that upload all they can do not block others
		StreamWindow: 256 << 10, // 20 Mbit/s over 100 ms; net/http's own is four times as much

		BodyTimeout:      2 * time.Minute,   // MaxBody at 1 Mbit/s
		FirstByteTimeout: 120 * time.Second, // a full engine queue and a long prefill; after that another replica is more likely to respond
		IdleTimeout:      60 * time.Second,  // no engine pauses that long between tokens, not even under preemption
		ResponseTimeout:  10 * time.Minute,  // nothing arrives before the last token: 16,000 tokens at 27 per second
		SilenceTimeout:   5 * time.Second,   // five probes at one per second: its host has vanished, as spot VMs do
		StallTimeout:     30 * time.Second,  // the connection's own buffers hold minutes of text before that

		MaxEvent:            1 << 20, // inlined audio; a token is 300 bytes
		MaxBufferedResponse: 1 << 20, // 50 times a long response
		MaxKeyedResponse:    1 << 18, // 64,000 tokens, longer than any response of an engine

		MaxContinuedText: 1 << 18, // as MaxKeyedResponse
		MaxContinuedBody: 1 << 20, // a prompt of 250,000 tokens; larger bodies are images, and few

		MaxStoredResponses: 1 << 16,         // 16 MB; engines hold fewer, or forget them at a restart
		MaxLookups:         64,              // each takes a round trip to every peer: several hundred per second
		MaxTenantLookups:   16,              // a quarter: four tenants that send only lookups do not block others
		LookupTimeout:      time.Second,     // three times halfway round the world and back
		MaxMisses:          4096,            // 1 MB
		MissTTL:            2 * time.Second, // of a polling client every other lookup reaches the peers; a peer that was unreachable is asked again soon
		MaxDecisions:       4096,
		HistoryMinutes:     8 * 24 * 60, // a week, the longest season that forecasts use, and a day
		RecordBuffer:       8192,        // a second of full traffic while a disk stalls
		SubscriberBuffer:   256,         // what a terminal redraws in a second
	}
}

// orDefault sets the zero fields to their defaults.
func (l Limits) orDefault() Limits {
	d := DefaultLimits()
	setDefault(&l.MaxBody, d.MaxBody)
	setDefault(&l.Memory, d.Memory)
	setDefault(&l.TenantMemory, d.TenantMemory)
	setDefault(&l.StreamWindow, d.StreamWindow)
	setDefault(&l.BodyTimeout, d.BodyTimeout)
	setDefault(&l.FirstByteTimeout, d.FirstByteTimeout)
	setDefault(&l.IdleTimeout, d.IdleTimeout)
	setDefault(&l.ResponseTimeout, d.ResponseTimeout)
	setDefault(&l.SilenceTimeout, d.SilenceTimeout)
	setDefault(&l.StallTimeout, d.StallTimeout)
	setDefault(&l.MaxEvent, d.MaxEvent)
	setDefault(&l.MaxBufferedResponse, d.MaxBufferedResponse)
	setDefault(&l.MaxKeyedResponse, d.MaxKeyedResponse)
	setDefault(&l.MaxContinuedText, d.MaxContinuedText)
	setDefault(&l.MaxContinuedBody, d.MaxContinuedBody)
	setDefault(&l.MaxStoredResponses, d.MaxStoredResponses)
	setDefault(&l.MaxLookups, d.MaxLookups)
	setDefault(&l.MaxTenantLookups, d.MaxTenantLookups)
	setDefault(&l.LookupTimeout, d.LookupTimeout)
	setDefault(&l.MaxMisses, d.MaxMisses)
	setDefault(&l.MissTTL, d.MissTTL)
	setDefault(&l.MaxDecisions, d.MaxDecisions)
	setDefault(&l.HistoryMinutes, d.HistoryMinutes)
	setDefault(&l.RecordBuffer, d.RecordBuffer)
	setDefault(&l.SubscriberBuffer, d.SubscriberBuffer)
	return l
}

func setDefault[T comparable](field *T, with T) {
	var zero T
	if *field == zero {
		*field = with
	}
}
