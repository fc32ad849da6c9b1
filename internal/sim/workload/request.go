package workload

import "skyserve/internal/service"

// Message is one message of a chat.
type Message struct {
	Role    string `json:"role"`
	Content string `json:"content"`
}

// Request is one chat completion that a client asks for.
type Request struct {
	// Seq numbers the requests of one client, from 0, in the order they were
	// made. It is how a client recognises a request that ended.
	Seq int
	// AnswerOf is the Seq of the request whose answer it gets, an earlier one where
	// it asks just the same: an engine at temperature zero answers both alike. Else
	// it is its own.
	AnswerOf int
	// Session is the routing key: the question of a tree, the user of a chat.
	Session string
	// User is who asks.
	User string
	// Region is the place that the client sits in (us, not local/us).
	Region string
	// Model is the model asked for; empty when the caller chooses it.
	Model string
	// Tier is the latency class; empty when the request does not state one.
	Tier service.Tier
	// Messages is the whole conversation so far, the question last. The slice
	// is shared with later requests of the session and must not be changed.
	Messages []Message
	// InputTokens counts the tokens of all message contents by the rule of
	// CountTokens; what a chat template adds is not in it.
	InputTokens int
	// OutputTokens is how many tokens are asked for, at least 1.
	OutputTokens int
	// Turn is the turn of a conversation or the level of a tree node, from 0.
	Turn int
}

// Client is one closed-loop client: it has a bounded number of requests in
// flight and issues the next ones when those end. It is a state machine for one
// caller at a time; calls must not overlap.
type Client interface {
	// Next gives the requests to issue at the start; all of them at once. Every
	// call begins a new session.
	Next() []Request
	// Done tells the client that a request it issued was answered, and gives
	// the requests to issue now: none while the session waits for siblings, the
	// first ones of the next session when this one is over, unless there is to
	// be one session only.
	Done(r Request, answer string) []Request
	// Failed tells the client that a request ended without a full answer. The
	// work that hangs on it is given up; the rest is as in Done.
	Failed(r Request) []Request
}

// extend returns messages with more appended, never sharing the tail of the
// backing array: siblings extend the same prefix.
func extend(messages []Message, more ...Message) []Message {
	return append(messages[:len(messages):len(messages)], more...)
}
