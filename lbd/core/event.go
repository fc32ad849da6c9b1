package core

import (
	"time"

	"skyserve/internal/service"
	"skyserve/lbd/policy"
	"skyserve/lbd/prefix"
)

// EventKind is the type of an event.
type EventKind string

// Event kinds, with the fields of Event that each of them uses.
const (
	EventArrived          EventKind = "arrived"          // Request
	EventFirstToken       EventKind = "first_token"      // ID
	EventProgress         EventKind = "progress"         // Target, Tokens: the tokens generated there since its last progress event
	EventFinished         EventKind = "finished"         // ID, Outcome
	EventFailed           EventKind = "failed"           // ID, Outcome
	EventCancelled        EventKind = "cancelled"        // ID, Outcome: the generated tokens; nil = not counted
	EventBounced          EventKind = "bounced"          // ID, Outcome (only Kills is used; may be nil): the peer that received the request returned it
	EventReplicaAdded     EventKind = "replica_added"    // Replica
	EventReplicaRemoved   EventKind = "replica_removed"  // Target
	EventReplicaDraining  EventKind = "replica_draining" // Target
	EventReplicaReport    EventKind = "replica_report"   // Target, Report
	EventReplicaNames     EventKind = "replica_names"    // Target, Names: the names of models and adapters that the replica serves; none = unknown
	EventPeerAdded        EventKind = "peer_added"       // Peer
	EventPeerRemoved      EventKind = "peer_removed"     // Target
	EventPeerReport       EventKind = "peer_report"      // Target, PeerReport
	EventPeerCacheUpdates EventKind = "peer_learned"     // Target, CacheUpdates: cache updates from a peer
	EventCacheChanged     EventKind = "cache_changed"    // Target, CacheChanges: a replica's engine reports changes of its cache
	EventTick             EventKind = "tick"             // no fields: the time has advanced
)

// Event is one input of Step. Kind determines which fields are used. Step retains no pointers to
// them, except to the keys (Request.Prompt, Outcome.Key, CacheUpdate.Key, CacheChange.Key), which must not change
// afterwards.
type Event struct {
	Kind         EventKind     `json:"kind"`
	ID           string        `json:"id,omitempty"`     // request
	Target       string        `json:"target,omitempty"` // replica or peer
	Request      *Request      `json:"request,omitempty"`
	Outcome      *Outcome      `json:"outcome,omitempty"`
	Replica      *ReplicaInfo  `json:"replica,omitempty"`
	Report       *ProbeReport  `json:"report,omitempty"`
	Peer         *PeerInfo     `json:"peer,omitempty"`
	PeerReport   *PeerReport   `json:"peer_report,omitempty"`
	CacheUpdates []CacheUpdate `json:"learned,omitempty"`
	CacheChanges []CacheChange `json:"cache_changes,omitempty"`
	Tokens       int           `json:"tokens,omitempty"`
	Names        []string      `json:"names,omitempty"`
}

// Hop records how a request was forwarded so far.
type Hop string

// A request may cross to another region once, and move to another balancer once inside each region,
// so no path can loop.
const (
	HopNone   Hop = ""       // directly from a client
	HopLocal  Hop = "region" // from another balancer of this region
	HopRemote Hop = "remote" // from another region
	HopBoth   Hop = "both"   // from another region, then forwarded inside this one
)

// Request contains the properties of a request that placement depends on.
type Request struct {
	ID      string       `json:"id"`
	Model   string       `json:"model"`             // resolved: never an alias
	Adapter string       `json:"adapter,omitempty"` // the LoRA adapter of Model that it needs; empty = none
	Tenant  string       `json:"tenant,omitempty"`
	Session string       `json:"session,omitempty"`
	Tier    service.Tier `json:"tier,omitempty"`
	// Prompt is the chain of hashes of the rendered prompt, never its text.
	Prompt prefix.Key `json:"prompt,omitempty"`
	// Streamed: its response is a stream, so that its first token shows that its prompt has been computed.
	Streamed bool `json:"streamed,omitempty"`
	// PromptTokens is an estimate until the engine reports the count.
	PromptTokens int `json:"prompt_tokens,omitempty"`
	// MaxTokens bounds the answer; 0 = no bound set by the client.
	MaxTokens int `json:"max_tokens,omitempty"`
	// Completions is the number of answers generated at once, each bounded by MaxTokens; 0 = one, -1 =
	// none, as for an embedding.
	Completions int `json:"answers,omitempty"`
	Hop         Hop `json:"hop,omitempty"`
	// From is the peer that forwarded it; empty for a request from a client.
	From string `json:"from,omitempty"`
	// SessionAge is the age of its session at the balancer that forwarded it; 0 = unknown.
	SessionAge time.Duration `json:"session_age_ns,omitempty"`
	// PinnedTo is the id of the only replica or peer that can serve the request: it stores the response
	// that the request continues. Empty = any.
	PinnedTo string `json:"holder,omitempty"`
	// MaxWait bounds the time in the queue; 0 = Config.MaxWait.
	MaxWait time.Duration `json:"wait_ns,omitempty"`
	// TimeToDeadline is the time from the arrival of a deferred request (NIW) to its deadline; 0 = the deadline of
	// its tier. Age is the time between its creation and its arrival.
	TimeToDeadline time.Duration `json:"due_ns,omitempty"`
	Age            time.Duration `json:"age_ns,omitempty"`
	// Fallback: its own model could not serve the request, and Model is another one.
	Fallback bool `json:"fallback,omitempty"`
	// Fingerprint is equal for requests with the same model, prompt and parameters. It does not
	// depend on the tenant. 0 = unknown.
	Fingerprint uint64 `json:"fingerprint,omitempty"`
	// Kills is the number of replicas of the forwarding balancers that died while they served it, including failures for
	// which it is not known yet whether the replica died.
	Kills int `json:"kills,omitempty"`
}

// Outcome is the result of a request at its target.
type Outcome struct {
	// PromptTokens, CachedTokens and OutputTokens are the engine's own counts, if reported. For a
	// failed or cancelled answer, OutputTokens is the number of tokens generated before it ended,
	// counted or estimated.
	PromptTokens policy.Maybe[int] `json:"prompt_tokens"`
	CachedTokens policy.Maybe[int] `json:"cached_tokens"`
	OutputTokens policy.Maybe[int] `json:"output_tokens"`
	// UnstreamedTokens is the part of OutputTokens that is counted only at the end: all tokens of a response without a
	// stream; in a stream, those beyond one per stream event. The next progress event includes them. They say nothing
	// about the pace of streams.
	UnstreamedTokens int `json:"unstreamed_tokens,omitempty"`
	// Key is the key of the prompt with its response: the start of the prompt of the conversation's
	// next turn. nil = unknown.
	Key prefix.Key `json:"key,omitempty"`
	// EarlierTokens is the part of OutputTokens that an earlier target generated, if the answer was
	// continued here.
	EarlierTokens int `json:"elsewhere_tokens,omitempty"`
	// Retryable: another target may be tried, because nothing reached the client yet or the answer
	// can be continued.
	Retryable bool `json:"retryable,omitempty"`
	// Unreachable: the connection to the target could not be established. Nothing more is sent there
	// until it reports again.
	Unreachable bool `json:"unreachable,omitempty"`
	// EngineMayHaveDied: the target failed in a way that may mean its engine died: the connection broke, a 5xx
	// other than 503, an error in the stream, or no response. Its next reports show whether it
	// died.
	EngineMayHaveDied bool `json:"broke,omitempty"`
	// Refused: the target rejected the request for a reason that may not apply to another target:
	// 401, 403, 404 of the model, 429, 503; with FaultUnclear also another client error.
	Refused bool `json:"refused,omitempty"`
	// FaultUnclear: the failure may not be the target's fault.
	//   - With Refused, the rejection may be about the request itself, as a 400 or 422 is: it counts as a failure
	//     of the target only if another target then serves the request.
	//   - Without Refused, the target cannot continue another target's partial answer.
	FaultUnclear bool `json:"unsure,omitempty"`
	// LacksModel: the target rejected the request because it does not serve the requested name, or a peer bounced
	// it for this reason. If that is an adapter, this is no failure of the target.
	LacksModel bool `json:"lacks_model,omitempty"`
	// ClientError: the target rejected the request as invalid (a client error). The response
	// carries no information about the target's health.
	ClientError bool `json:"client_error,omitempty"`
	// Kills is the number of replicas of the peer that died while they served the request.
	Kills int `json:"kills,omitempty"`
	// Cause describes the failure.
	Cause string `json:"cause,omitempty"`
}

// ReplicaInfo describes a replica that is added.
type ReplicaInfo struct {
	ID    string `json:"id"`
	Model string `json:"model"`
	// MaxOutstanding bounds the outstanding requests there, in addition to the push mode; 0 = no
	// bound.
	MaxOutstanding int `json:"max_outstanding,omitempty"`
	// Engine is the id shared by the data-parallel ranks of one engine; empty = the replica is an
	// engine by itself.
	Engine string `json:"engine,omitempty"`
	// Process identifies the process behind the id, equally for all balancers of the service. A new
	// process has a new cache.
	Process string `json:"process,omitempty"`
	// Draining: it receives no requests, as after EventReplicaDraining.
	Draining bool `json:"draining,omitempty"`
}

// ProbeReport is the result of probing a replica. Figures that the engine does not export are unknown.
type ProbeReport struct {
	// Age is the age of the report when it arrived: half a round trip.
	Age time.Duration `json:"age_ns"`
	// MetricsAge is the age of the figures when the report was made: more than 0 for an engine that updates
	// them less often than it is probed.
	MetricsAge time.Duration `json:"lag_ns,omitempty"`
	Ready      bool          `json:"ready"`
	Reason     string        `json:"reason,omitempty"` // why it is not ready
	// NoResponse: the probe failed because the network did not reach the replica's host. After another failure, such as
	// a refused connection or an error status, it is false: the host responded.
	NoResponse bool                  `json:"no_response,omitempty"`
	Pending    policy.Maybe[int]     `json:"pending"`
	Running    policy.Maybe[int]     `json:"running"`
	KV         policy.Maybe[float64] `json:"kv"`
	// Slots is the number of requests that the engine runs at a time, if it reports that.
	Slots policy.Maybe[int] `json:"slots,omitzero"`
}

// PeerInfo describes a peer that is added.
type PeerInfo struct {
	ID string `json:"id"`
	// SameRegion: the peer is a balancer of this balancer's own region. Its cache updates are
	// recorded for each of its replicas, and Hop limits forwards to it separately.
	SameRegion bool `json:"same_region,omitempty"`
}

// PeerReport is a peer's heartbeat.
type PeerReport struct {
	Age    time.Duration `json:"age_ns"`
	RTT    time.Duration `json:"rtt_ns"`
	Models []ModelLoad   `json:"models"` // sorted by model
	// StoppedFingerprints are the requests that the peer has stopped.
	StoppedFingerprints []StoppedFingerprint `json:"killers,omitempty"`
}

// ModelLoad is the load of one model that a balancer reports to its peers.
type ModelLoad struct {
	Model string `json:"model"`
	// Replicas is the number of live replicas; Available is the number of them to which the push
	// mode allows another request to be sent.
	Replicas  int `json:"replicas"`
	Available int `json:"available"`
	// Queued counts the requests in its queue, without parked ones. Outstanding counts those at its
	// replicas, including Failed: requests that failed there and still count as load. Failed is not
	// sent to peers.
	Queued      int `json:"queued"`
	Outstanding int `json:"outstanding"`
	Failed      int `json:"-"`
	// ContextTokens is the number of tokens that the outstanding requests attend to.
	ContextTokens int `json:"context_tokens"`
	// MinPrefillTokens is the number of uncached prompt tokens still to be computed at the live replica with
	// the fewest.
	MinPrefillTokens int `json:"prefilling_tokens,omitempty"`
	// KV is the KV utilisation, 0..1: the mean over the live replicas that report it.
	KV policy.Maybe[float64] `json:"kv,omitzero"`
	// ExpectedWait is the time for which a request without known prefix would be queued there now;
	// Residence is the mean time from sending a request to a replica to the end of the request.
	ExpectedWait time.Duration `json:"wait_ns"`
	Residence    time.Duration `json:"residence_ns"`
	// Pace is the mean over the live replicas of the time between two tokens, divided by that of the
	// nominal replica (policy.NominalStep); 0 = unknown.
	Pace float64 `json:"pace,omitempty"`
	// Adapters are the LoRA adapters that the live replicas serve, sorted. Unknown = any may be served.
	Adapters policy.Maybe[[]string] `json:"adapters,omitzero"`
	// Aliases are further names of the model that its engines list, sorted.
	Aliases []string `json:"aliases,omitempty"`
}

// ActionKind is the type of an action.
type ActionKind string

// Action kinds.
const (
	ActionDispatch ActionKind = "dispatch" // send request ID to replica Target
	ActionForward  ActionKind = "forward"  // send request ID to peer Target with Hop
	ActionQueue    ActionKind = "hold"     // request ID stays in the queue, held for replica Target if set; Reason is QueuedForStart, QueuedForPrefill or empty. Nothing to perform
	ActionBounce   ActionKind = "bounce"   // return request ID to peer Target
	ActionReject   ActionKind = "reject"   // end request ID with Reason
	ActionAbort    ActionKind = "abort"    // stop request ID at Target: its client disconnected
)

// Reasons of a rejection: short, stable codes.
const (
	RejectDuplicate        = "duplicate_id"          // a request with this id has not ended
	RejectNoReplica        = "no_replica"            // no replica of this balancer and no peer serves the model
	RejectNoAdapter        = "no_adapter"            // no target serves Request.Adapter
	RejectQueueFull        = "queue_full"            // Config.QueueLimit requests are queued already
	RejectWaitExceeded     = "wait_exceeded"         // it reached its maximum time in the queue
	RejectStartExceeded    = "start_exceeded"        // no replica of its model became ready within Config.MaxColdWait
	RejectFailed           = "replica_failed"        // its target failed and it cannot be retried
	RejectRetriesExhausted = "retries_exhausted"     // it failed Config.MaxAttempts times
	RejectRetryBudget      = "retry_budget"          // the retry budget is exhausted
	RejectPinnedGone       = "holder_gone"           // Request.PinnedTo was removed, or serves another model
	RejectRefused          = "engines_refused"       // every target that could serve it rejected it (Outcome.Refused)
	RejectKills            = "request_kills_engines" // Config.StopAfterDeaths replicas died while they served it or a request with its fingerprint
)

// Action is one action to perform. It is valid until the next Step.
type Action struct {
	Kind   ActionKind `json:"kind"`
	ID     string     `json:"id"`
	Target string     `json:"target,omitempty"`
	Reason string     `json:"reason,omitempty"`
	// Hop, SessionAge and MaxWait are sent along with a forwarded request. MaxWait is the time for which
	// the peer may queue it: the remainder of its maximum wait.
	Hop        Hop           `json:"hop,omitempty"`
	SessionAge time.Duration `json:"session_age_ns,omitempty"`
	MaxWait    time.Duration `json:"wait_ns,omitempty"`
	// Kills of a forward is the Request.Kills to send along. Kills of a rejection or a bounce counts
	// the replicas of this balancer that died while they served the request, including failures for
	// which it is not known yet whether the replica died.
	Kills int `json:"kills,omitempty"`
	// DeadReplicas are the ids of the replicas that died, and of the peers whose replicas died, for a
	// request rejected with RejectKills; empty if a peer stopped it.
	DeadReplicas []string `json:"engines,omitempty"`
	// Decision explains a dispatch or a forward; nil for other actions.
	Decision *Decision `json:"decision,omitempty"`
}

// Decision explains why a request was sent to its target.
type Decision struct {
	Policy string `json:"policy"`
	Reason string `json:"reason"`
	// MatchBytes of PromptBytes are expected to be cached at the target.
	MatchBytes  int           `json:"match_bytes"`
	PromptBytes int           `json:"prompt_bytes"`
	Waited      time.Duration `json:"queued_ns"` // as policy.Facts.Waited
	Attempt     int           `json:"try"`       // 0 for the first
	// Considered lists every candidate with the main figures that the policy received.
	Considered []ConsideredTarget `json:"considered"`
}

// ConsideredTarget is a candidate with the main figures that the policy received.
type ConsideredTarget struct {
	ID          string                `json:"id"`
	Peer        bool                  `json:"peer,omitempty"`
	Available   bool                  `json:"available"`
	Outstanding int                   `json:"outstanding"`
	Unconfirmed int                   `json:"unconfirmed,omitempty"`
	Pending     policy.Maybe[int]     `json:"pending"`
	KV          policy.Maybe[float64] `json:"kv"`
	Queued      int                   `json:"queued,omitempty"`
	MatchBytes  int                   `json:"match_bytes"`
	// CachedBytes is the expected size of its cache; Remaining is the expected number of tokens
	// still to be processed there.
	CachedBytes int `json:"cached_bytes,omitempty"`
	Remaining   int `json:"remaining_tokens,omitempty"`
	// HeldRequests is the number of waiting requests held for the candidate. Score is the policy's score: the
	// expected cost in seconds, null if it was excluded.
	HeldRequests int                   `json:"held,omitempty"`
	Score        policy.Maybe[float64] `json:"score"`
	Age          time.Duration         `json:"age_ns"`
}
