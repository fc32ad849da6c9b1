package server

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"

	"skyserve/internal/sim/engine"
)

// Lengths of responses. With a limit of at most exactTokens the response has exactly the requested
// number of tokens, so that tests can count them; with a higher limit its length is random. A continued
// response has the same total length as an uncontinued one.
const (
	exactTokens   = 64
	defaultMaxNew = engine.MaxDrawnTokens
	// chanceTokens is the number of tokens at the end of a prompt that may match the start of a response
	// by chance.
	chanceTokens = 4
)

// job is a valid generation request.
type job struct {
	id            string
	model         string
	chat          bool
	stream        bool
	withUsage     bool
	usageInEvents bool // every event has the usage so far
	request       engine.Request
	form          *form // of the response; nil = any text
	rank          int   // anyRank if the client set none
}

// texts returns the texts of the response's tokens, if its form determines them.
func (j *job) texts() []string {
	if j.form == nil {
		return nil
	}
	return j.form.tokens
}

// tool returns the name of the function that the response calls, or "".
func (j *job) tool() string {
	if j.form == nil {
		return ""
	}
	return j.form.tool
}

// finishReason returns the finish reason for the client: a complete response with a function call ends with
// tool_calls.
func (j *job) finishReason(reason engine.Reason) string {
	if j.tool() != "" && reason == engine.ReasonStop {
		return "tool_calls"
	}
	return reason.String()
}

func (s *Server) serveChat(w http.ResponseWriter, r *http.Request)       { s.generate(w, r, true) }
func (s *Server) serveCompletion(w http.ResponseWriter, r *http.Request) { s.generate(w, r, false) }

var errFault = &problem{status: http.StatusInternalServerError, kind: "server_error", message: "injected fault: error-rate"}

// generate handles a generation request.
func (s *Server) generate(w http.ResponseWriter, r *http.Request, chat bool) {
	if s.draining.Load() {
		errDraining.writeError(w)
		return
	}
	j, err := s.readJob(w, r, chat)
	if err != nil {
		writeError(w, err)
		return
	}
	if s.faults.countRequest() {
		errFault.writeError(w)
		return
	}
	s.waitGate(r.Context()) // this request may have triggered hang-after
	stream := s.driver.submit(j.rank, j.request, j.texts())
	a := responder{server: s, job: j, stream: stream, response: w, request: r}
	if j.stream {
		a.respondStream()
	} else {
		a.respondWhole()
	}
}

// readJob parses and validates a request.
func (s *Server) readJob(w http.ResponseWriter, r *http.Request, chat bool) (*job, error) {
	var b body
	if err := s.readBody(w, r, &b); err != nil {
		return nil, err
	}
	return s.jobOf(r, &b, chat)
}

// jobOf validates a parsed request.
func (s *Server) jobOf(r *http.Request, b *body, chat bool) (*job, error) {
	rank, err := s.rankOf(r.Header)
	if err != nil {
		return nil, err
	}
	model, adapter, err := s.resolve(b.Model)
	if err != nil {
		return nil, err
	}
	switch {
	case b.N != nil && *b.N < 1:
		return nil, malformed("n", fmt.Sprintf("n: must be at least 1, got %d", *b.N))
	case b.N != nil && *b.N > 1:
		return nil, malformed("n", fmt.Sprintf("n: the simulated engine returns one choice: must be 1, got %d", *b.N))
	}
	read, prefix := b.completionPrompt, "cmpl"
	if chat {
		read, prefix = b.chatPrompt, "chatcmpl"
	}
	p, err := read(s.opts.Profile.KVTokens)
	if err != nil {
		return nil, err
	}
	request, err := s.plan(b, p, adapter)
	if err != nil {
		return nil, err
	}
	var f *form
	if chat {
		if f, err = b.forced(s.opts.Seed, p.tokens); err != nil {
			return nil, err
		}
	}
	if f != nil {
		request.Output = engine.Tokenize(nil, strings.Join(f.tokens, ""))
	}
	withUsage := b.StreamOptions != nil && b.StreamOptions.IncludeUsage
	return &job{
		id: fmt.Sprintf("%s-%016x", prefix, rand.Uint64()), model: model, chat: chat, stream: b.Stream,
		withUsage: withUsage, usageInEvents: withUsage && b.StreamOptions.ContinuousUsage && !s.opts.NoContinuousUsage,
		request: request, form: f, rank: rank,
	}, nil
}

// plan converts a prompt to an engine request.
func (s *Server) plan(b *body, p prompt, a adapter) (engine.Request, error) {
	if len(p.tokens) == 0 {
		return engine.Request{}, malformed("prompt", "prompt: must contain at least one token, got an empty text")
	}
	seed := s.opts.Seed ^ uint64(a)
	if b.Seed != nil {
		seed += (uint64(*b.Seed) + 1) * 0x9e3779b97f4a7c15
	}
	if p.unmarked {
		p.continued = recognise(seed, p.tokens)
	}
	maxNew, err := s.bound(b, p)
	if err != nil {
		return engine.Request{}, err
	}
	beginning := engine.NewSpeech(seed, p.tokens[:len(p.tokens)-p.continued])
	q := engine.Request{
		Prompt: p.tokens, MaxNew: maxNew, Priority: b.Priority,
		Speech:    engine.NewSpeech(seed, p.tokens),
		OutputLen: b.outputLen(maxNew, p, beginning.DrawLength()),
	}
	isolate(q.Prompt, a, b.CacheSalt)
	return q, nil
}

// recognise counts the tokens at the end of a prompt that the engine itself would generate after the
// tokens before them: a client that sends a prompt with the start of its response requests
// the continuation. It counts at most the longest random response.
func recognise(seed uint64, tokens []engine.Token) (continued int) {
	for continued < min(len(tokens)-1, engine.MaxDrawnTokens) {
		at := len(tokens) - continued - 1
		speech := engine.NewSpeech(seed, tokens[:at])
		if own, _ := speech.Next(); own != tokens[at] {
			break
		}
		continued++
	}
	return continued
}

// bound returns the maximum number of tokens to generate. A request that does not fit into the KV
// memory is a problem.
func (s *Server) bound(b *body, p prompt) (int, error) {
	promptTokens := len(p.tokens)
	capacity := s.opts.Profile.KVTokens - promptTokens
	requested := b.maxNew()
	switch {
	case requested != nil && *requested < 1:
		return 0, malformed("max_tokens", fmt.Sprintf("max_tokens: must be at least 1, got %d", *requested))
	case requested != nil && b.MinTokens > *requested:
		return 0, malformed("min_tokens", fmt.Sprintf("min_tokens: must be at most max_tokens (%d), got %d", *requested, b.MinTokens))
	case b.MinTokens < 0:
		return 0, malformed("min_tokens", fmt.Sprintf("min_tokens: must be at least 0, got %d", b.MinTokens))
	case capacity < 1 || requested != nil && *requested > capacity:
		return 0, tooLong(promptTokens, s.opts.Profile.KVTokens, requested)
	case requested != nil:
		return *requested, nil
	}
	return min(max(defaultMaxNew-p.continued, b.MinTokens, 1), capacity), nil
}

// tooLong is the problem of a request that exceeds the KV memory.
func tooLong(promptTokens, kvTokens int, requested *int) *problem {
	message := fmt.Sprintf("this model's maximum context length is %d tokens, but the prompt has %d", kvTokens, promptTokens)
	if requested != nil {
		message += fmt.Sprintf(" and max_tokens is %d", *requested)
	}
	p := malformed("messages", message)
	p.code = "context_length_exceeded"
	return p
}

// outputLen returns the length of the response, given its random length without continuation. Tokens
// before the continuation count.
func (b *body) outputLen(maxNew int, p prompt, drawn int) int {
	exact := exactTokens - p.continued
	if p.unmarked {
		exact = min(exact+chanceTokens, exactTokens)
	}
	if b.IgnoreEOS || b.maxNew() != nil && maxNew <= exact {
		return maxNew
	}
	return min(max(drawn-p.continued, b.MinTokens, 1), maxNew)
}

// isolate separates the cache entries of a prompt by changing its first token.
func isolate(tokens []engine.Token, a adapter, salt string) {
	mark := engine.Token(a)
	for _, t := range engine.Tokenize(nil, salt) {
		mark = mark*31 + t
	}
	tokens[0] ^= mark
}
