package core

import (
	"time"

	"skyserve/internal/service"
	"skyserve/lbd/policy"
	"skyserve/lbd/prefix"
)

// EventKind says what happened.
type EventKind string

// The kinds of event, with the fields of Event that each of them reads.
const (
	EventArrived         EventKind = "arrived"          // Request
	EventFirstToken      EventKind = "first_token"      // ID
	EventProgress        EventKind = "progress"         // Target, Tokens
	EventFinished        EventKind = "finished"         // ID, Outcome
	EventFailed          EventKind = "failed"           // ID, Outcome
	EventCancelled       EventKind = "cancelled"        // ID, Outcome: what was generated; nil = nobody counted
	EventBounced         EventKind = "bounced"          // ID, Outcome (only its Kills; may be nil): the peer it was forwarded to gave it back
	EventReplicaAdded    EventKind = "replica_added"    // Replica
	EventReplicaRemoved  EventKind = "replica_removed"  // Target
	EventReplicaDraining EventKind = "replica_draining" // Target
	EventReplicaReport   EventKind = "replica_report"   // Target, Report
	EventPeerAdded       EventKind = "peer_added"       // Peer
	EventPeerRemoved     EventKind = "peer_removed"     // Target
	EventPeerReport      EventKind = "peer_report"      // Target, PeerReport
	EventPeerLearned     EventKind = "peer_learned"     // Target, Learned: what a peer of this region told
	EventTick            EventKind = "tick"             // nothing: time passed
)

// Event is one thing that happened. Which fields count is fixed by Kind; what
// they point to is not kept beyond Step, except the keys (Request.Prompt,
// Outcome.Key, Learned.Key), which must not change afterwards.
type Event struct {
	Kind       EventKind    `json:"kind"`
	ID         string       `json:"id,omitempty"`     // request
	Target     string       `json:"target,omitempty"` // replica or peer
	Request    *Request     `json:"request,omitempty"`
	Outcome    *Outcome     `json:"outcome,omitempty"`
	Replica    *ReplicaInfo `json:"replica,omitempty"`
	Report     *Report      `json:"report,omitempty"`
	Peer       *PeerInfo    `json:"peer,omitempty"`
	PeerReport *PeerReport  `json:"peer_report,omitempty"`
	Learned    []Learned    `json:"learned,omitempty"`
	Tokens     int          `json:"tokens,omitempty"`
}

// Hop tells how far a request has already been forwarded.
type Hop string

// A request may cross to another region once, and inside each region move to
// another balancer once: no path can loop.
const (
	HopNone   Hop = ""       // straight from a client
	HopRegion Hop = "region" // from another balancer of this region
	HopRemote Hop = "remote" // from another region
	HopBoth   Hop = "both"   // from another region, then inside this one
)

// Request is what the balancer must know of a request to place it.
type Request struct {
	ID      string       `json:"id"`
	Model   string       `json:"model"` // resolved: never an alias
	Tenant  string       `json:"tenant,omitempty"`
	Session string       `json:"session,omitempty"`
	Tier    service.Tier `json:"tier,omitempty"`
	// Prompt is the rendered prompt's chain hashes, never its text.
	Prompt prefix.Key `json:"prompt,omitempty"`
	// PromptTokens is an estimate until the engine says.
	PromptTokens int `json:"prompt_tokens,omitempty"`
	// MaxTokens bounds the answer; 0 = the client set no bound.
	MaxTokens int `json:"max_tokens,omitempty"`
	// Answers is how many answers are generated at once, each bounded by MaxTokens;
	// 0 = one, -1 = none, as for an embedding.
	Answers int `json:"answers,omitempty"`
	Hop     Hop `json:"hop,omitempty"`
	// From is the peer that forwarded it; empty for a client's request.
	From string `json:"from,omitempty"`
	// SessionAge is how long ago its session began, as the balancer that forwarded
	// it knows; 0 = not known.
	SessionAge time.Duration `json:"session_age_ns,omitempty"`
	// Holder is the one replica or peer, by id, that can serve it, since only there
	// is what it goes on from; empty = any can.
	Holder string `json:"holder,omitempty"`
	// Wait bounds the time in the queue; 0 = Config.MaxWait.
	Wait time.Duration `json:"wait_ns,omitempty"`
	// Fingerprint is equal for requests with the same model, prompt and parameters. It
	// does not depend on the tenant. 0 = not known.
	Fingerprint uint64 `json:"fingerprint,omitempty"`
	// Kills counts the replicas of the balancers that forwarded it that died while they
	// served it, including failures that are not decided yet.
	Kills int `json:"kills,omitempty"`
}

// Outcome is how a request ended at its target.
type Outcome struct {
	// PromptTokens, CachedTokens and OutputTokens are the engine's own figures
	// where it gave them. Of an answer that failed or was cancelled OutputTokens is what
	// was generated until then, counted or estimated; unknown = nothing is known of it.
	PromptTokens policy.Maybe[int] `json:"prompt_tokens"`
	CachedTokens policy.Maybe[int] `json:"cached_tokens"`
	OutputTokens policy.Maybe[int] `json:"output_tokens"`
	// Key is the prompt with its answer, as the next turn of the conversation
	// will begin; nil when it is not known.
	Key prefix.Key `json:"key,omitempty"`
	// Elsewhere is how many of OutputTokens an earlier target generated, of an
	// answer that was continued here.
	Elsewhere int `json:"elsewhere_tokens,omitempty"`
	// Retryable: it can be tried elsewhere, since nothing reached the client yet or
	// the answer can be continued.
	Retryable bool `json:"retryable,omitempty"`
	// Unreachable: the target could not be connected to at all, so nothing more
	// is sent there until it reports again.
	Unreachable bool `json:"unreachable,omitempty"`
	// Broke: the target failed in a way that may be the death of its engine: the
	// connection broke, a 5xx other than 503, an error in the stream, or no answer. Its
	// next reports decide whether it died.
	Broke bool `json:"broke,omitempty"`
	// Refused: the target refused the request for a reason that may not hold at another
	// target: 401, 403, 404 of the model, 429, 503.
	Refused bool `json:"refused,omitempty"`
	// ClientError: the target refused the request because of what the client sent. The
	// answer says nothing about how well the target works.
	ClientError bool `json:"client_error,omitempty"`
	// Kills is how many replicas of the peer died while they served the request.
	Kills int `json:"kills,omitempty"`
	// Cause says in words what failed.
	Cause string `json:"cause,omitempty"`
}

// ReplicaInfo introduces a replica.
type ReplicaInfo struct {
	ID    string `json:"id"`
	Model string `json:"model"`
	// MaxOutstanding bounds what is outstanding there whatever the push rule
	// says; 0 = no bound of its own.
	MaxOutstanding int `json:"max_outstanding,omitempty"`
	// Engine is the id that the data-parallel ranks of one engine share; empty: it
	// is an engine by itself.
	Engine string `json:"engine,omitempty"`
	// Process tells the process behind the id, by whatever name all balancers of the
	// service have for it: another one has another cache.
	Process string `json:"process,omitempty"`
}

// Report is what a probe of a replica found. A figure that the engine does not
// export stays unknown.
type Report struct {
	// Age is how old the figures were when the report came: half a round trip.
	Age     time.Duration         `json:"age_ns"`
	Ready   bool                  `json:"ready"`
	Reason  string                `json:"reason,omitempty"` // why it is not ready
	Pending policy.Maybe[int]     `json:"pending"`
	Running policy.Maybe[int]     `json:"running"`
	KV      policy.Maybe[float64] `json:"kv"`
}

// PeerInfo introduces a peer.
type PeerInfo struct {
	ID string `json:"id"`
	// SameRegion: a balancer of this balancer's own region, at zero distance.
	SameRegion bool `json:"same_region,omitempty"`
}

// PeerReport is a peer's heartbeat.
type PeerReport struct {
	Age    time.Duration `json:"age_ns"`
	RTT    time.Duration `json:"rtt_ns"`
	Models []ModelLoad   `json:"models"` // sorted by model
	// Killers are the requests that the peer has stopped.
	Killers []Killer `json:"killers,omitempty"`
}

// ModelLoad is what a balancer tells its peers about one model.
type ModelLoad struct {
	Model string `json:"model"`
	// Replicas is how many it has that answer; Available, how many of them the
	// push rule would send another request to.
	Replicas  int `json:"replicas"`
	Available int `json:"available"`
	// Queued counts the requests it holds, Outstanding those at its replicas, including
	// Failed: those that failed there and still count as load. Failed is not sent to peers.
	Queued      int `json:"queued"`
	Outstanding int `json:"outstanding"`
	Failed      int `json:"-"`
	// Context is how many tokens those attend to.
	Context int `json:"context_tokens"`
	// KV is the used share of KV memory, 0..1: the mean over those of Replicas
	// that tell it.
	KV policy.Maybe[float64] `json:"kv,omitzero"`
	// Wait is how long a request that nothing is known of would be held there now;
	// Residence, the mean time from a send to its end at one of the replicas.
	Wait      time.Duration `json:"wait_ns"`
	Residence time.Duration `json:"residence_ns"`
	// Pace is the mean over those of Replicas of the time between two tokens there
	// over that of the nominal replica; 0 = not known.
	Pace float64 `json:"pace,omitempty"`
}

// ActionKind says what to do.
type ActionKind string

// The kinds of action.
const (
	ActionDispatch ActionKind = "dispatch" // send request ID to replica Target
	ActionForward  ActionKind = "forward"  // send request ID to peer Target with Hop
	ActionHold     ActionKind = "hold"     // request ID waits, for replica Target where one is named; nothing to do
	ActionBounce   ActionKind = "bounce"   // give request ID back to peer Target
	ActionReject   ActionKind = "reject"   // end request ID with Reason
	ActionAbort    ActionKind = "abort"    // stop request ID at Target: its client has gone
)

// Reasons for a rejection: short, stable words.
const (
	RejectDuplicate  = "duplicate_id"   // a request of that id is in flight
	RejectNoReplica  = "no_replica"     // neither this region nor a peer serves the model
	RejectQueueFull  = "queue_full"     // Config.QueueLimit requests wait already
	RejectWait       = "wait_exceeded"  // it waited as long as it may
	RejectFailed     = "replica_failed" // its target failed and it cannot be retried
	RejectTooManyTry = "retries_exhausted"
	RejectRetries    = "retry_budget"          // too much is being retried already
	RejectHolder     = "holder_gone"           // Request.Holder is no longer known, or serves another model
	RejectRefused    = "engines_refused"       // every target that could serve it refused it (Outcome.Refused)
	RejectKills      = "request_kills_engines" // Config.KillAfter replicas died while they served it or a request with its fingerprint
)

// Action is one thing to do. It is valid until the next Step.
type Action struct {
	Kind   ActionKind `json:"kind"`
	ID     string     `json:"id"`
	Target string     `json:"target,omitempty"`
	Reason string     `json:"reason,omitempty"`
	// Hop, SessionAge and Wait are what to mark a forwarded request with: Wait is
	// how long it may be held there, what is left of what it may wait in all.
	Hop        Hop           `json:"hop,omitempty"`
	SessionAge time.Duration `json:"session_age_ns,omitempty"`
	Wait       time.Duration `json:"wait_ns,omitempty"`
	// Kills of a forward is the Request.Kills to send along. Kills of a rejection or a
	// bounce counts the replicas of this balancer that died while they served the
	// request, including failures that are not decided yet.
	Kills int `json:"kills,omitempty"`
	// Engines are the ids of the replicas that died, and of the peers whose replicas died,
	// of a request that is rejected with RejectKills; empty if a peer stopped it.
	Engines []string `json:"engines,omitempty"`
	// Decision explains a dispatch or a forward; nil for other actions.
	Decision *Decision `json:"decision,omitempty"`
}

// Decision explains where a request went.
type Decision struct {
	Policy string `json:"policy"`
	Reason string `json:"reason"`
	// MatchBytes of PromptBytes are thought to be cached at the target.
	MatchBytes  int           `json:"match_bytes"`
	PromptBytes int           `json:"prompt_bytes"`
	Queued      time.Duration `json:"queued_ns"` // time in the queue
	Try         int           `json:"try"`       // 0 for the first
	// Considered lists every candidate as the policy saw it.
	Considered []Considered `json:"considered"`
}

// Considered is a candidate as the policy saw it.
type Considered struct {
	ID          string                `json:"id"`
	Peer        bool                  `json:"peer,omitempty"`
	Available   bool                  `json:"available"`
	Outstanding int                   `json:"outstanding"`
	Unconfirmed int                   `json:"unconfirmed,omitempty"`
	Pending     policy.Maybe[int]     `json:"pending"`
	KV          policy.Maybe[float64] `json:"kv"`
	Queued      int                   `json:"queued,omitempty"`
	MatchBytes  int                   `json:"match_bytes"`
	// CachedBytes is what it is thought to hold in all; Remaining, the tokens
	// thought to be left to process there.
	CachedBytes int `json:"cached_bytes,omitempty"`
	Remaining   int `json:"remaining_tokens,omitempty"`
	// Held is how many waiting requests are kept for it; Score, what the policy
	// made of it: the expected cost in seconds, null where it was left out.
	Held  int                   `json:"held,omitempty"`
	Score policy.Maybe[float64] `json:"score"`
	Age   time.Duration         `json:"age_ns"`
}
