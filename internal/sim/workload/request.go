package workload

import "skyserve/internal/service"

// Message is one message of a chat.
type Message struct {
	Role    string `json:"role"`
	Content string `json:"content"`
}

// Request is a chat completion request of a client.
type Request struct {
	// Seq is the number of the request among those of its client, from 0. It identifies a request that
	// ended.
	Seq int
	// AnswerOf is the Seq of the request with the same response: an earlier identical request, since an
	// engine at temperature zero returns the same for both, or otherwise the request
	// itself.
	AnswerOf int
	// Session is the routing key: the question of a tree, the user of a chat.
	Session string
	// User is the user of the request.
	User string
	// Region is the place of the client (us, not local/us).
	Region string
	// Model is the requested model; empty if the caller chooses it.
	Model string
	// Tier is the latency class; empty if the request has none.
	Tier service.Tier
	// Messages is the whole conversation so far, with the question last. Later requests of the session
	// share the slice; do not modify it.
	Messages []Message
	// InputTokens counts the tokens of all message contents by the rule of CountTokens, without a chat
	// template.
	InputTokens int
	// OutputTokens is the requested number of tokens, at least 1.
	OutputTokens int
	// Turn is the turn of a conversation or the level of a tree node, from 0.
	Turn int
}

// Client is a closed-loop client: it has a limited number of requests in flight and issues the next
// ones when those end. It is a state machine; calls must not overlap.
type Client interface {
	// Next returns the concurrent requests to issue at the start. Every call starts a new session.
	Next() []Request
	// Done records the response to a request and returns the requests to issue now: none while the session
	// waits for siblings, and the first ones of the next session after the end of this one, unless Once
	// is set.
	Done(r Request, response string) []Request
	// Failed records a request that ended without a complete response, and abandons the requests that
	// depend on it. It returns requests like Done.
	Failed(r Request) []Request
}

// extend returns messages with more appended, without sharing the tail of the backing array: siblings
// extend the same prefix.
func extend(messages []Message, more ...Message) []Message {
	return append(messages[:len(messages):len(messages)], more...)
}
