package openai

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

	"skyserve/internal/service"
)

// Call contains the fields of a body that the balancer uses. Spans point into body.
type Call struct {
	body []byte

	model           Span
	messages        Span
	prompt          Span
	input           Span
	instructions    Span
	query           Span
	documents       Span
	tools           Span
	cacheSalt       Span
	cacheKey        Span
	userField       Span
	stream          Span
	streamOptions   Span
	maxTokens       Span
	maxCompletion   Span
	maxOutputTokens Span
	number          Span // "n"
	bestOf          Span
	previous        Span
	minTokens       Span
	stop            Span
	continueFinal   Span
	addPrompt       Span
	template        Span
	templateArgs    Span
	effort          Span
	reasoning       Span
	ofMessages      *messagesFields // nil until one of them is read

	// form: the body is a form, whose values are texts without quotes.
	form bool
	// forbidden: a field prevents the continuation of the answer by another target.
	forbidden bool
	seed      uint64     // of sum
	sum       uint64     // sum of the fields: see fingerprint.go
	guarded   Parameters // present in the body
}

// field returns the field for the value of a top-level key; nil for an irrelevant key.
func (c *Call) field(key []byte) *Span {
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
		return &c.userField
	case `"stream"`:
		return &c.stream
	case `"stream_options"`:
		return &c.streamOptions
	case `"max_tokens"`:
		return &c.maxTokens
	case `"max_completion_tokens"`:
		return &c.maxCompletion
	case `"max_output_tokens"`:
		return &c.maxOutputTokens
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
	case `"system"`:
		return &c.messagesFields().system
	case `"thinking"`:
		return &c.messagesFields().thinking
	case `"output_config"`:
		return &c.messagesFields().outputConfig
	case `"metadata"`:
		return &c.messagesFields().metadata
	}
	return nil
}

// parseCall is ReadCall without a fingerprint seed.
func parseCall(body []byte) (Call, error) { return ReadCall(body, 0) }

// ReadCall parses a complete body as JSON; seed is the seed of its fingerprint. The error is a
// *malformedError, or an *AmbiguousKeyError if a key can be interpreted in two ways. Of a duplicate key, for
// example, most engines use the last value and some the first.
func ReadCall(body []byte, seed uint64) (Call, error) {
	c := Call{body: body, seed: seed}
	in := cursor{data: body}
	if !utf8.Valid(body) {
		// An engine may treat invalid UTF-8 as an internal error, and so would every other engine
		// after a retry.
		return c, &malformedError{body, firstInvalid(body), "UTF-8"}
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
		if err := c.readMember(key.of(body), v); err != nil {
			return c, err
		}
	}
	if in.peek(); in.at < len(body) {
		return c, in.fail("nothing after the object")
	}
	return c, nil
}

// readMember processes a top-level member.
func (c *Call) readMember(key []byte, value Span) error {
	f := c.field(key)
	switch {
	case f != nil && *f != Span{}:
		return &AmbiguousKeyError{string(key[1 : len(key)-1]), "must occur only once"}
	case f != nil:
		*f = value
	case forbids(key, value.of(c.body)):
		c.forbidden = true
	default:
		return checkSpelling(c, key, value.of(c.body))
	}
	return nil
}

// firstInvalid returns the offset of the first byte that is not valid UTF-8.
func firstInvalid(text []byte) (at int) {
	for {
		c, size := utf8.DecodeRune(text[at:])
		if c == utf8.RuneError && size <= 1 {
			return at
		}
		at += size
	}
}

// ErrNoModel is the error of a request that names no model.
var ErrNoModel = errors.New("model is required")

// ModelName returns the model of the request. Without one it fails with ErrNoModel; the error for any other value contains
// the value.
func (c *Call) ModelName() ([]byte, error) {
	raw := c.model.of(c.body)
	if c.form && len(raw) > 0 {
		return raw, nil
	}
	switch kindOf(raw) {
	case '"':
		name, _ := text(raw, nil)
		return name, nil
	case 0:
		return nil, ErrNoModel
	}
	return nil, fmt.Errorf("model: must be a string, got %s", describe(raw))
}

// describe describes a JSON value that is no string, for an error: an array and an object by their type, others by their
// first 40 bytes.
func describe(raw []byte) string {
	switch kind := kindOf(raw); {
	case kind == '{':
		return "an object"
	case kind == '[':
		return "an array"
	case len(raw) > 40:
		return string(raw[:40]) + "..."
	}
	return string(raw)
}

// Clip returns at most 40 bytes of a value, quoted for an error.
func Clip(raw []byte) string {
	if len(raw) > 40 {
		return strconv.Quote(strings.ToValidUTF8(string(raw[:40]), "")) + "..."
	}
	return strconv.Quote(string(raw))
}

// streamRequested reports whether the client requests a stream. Engines accept some numbers and
// words for true.
func (c *Call) streamRequested() bool {
	raw := c.stream.of(c.body)
	switch kind := kindOf(raw); {
	case c.form:
		return isTrue(raw)
	case kind == 't':
		return true
	case kind == '"':
		plain, _ := text(raw, nil)
		return isTrue(plain)
	}
	n, ok := wholeNumber(raw)
	return ok && n == 1
}

// isTrue reports whether engines convert a text to true.
func isTrue(text []byte) bool {
	switch strings.ToLower(string(text)) {
	case "true", "t", "yes", "y", "on", "1":
		return true
	}
	return false
}

// maxRequested is the maximum number of tokens or answers that a client requests. No engine
// generates as many, and sums and products do not overflow.
const maxRequested = 1 << 31

// MaxOutput returns the maximum tokens that the client requests for an answer, 0 if it sets none in
// a field of the endpoint.
func (c *Call) MaxOutput(e *Endpoint) int {
	fields := [2]Span{c.maxTokens}
	switch {
	case e.Continues:
		fields[0] = c.maxOutputTokens
	case e.chat:
		fields = [2]Span{c.maxCompletion, c.maxTokens}
	}
	for _, s := range fields {
		if n, ok := wholeNumber(s.of(c.body)); ok {
			return n
		}
	}
	return 0
}

// readsBounds reports whether each bound that the client set can be parsed.
func (c *Call) readsBounds() bool {
	for _, s := range []Span{c.maxCompletion, c.maxTokens, c.minTokens} {
		raw := s.of(c.body)
		if _, ok := wholeNumber(raw); !ok && kindOf(raw) != 0 && kindOf(raw) != 'n' {
			return false
		}
	}
	return true
}

// setsBounds reports whether the client bounds the number of tokens in the answer.
func (c *Call) setsBounds() bool {
	for _, s := range []Span{c.maxCompletion, c.maxTokens, c.minTokens} {
		if k := kindOf(s.of(c.body)); k != 0 && k != 'n' {
			return true
		}
	}
	return false
}

// wholeNumber parses a whole number from 0 to maxRequested; larger numbers are capped. Like
// engines, it accepts 1e3 and 1000.0, and text that contains a number ("16", " 1_000 ").
func wholeNumber(raw []byte) (n int, ok bool) {
	if kindOf(raw) == '"' {
		plain, _ := text(raw, nil)
		raw = bytes.ReplaceAll(bytes.TrimSpace(plain), []byte("_"), nil)
	}
	if !digit(kindOf(raw)) {
		return 0, false
	}
	if n, err := strconv.Atoi(string(raw)); err == nil {
		return min(n, maxRequested), true
	}
	f, err := strconv.ParseFloat(string(raw), 64) // infinite if it is out of range
	if err != nil && !errors.Is(err, strconv.ErrRange) || f != math.Trunc(f) {
		return 0, false
	}
	return int(min(f, maxRequested)), true
}

// Answers returns the number of answers that an endpoint generates for the call: 0 if none, else n
// per prompt, or best_of if that is larger.
func (c *Call) Answers(e *Endpoint) int {
	if !e.streams && (!e.Continues || e.tokenizes) && e.Path != pathMessages {
		return 0
	}
	n, _ := wholeNumber(c.number.of(c.body))
	of, _ := wholeNumber(c.bestOf.of(c.body))
	return max(n, of, 1) * c.prompts()
}

// prompts returns the number of prompts of a completion: an array of strings or of arrays contains
// several prompts, an array of token ids is one prompt.
func (c *Call) prompts() int {
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

// stringOf returns a top-level string, nil if it is not one.
func (c *Call) stringOf(s Span) []byte {
	raw := s.of(c.body)
	if kindOf(raw) != '"' {
		return nil
	}
	t, _ := text(raw, nil)
	return t
}

// PreviousResponse returns the id of the stored response that the call continues, if given.
func (c *Call) PreviousResponse() (id string, given bool, refused *Error) {
	raw := c.previous.of(c.body)
	switch kindOf(raw) {
	case 0, 'n':
		return "", false, nil
	case '"':
		return string(c.stringOf(c.previous)), true, nil
	}
	return "", false, Invalid("previous_response_id", "invalid_previous_response_id", "previous_response_id: must be a string, got "+describe(raw))
}

// PromptCacheKey returns the client's name for its conversation; nil if not given.
func (c *Call) PromptCacheKey() []byte { return c.stringOf(c.cacheKey) }

// User returns the client's name for its user; nil if not given.
func (c *Call) User(e *Endpoint) []byte {
	if e.Messages {
		return memberText(c.messagesFields().metadata.of(c.body), `"user_id"`)
	}
	return c.stringOf(c.userField)
}

// completionBound is the default max_tokens of a completion in OpenAI's API, which vLLM and SGLang
// share.
const completionBound = 16

// ImpliedBound returns the bound that an engine of a kind applies to a completion without
// max_tokens; 0 if there is none or it is unknown.
func (e *Endpoint) ImpliedBound(kind service.EngineKind) int {
	if e.chat || e.Messages || kind != service.EngineVLLM && kind != service.EngineSGLang {
		return 0
	}
	return completionBound
}

// Edit replaces a span of the body.
type Edit struct {
	Span
	With []byte
}

// RenameModel returns the edit that replaces the name of the model, such as an alias, by the real one.
func (c *Call) RenameModel(real string) Edit {
	if c.form {
		return Edit{c.model, []byte(real)}
	}
	quoted, _ := json.Marshal(real) // encoding a string cannot fail
	return Edit{c.model, quoted}
}

// Changes contains the balancer's changes to a body, and the fields that matter for the answer.
type Changes struct {
	Edits []Edit
	// Counts is the edit that requests the usage so far with each event, applied after Edits; its
	// text is empty if there is none.
	Counts Edit
	// Stream: the client requests a stream; Continuable: another target could continue the answer
	// while it consists only of text.
	Stream, Continuable bool
	// HideUsage: the balancer requests the final usage and the client does not; CountsRequested: the
	// client requests the usage so far with each event.
	HideUsage, CountsRequested bool
	// NamesMaxTokens: max_tokens is present, even if null; SetsBounds: the client bounds the tokens
	// in the answer.
	NamesMaxTokens, SetsBounds bool
}

// Changes returns the balancer's changes: the real model name for an alias, and the request for a
// stream's usage.
func (c *Call) Changes(e *Endpoint, resolved ResolvedModel) Changes {
	ch := Changes{
		Stream: c.streamRequested(), Continuable: c.continuable(e), CountsRequested: c.countsRequested(),
		NamesMaxTokens: c.maxTokens != Span{}, SetsBounds: c.setsBounds(),
	}
	served := cmp.Or(resolved.Adapter, resolved.Model)
	if name, _ := c.ModelName(); string(name) != served {
		ch.Edits = append(ch.Edits, c.RenameModel(served))
	}
	if e.streams && ch.Stream {
		if ask, needed := c.requestUsage(); needed {
			ch.Edits = append(ch.Edits, ask)
			ch.HideUsage = true
		}
	}
	if ch.Continuable {
		ch.Counts = c.requestCounts(ch.Edits)
	}
	return ch
}

// requestUsage returns the edit that requests the usage at the end of a stream; needed is false if
// the client already requests it or the options are not an object.
func (c *Call) requestUsage() (e Edit, needed bool) {
	const ask = `"include_usage":true`
	raw := c.streamOptions.of(c.body)
	switch kindOf(raw) {
	case 0: // before the closing bracket; the body contains at least the model
		end := bytes.LastIndexByte(c.body, '}')
		return Edit{Span{end, end}, []byte(`,"stream_options":{` + ask + `}`)}, true
	case 'n':
		return Edit{c.streamOptions, []byte(`{` + ask + `}`)}, true
	case '{':
		return c.requestUsageInOptions(raw, ask)
	}
	return Edit{}, false
}

// requestUsageInOptions edits existing stream options.
func (c *Call) requestUsageInOptions(raw []byte, ask string) (Edit, bool) {
	in := cursor{data: raw}
	_ = in.open('{', "")
	found := Span{}
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
	at := c.streamOptions.From
	switch {
	case found == Span{} && first:
		return Edit{c.streamOptions, []byte(`{` + ask + `}`)}, true
	case found == Span{}:
		return Edit{Span{at + 1, at + 1}, []byte(ask + `,`)}, true
	case string(found.of(raw)) == "true":
		return Edit{}, false
	}
	return Edit{Span{at + found.From, at + found.To}, []byte("true")}, true
}

// ApplyInPlace applies edits to a body in its own memory, which must have enough capacity. The
// edits must not overlap, and must not point into the body.
func ApplyInPlace(body []byte, edits []Edit) []byte {
	sortEdits(edits)
	out := body[:len(body)+Growth(edits, len(body))]
	// The text between edits is moved without overwriting text that is still to be moved: text that
	// moves to the front is processed from the front on, text that moves to the back from the back.
	for i := range edits {
		if at, end, by := textAfterEdit(edits, i, len(body)); by < 0 {
			copy(out[at+by:], body[at:end])
		}
	}
	for i := range slices.Backward(edits) {
		if at, end, by := textAfterEdit(edits, i, len(body)); by > 0 {
			copy(out[at+by:end+by], body[at:end])
		}
	}
	by := 0
	for _, e := range edits {
		copy(out[e.From+by:], e.With)
		by += len(e.With) - (e.To - e.From)
	}
	return out
}

// textAfterEdit returns the text between edit i and the next one, and the number of bytes by which
// it moves.
func textAfterEdit(edits []Edit, i, end int) (from, to, by int) {
	if to = end; i+1 < len(edits) {
		to = edits[i+1].From
	}
	for _, e := range edits[:i+1] {
		by += len(e.With) - (e.To - e.From)
	}
	return edits[i].To, to, by
}

func sortEdits(edits []Edit) {
	slices.SortFunc(edits, func(a, b Edit) int { return cmp.Compare(a.From, b.From) })
}

// applyEdits appends body with its edits to dst. The edits must not overlap.
func applyEdits(dst, body []byte, edits []Edit) []byte {
	sortEdits(edits)
	at := 0
	for _, e := range edits {
		dst = append(dst, body[at:e.From]...)
		dst = append(dst, e.With...)
		at = e.To
	}
	return append(dst, body[at:]...)
}

// ResolvedModel is what a model name resolves to: a model, by its own name or an alias, or an
// adapter of a model, which engines serve under the same name.
type ResolvedModel struct{ Model, Adapter string }
