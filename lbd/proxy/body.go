package proxy

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// endpoint is what a public path asks an engine for.
type endpoint struct {
	path string
	// streams: the answer may be SSE whose usage must be asked for.
	streams bool
	// chat: the prompt is messages.
	chat bool
	// done: a whole stream ends in [DONE].
	done bool
	// stored: the engine keeps the answer under its id, for a later request to go on
	// from.
	stored bool
	// render writes the prompt into a key.
	render func(*renderer, *call)
	// extend puts the beginning of an answer behind the prompt; nil where answers
	// cannot be continued. anyEngine: every engine can go on from there.
	extend    func(c *call, said []byte) (edits []edit, ok bool)
	anyEngine bool
	// full is what a chunk says, but for its head, of an answer that has come to the
	// client's bound.
	full string
}

// The endpoints that engines serve.
var endpoints = map[string]*endpoint{
	"/v1/chat/completions": {
		path: "/v1/chat/completions", streams: true, chat: true, done: true, render: (*renderer).chat, extend: (*call).extendChat,
		full: `"object":"chat.completion.chunk","choices":[{"index":0,"delta":{},"logprobs":null,"finish_reason":"length"}]`,
	},
	"/v1/completions": {
		path: "/v1/completions", streams: true, done: true, render: (*renderer).completion, extend: (*call).extendPrompt, anyEngine: true,
		full: `"object":"text_completion","choices":[{"index":0,"text":"","logprobs":null,"finish_reason":"length"}]`,
	},
	"/v1/responses":  {path: "/v1/responses", stored: true, render: (*renderer).responses},
	"/v1/embeddings": {path: "/v1/embeddings", render: (*renderer).embeddings},
	"/v1/rerank":     {path: "/v1/rerank", render: (*renderer).rerank},
	"/tokenize":      {path: "/tokenize", render: (*renderer).tokenize},
}

// call is what a body says that the balancer must know. Spans point into body.
type call struct {
	body []byte

	model         span
	messages      span
	prompt        span
	input         span
	instructions  span
	query         span
	documents     span
	tools         span
	cacheSalt     span
	cacheKey      span
	user          span
	stream        span
	streamOptions span
	maxTokens     span
	maxCompletion span
	maxOutput     span
	number        span // "n"
	bestOf        span
	previous      span
	minTokens     span
	stop          span
	continueFinal span
	addPrompt     span
	template      span
	templateArgs  span
	effort        span
	reasoning     span

	// forbidden: some field says that the answer is not to be continued elsewhere.
	forbidden bool
	seed      uint64     // of sum
	sum       uint64     // of the fields: see fingerprint
	guarded   parameters // present in the body
}

// field is where a top-level key's value is kept, nil for a key that does not
// matter here.
func (c *call) field(key []byte) *span {
	switch string(key) {
	case `"model"`:
		return &c.model
	case `"messages"`:
		return &c.messages
	case `"prompt"`:
		return &c.prompt
	case `"input"`:
		return &c.input
	case `"instructions"`:
		return &c.instructions
	case `"query"`:
		return &c.query
	case `"documents"`:
		return &c.documents
	case `"tools"`:
		return &c.tools
	case `"cache_salt"`:
		return &c.cacheSalt
	case `"prompt_cache_key"`:
		return &c.cacheKey
	case `"user"`:
		return &c.user
	case `"stream"`:
		return &c.stream
	case `"stream_options"`:
		return &c.streamOptions
	case `"max_tokens"`:
		return &c.maxTokens
	case `"max_completion_tokens"`:
		return &c.maxCompletion
	case `"max_output_tokens"`:
		return &c.maxOutput
	case `"n"`:
		return &c.number
	case `"best_of"`:
		return &c.bestOf
	case `"previous_response_id"`:
		return &c.previous
	case `"min_tokens"`:
		return &c.minTokens
	case `"stop"`:
		return &c.stop
	case `"continue_final_message"`:
		return &c.continueFinal
	case `"add_generation_prompt"`:
		return &c.addPrompt
	case `"chat_template"`:
		return &c.template
	case `"chat_template_kwargs"`:
		return &c.templateArgs
	case `"reasoning_effort"`:
		return &c.effort
	case `"reasoning"`:
		return &c.reasoning
	}
	return nil
}

// parseCall is readCall for a call whose fingerprint nobody asks for.
func parseCall(body []byte) (call, error) { return readCall(body, 0) }

// readCall reads a body, all of it by JSON's grammar; seed is that of its fingerprint. The
// error is a *malformed, or an *ambiguous where a key could be read in two ways: of a key
// that stands twice, most engines take the last value and some the first.
func readCall(body []byte, seed uint64) (call, error) {
	c := call{body: body, seed: seed}
	in := cursor{data: body}
	if !utf8.Valid(body) {
		// An engine may take it for a fault of its own, and every other one after it.
		return c, &malformed{body, firstInvalid(body), "UTF-8"}
	}
	if err := in.open('{', "'{'"); err != nil {
		return c, err
	}
	for first := true; ; first = false {
		more, err := in.more('}', first)
		if err != nil {
			return c, err
		}
		if !more {
			break
		}
		key, err := in.key()
		if err != nil {
			return c, err
		}
		v, err := in.value()
		if err != nil {
			return c, err
		}
		c.addToSum(key.of(body), v.of(body))
		c.guarded |= guardedField(key.of(body), v.of(body))
		if err := c.member(key.of(body), v); err != nil {
			return c, err
		}
	}
	if in.peek(); in.at < len(body) {
		return c, in.fail("nothing after the object")
	}
	return c, nil
}

// member takes a top-level member in.
func (c *call) member(key []byte, value span) error {
	f := c.field(key)
	switch {
	case f != nil && *f != span{}:
		return &ambiguous{string(key[1 : len(key)-1]), "it stands twice: write it once"}
	case f != nil:
		*f = value
	case forbids(key, value.of(c.body)):
		c.forbidden = true
	default:
		return checkKey(c, key, value.of(c.body))
	}
	return nil
}

// firstInvalid is where text stops being UTF-8.
func firstInvalid(text []byte) (at int) {
	for {
		c, size := utf8.DecodeRune(text[at:])
		if c == utf8.RuneError && size <= 1 {
			return at
		}
		at += size
	}
}

// modelName is the model asked for; an error says what stands there instead.
func (c *call) modelName() ([]byte, error) {
	raw := c.model.of(c.body)
	switch kindOf(raw) {
	case '"':
		name, _ := text(raw, nil)
		return name, nil
	case 0:
		return nil, fmt.Errorf("model: want a model's name, found nothing")
	}
	return nil, fmt.Errorf("model: want a string, found %s", clip(raw))
}

// clip is at most 40 bytes of something found, for an error.
func clip(raw []byte) string {
	if len(raw) > 40 {
		return strconv.Quote(string(raw[:40])) + "..."
	}
	return strconv.Quote(string(raw))
}

// asksStream says whether the answer shall be streamed. Engines take some numbers and
// words for true.
func (c *call) asksStream() bool {
	raw := c.stream.of(c.body)
	switch kindOf(raw) {
	case 't':
		return true
	case '"':
		said, _ := text(raw, nil)
		switch strings.ToLower(string(said)) {
		case "true", "t", "yes", "y", "on", "1":
			return true
		}
		return false
	}
	n, ok := wholeNumber(raw)
	return ok && n == 1
}

// mostAsked bounds what is heard of a client that asks for so many tokens or
// answers: no engine gives as many, and sums and products of it do not overflow.
const mostAsked = 1 << 31

// bound is the most tokens the client wants of an answer, 0 when it does not say so
// in a field that the endpoint has.
func (c *call) bound(e *endpoint) int {
	fields := [2]span{c.maxTokens}
	switch {
	case e.stored:
		fields[0] = c.maxOutput
	case e.chat:
		fields = [2]span{c.maxCompletion, c.maxTokens}
	}
	for _, s := range fields {
		if n, ok := wholeNumber(s.of(c.body)); ok {
			return n
		}
	}
	return 0
}

// readsBounds says whether each bound that the client set is understood here.
func (c *call) readsBounds() bool {
	for _, s := range []span{c.maxCompletion, c.maxTokens, c.minTokens} {
		raw := s.of(c.body)
		if _, ok := wholeNumber(raw); !ok && kindOf(raw) != 0 && kindOf(raw) != 'n' {
			return false
		}
	}
	return true
}

// setsBounds says whether the client bounds how many tokens the answer has.
func (c *call) setsBounds() bool {
	for _, s := range []span{c.maxCompletion, c.maxTokens, c.minTokens} {
		if k := kindOf(s.of(c.body)); k != 0 && k != 'n' {
			return true
		}
	}
	return false
}

// wholeNumber reads a whole number from 0 up to mostAsked, as which a larger one counts.
// Engines take 1e3 and 1000.0 for one too, and text that says one ("16", " 1_000 ").
func wholeNumber(raw []byte) (n int, ok bool) {
	if kindOf(raw) == '"' {
		said, _ := text(raw, nil)
		raw = bytes.ReplaceAll(bytes.TrimSpace(said), []byte("_"), nil)
	}
	if !digit(kindOf(raw)) {
		return 0, false
	}
	if n, err := strconv.Atoi(string(raw)); err == nil {
		return min(n, mostAsked), true
	}
	f, err := strconv.ParseFloat(string(raw), 64) // infinite where it is out of range
	if err != nil && !errors.Is(err, strconv.ErrRange) || f != math.Trunc(f) {
		return 0, false
	}
	return int(min(f, mostAsked)), true
}

// answers is how many answers the call has an endpoint generate: 0 where none are,
// else of each prompt n, or the best_of that these are chosen from.
func (c *call) answers(e *endpoint) int {
	if !e.streams && !e.stored {
		return 0
	}
	n, _ := wholeNumber(c.number.of(c.body))
	of, _ := wholeNumber(c.bestOf.of(c.body))
	return max(n, of, 1) * c.prompts()
}

// prompts is how many prompts a completion has: an array of strings or of arrays
// holds several, one of token ids is one.
func (c *call) prompts() int {
	raw := c.prompt.of(c.body)
	if kindOf(raw) != '[' {
		return 1
	}
	if in := (cursor{data: raw, at: 1}); digit(in.peek()) {
		return 1
	}
	n := 0
	each(raw, func([]byte) { n++ })
	return max(n, 1)
}

// said is a top-level string, nil when it is not one.
func (c *call) said(s span) []byte {
	raw := s.of(c.body)
	if kindOf(raw) != '"' {
		return nil
	}
	t, _ := text(raw, nil)
	return t
}

// edit replaces a span of the body.
type edit struct {
	span
	with []byte
}

// rename is the edit that writes the real name in place of an alias.
func (c *call) rename(real string) edit {
	quoted, _ := json.Marshal(real) // a string always marshals
	return edit{c.model, quoted}
}

// askUsage is the edit that makes a stream end with its usage; needed is false
// when the client asked for that itself or the options are not an object.
func (c *call) askUsage() (e edit, needed bool) {
	const ask = `"include_usage":true`
	raw := c.streamOptions.of(c.body)
	switch kindOf(raw) {
	case 0: // before the closing bracket of a body that has a model at least
		end := bytes.LastIndexByte(c.body, '}')
		return edit{span{end, end}, []byte(`,"stream_options":{` + ask + `}`)}, true
	case 'n':
		return edit{c.streamOptions, []byte(`{` + ask + `}`)}, true
	case '{':
		return c.askInOptions(raw, ask)
	}
	return edit{}, false
}

// askInOptions edits stream options that are there already.
func (c *call) askInOptions(raw []byte, ask string) (edit, bool) {
	in := cursor{data: raw}
	_ = in.open('{', "")
	found := span{}
	first := true
	for {
		more, err := in.more('}', first)
		if err != nil || !more {
			break
		}
		first = false
		key, _ := in.key()
		v, _ := in.value()
		if string(canonical(key.of(raw))) == `"include_usage"` {
			found = v
		}
	}
	at := c.streamOptions.from
	switch {
	case found == span{} && first:
		return edit{c.streamOptions, []byte(`{` + ask + `}`)}, true
	case found == span{}:
		return edit{span{at + 1, at + 1}, []byte(ask + `,`)}, true
	case string(found.of(raw)) == "true":
		return edit{}, false
	}
	return edit{span{at + found.from, at + found.to}, []byte("true")}, true
}

// spliceIn makes edits to a body in its own memory, which must have room for them. The
// edits must not overlap, and must not point into it.
func spliceIn(body []byte, edits []edit) []byte {
	sortEdits(edits)
	out := body[:len(body)+growth(edits, len(body))]
	// What stands between edits is moved so that nothing is overwritten that is still to be
	// moved: what moves to the front from the front on, what moves to the back from the back.
	for i := range edits {
		if at, end, by := between(edits, i, len(body)); by < 0 {
			copy(out[at+by:], body[at:end])
		}
	}
	for i := range slices.Backward(edits) {
		if at, end, by := between(edits, i, len(body)); by > 0 {
			copy(out[at+by:end+by], body[at:end])
		}
	}
	by := 0
	for _, e := range edits {
		copy(out[e.from+by:], e.with)
		by += len(e.with) - (e.to - e.from)
	}
	return out
}

// between is what stands behind edit i and before the next one, and by how many bytes it
// moves.
func between(edits []edit, i, end int) (from, to, by int) {
	if to = end; i+1 < len(edits) {
		to = edits[i+1].from
	}
	for _, e := range edits[:i+1] {
		by += len(e.with) - (e.to - e.from)
	}
	return edits[i].to, to, by
}

func sortEdits(edits []edit) {
	slices.SortFunc(edits, func(a, b edit) int { return cmp.Compare(a.from, b.from) })
}

// splice appends body with its edits to dst. The edits must not overlap.
func splice(dst, body []byte, edits []edit) []byte {
	sortEdits(edits)
	at := 0
	for _, e := range edits {
		dst = append(dst, body[at:e.from]...)
		dst = append(dst, e.with...)
		at = e.to
	}
	return append(dst, body[at:]...)
}
