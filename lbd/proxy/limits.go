package proxy

import "time"

// Limits are the limits of everything that a balancer stores or waits for. A zero field means the
// default of DefaultLimits.
type Limits struct {
	// MaxBody is the maximum size of a request body in bytes; a larger one is rejected with 413.
	MaxBody int64
	// MaxForm is the same for a form with a file (multipart/form-data).
	MaxForm int64
	// Memory is the maximum number of bytes for requests and responses: bodies from their first byte
	// until no retry is possible, responses and the text of streams that are buffered for a retry,
	// and the buffers of HTTP/2 for bodies being received. Beyond it, a request is rejected with
	// 503. TenantMemory is the maximum for one tenant; beyond it, a request is rejected with 429.
	// Requests without a tenant are limited only by Memory.
	Memory       int64
	TenantMemory int64
	// StreamWindow is the maximum number of bytes of a body that HTTP/2 receives before they are
	// read.
	StreamWindow int
	// BodyTimeout is the timeout for receiving a request body; after that the request is rejected
	// with 408.
	BodyTimeout time.Duration
	// FirstByteTimeout is the timeout for the first byte of a streamed response, IdleTimeout for the next
	// piece of any response, ResponseTimeout for the first byte of a response that is not streamed.
	FirstByteTimeout time.Duration
	IdleTimeout      time.Duration
	ResponseTimeout  time.Duration
	// SocketIdleTimeout is the maximum time without a byte in either direction of a WebSocket. After that
	// it is closed.
	SocketIdleTimeout time.Duration
	// SilenceTimeout is the maximum time without a response to a probe and without a token from a replica.
	// After that its requests are stopped and retried at other replicas.
	SilenceTimeout time.Duration
	// StallTimeout is the maximum time during which a client reads nothing of its response. After that it is
	// disconnected and its request is stopped at the engine.
	StallTimeout time.Duration
	// HeartbeatDelay is the time for which a streamed request waits for a replica to start before its
	// client receives a comment, and HeartbeatInterval the time between two comments.
	HeartbeatDelay    time.Duration
	HeartbeatInterval time.Duration
	// MaxEvent is the maximum size in bytes of an SSE event that is buffered until it is complete. A
	// longer event is forwarded in pieces and not parsed.
	MaxEvent int
	// MaxBufferedResponse is the maximum size in bytes of a non-streamed response that is buffered until it
	// is complete. A longer one can no longer be retried.
	MaxBufferedResponse int
	// MaxKeyedResponse is the maximum number of bytes of a response that are added to the prefix key
	// (prefix.Key: the hashes by which core finds a prompt in the caches of engines).
	MaxKeyedResponse int
	// MaxContinuedText is the maximum number of bytes of a stream's text that are kept, so that
	// another replica can continue it. MaxContinuedBody is the maximum size of a request body that
	// is kept for that beyond the first byte of the response.
	MaxContinuedText int
	MaxContinuedBody int
	// MaxStoredResponses is the maximum number of stored responses whose holders are remembered.
	MaxStoredResponses int
	// MaxLookups is the maximum number of concurrent lookups of stored responses at the peers,
	// MaxTenantLookups the maximum for one tenant, and LookupTimeout the timeout of a lookup. MaxMisses is
	// the maximum number of remembered responses that no peer holds, and MissTTL is the time for which they
	// are remembered.
	MaxLookups       int
	MaxTenantLookups int
	LookupTimeout    time.Duration
	MaxMisses        int
	MissTTL          time.Duration
	// MaxDecisions is the maximum number of stored request records: requests with the decisions about them.
	MaxDecisions int
	// HistoryMinutes is the number of minutes whose points (telemetry.Point: requests and tokens by model and
	// tier) are kept in memory.
	HistoryMinutes int
	// RecordBuffer is the maximum number of steps queued for the record.
	RecordBuffer int
	// SubscriberBuffer is the maximum number of request records queued for one subscriber.
	SubscriberBuffer int
}

// DefaultLimits returns the defaults of all limits, each with its reason.
func DefaultLimits() Limits {
	return Limits{
		MaxBody:      16 << 20,        // a 4 M-token text, or a dozen inlined images
		MaxForm:      25<<20 + 64<<10, // an audio file of 25 MiB, the limit of OpenAI and of vLLM, and its fields; a buffer for it fits service.MinTenantMemory
		Memory:       1 << 30,         // half of a balancer's default memory (service.Memory): 64 bodies of MaxBody, or 250,000 prompts of 1,000 tokens
		TenantMemory: 256 << 20,       // a quarter: three tenants at their limit do not block others
		StreamWindow: 256 << 10,       // 20 Mbit/s over 100 ms; net/http's default is four times as much

		BodyTimeout:       2 * time.Minute,   // MaxBody at 1 Mbit/s
		FirstByteTimeout:  120 * time.Second, // a full engine queue and a long prefill; after that another replica is more likely to respond
		IdleTimeout:       60 * time.Second,  // longer than any gap between tokens, even under preemption
		ResponseTimeout:   10 * time.Minute,  // nothing arrives before the last token: 16,000 tokens at 27 per second
		SocketIdleTimeout: 5 * time.Minute,   // engines send a ping every 20 seconds, so one of both sides has disappeared
		SilenceTimeout:    5 * time.Second,   // five probes at one per second: the host has disappeared, like an interrupted spot VM
		StallTimeout:      30 * time.Second,  // starts when the connection's buffers, which hold minutes of text, are full

		HeartbeatDelay:    5 * time.Second,  // most clients wait longer for a header, and a reclaimed replica is ready by then
		HeartbeatInterval: 10 * time.Second, // a sixth of the shortest idle timeout of common proxies, 60 s

		MaxEvent:            1 << 20, // inlined audio; an event with a token has 300 bytes
		MaxBufferedResponse: 1 << 20, // 50 times a long response
		MaxKeyedResponse:    1 << 18, // 64,000 tokens, longer than any response of an engine

		MaxContinuedText: 1 << 18, // as MaxKeyedResponse
		MaxContinuedBody: 1 << 20, // a prompt of 250,000 tokens; larger bodies contain images, and are rare

		MaxStoredResponses: 1 << 16,         // 16 MB; engines store fewer, or lose them at a restart
		MaxLookups:         64,              // each needs a round trip to every peer: several hundred per second
		MaxTenantLookups:   16,              // a quarter: three tenants at their limit do not block others
		LookupTimeout:      time.Second,     // three round trips of half a world
		MaxMisses:          4096,            // 1 MB
		MissTTL:            2 * time.Second, // a client that polls each second causes a lookup every 2 seconds; a peer that was unreachable is queried again soon
		MaxDecisions:       4096,            // those of 7 minutes at 10 requests per second
		HistoryMinutes:     8 * 24 * 60,     // a week, the longest season that forecasts use, and a day
		RecordBuffer:       8192,            // one second of full traffic while a disk stalls
		SubscriberBuffer:   256,             // the number that a terminal shows per second
	}
}

// orDefault sets the zero fields to their defaults.
func (l Limits) orDefault() Limits {
	d := DefaultLimits()
	setDefault(&l.MaxBody, d.MaxBody)
	setDefault(&l.MaxForm, d.MaxForm)
	setDefault(&l.Memory, d.Memory)
	setDefault(&l.TenantMemory, d.TenantMemory)
	setDefault(&l.StreamWindow, d.StreamWindow)
	setDefault(&l.BodyTimeout, d.BodyTimeout)
	setDefault(&l.FirstByteTimeout, d.FirstByteTimeout)
	setDefault(&l.IdleTimeout, d.IdleTimeout)
	setDefault(&l.ResponseTimeout, d.ResponseTimeout)
	setDefault(&l.SocketIdleTimeout, d.SocketIdleTimeout)
	setDefault(&l.SilenceTimeout, d.SilenceTimeout)
	setDefault(&l.StallTimeout, d.StallTimeout)
	setDefault(&l.HeartbeatDelay, d.HeartbeatDelay)
	setDefault(&l.HeartbeatInterval, d.HeartbeatInterval)
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
