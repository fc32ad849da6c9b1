package proxy

import (
	"bytes"
	"strconv"

	"skyserve/lbd/policy"
	"skyserve/lbd/prefix"
)

// answer is what is learned from an engine's answer as it passes.
type answer struct {
	// tokens is how many tokens have come: the engine's count where it tells one with
	// each event (exact: with the latest text), else the events that hold text.
	tokens int
	exact  bool
	asked  bool // the target at hand was asked for that
	events int  // of the try at hand that held text
	usage  usage
	// done: the stream said that it is complete, or gave the reason why it has
	// come to its end (bounded: because it was to be no longer); failed: it told of an
	// error; faulty: of one that is the engine's and not the request's.
	done    bool
	bounded bool
	failed  bool
	faulty  bool
	alike   bool    // the event at hand says nothing but a text
	spoken  *spoken // nil when the answer cannot be continued elsewhere
	id      []byte  // of an answer that is whole, as JSON writes it

	like    likeness
	quoted  []byte // of the event at hand: the text of its first choice, as JSON writes it
	plainly bool   // quoted is a completion's
	mixed   bool   // the event at hand says more than that text and its usage
	tally   []byte // of the event at hand: its usage, as JSON writes it

	key     *renderer // nil when no key is wanted
	room    int       // bytes that may still enter the key
	turned  bool      // the assistant's turn has begun
	partial bool      // something of the answer is missing in the key
}

// usage is an engine's own count.
type usage struct{ prompt, cached, output policy.Maybe[int] }

// finding is what one event was.
type finding struct {
	token     bool // it holds text
	usageOnly bool // it holds the usage and no choice
	// counts is where the usage so far stands in an event that holds more; zero = there
	// is none.
	counts span
}

// event learns from an event of a stream.
func (a *answer) event(data []byte) finding {
	if f, ok := a.likeBefore(data); ok {
		return f
	}
	a.quoted, a.tally, a.mixed = nil, nil, false
	f := a.read(data)
	if a.quoted != nil && !a.mixed {
		a.like.learn(data, a.quoted, a.tally, f.counts, a.plainly)
	}
	a.quoted, a.tally = nil, nil // they are the reader's memory
	return f
}

// likeBefore is event for one that differs from those before in its text and its usage
// only.
func (a *answer) likeBefore(data []byte) (f finding, ok bool) {
	quoted, tally := a.like.match(data)
	if quoted == nil {
		return f, false
	}
	if tally != nil {
		if !a.like.usage.read(&a.usage, tally) {
			return f, false
		}
		f.counts = a.like.counts(data, tally)
	}
	if a.like.plain {
		a.plain(quoted, true)
	} else {
		a.content(quoted, true)
	}
	a.quoted = nil
	a.came(tally != nil)
	a.alike = tally == nil
	f.token = true
	return f, true
}

// came counts an event that holds text; counted: the engine tells how many tokens there
// are with it.
func (a *answer) came(counted bool) {
	a.events++
	a.tokens++
	if a.exact = counted && a.asked && a.usage.output.Known; a.exact {
		a.tokens = max(a.tokens, a.usage.output.Value)
	}
}

// read is event for one that may be like none before.
func (a *answer) read(data []byte) finding {
	if string(data) == "[DONE]" {
		a.done = true
		a.spoken.close()
		return finding{}
	}
	var f finding
	var choices, tally, tallyKey, delta, whole, kind []byte
	members(data, func(key, value []byte) {
		switch string(key) {
		case `"choices"`:
			choices = value
		case `"usage"`:
			tally, tallyKey = value, key
		case `"error"`:
			a.mixed = true
			a.failed = a.failed || kindOf(value) != 'n'
			a.faulty = a.faulty || serverFault(value)
		case `"id"`, `"created"`, `"model"`:
			a.spoken.meet(key, value)
		case `"type"`:
			kind = value
		case `"delta"`:
			delta = value
			a.mixed = true
		case `"response"`:
			whole = value
			a.mixed = true
		}
	})
	counted := a.usage.read(tally)
	if a.tally = tally; !counted {
		a.tally = nil // it is like the rest of the event
	}
	f.token = a.choices(choices) || (kindOf(delta) == '"' && len(delta) > 2)
	if f.usageOnly = counted && emptyArray(choices); counted && !f.usageOnly {
		f.counts = memberAt(data, tallyKey, tally)
	}
	if whole != nil {
		a.response(kind, whole)
	}
	if f.token {
		a.came(counted)
	}
	return f
}

// serverFault says whether an error in a stream is the engine's: vLLM and SGLang
// say so by an HTTP status in code when what computes has died under the server.
func serverFault(raw []byte) (fault bool) {
	members(raw, func(key, value []byte) {
		if string(key) == `"code"` {
			status, err := strconv.Atoi(string(value))
			fault = err == nil && status >= 500
		}
	})
	return fault
}

func emptyArray(raw []byte) bool {
	return kindOf(raw) == '[' && len(bytes.TrimSpace(raw[1:len(raw)-1])) == 0
}

// choices learns from the choices of a chunk; only the first choice enters the
// key. It says whether any of them holds text.
func (a *answer) choices(raw []byte) (said bool) {
	first := true
	each(raw, func(choice []byte) {
		members(choice, func(key, value []byte) {
			switch string(key) {
			case `"delta"`:
				said = a.delta(value, first) || said
			case `"text"`:
				said = a.plain(value, first) || said
			case `"finish_reason"`:
				if kindOf(value) == '"' {
					a.mixed = true
					a.done, a.bounded = true, string(value) == `"length"`
					a.spoken.end()
				}
			}
		})
		a.mixed = a.mixed || !first
		first = false
	})
	return said
}

// delta learns from a piece of a chat message.
func (a *answer) delta(raw []byte, keyed bool) (said bool) {
	members(raw, func(key, value []byte) {
		switch string(key) {
		case `"content"`:
			said = a.content(value, keyed) || said
		case `"tool_calls"`:
			each(value, func(call []byte) {
				said, a.mixed = true, true
				a.spoken.lose()
				if keyed && a.turn(len(call)) {
					a.callPiece(call)
				}
			})
		case `"reasoning_content"`, `"reasoning"`, `"refusal"`:
			if kindOf(value) == '"' && len(value) > 2 {
				said, a.mixed = true, true
				a.spoken.lose()
			}
		case `"function_call"`, `"audio"`:
			if kindOf(value) == '{' {
				a.mixed = true
				a.spoken.lose()
			}
		case `"role"`:
			a.spoken.turn()
		}
	})
	return said
}

// content learns from a piece of a chat's text; it says whether that is one.
func (a *answer) content(raw []byte, keyed bool) bool {
	if kindOf(raw) != '"' || len(raw) <= 2 {
		return false
	}
	a.meets(raw, false)
	a.heard(raw, keyed)
	if keyed && a.turn(len(raw)) {
		a.key.text(raw)
	}
	return true
}

// meets notes a text of the event at hand.
func (a *answer) meets(raw []byte, plain bool) {
	a.mixed = a.mixed || a.quoted != nil
	a.quoted, a.plainly = raw, plain
}

// heard keeps a piece of the text for the case that it must be continued. Only
// one answer can be.
func (a *answer) heard(quoted []byte, first bool) {
	if first {
		a.spoken.say(quoted)
	} else {
		a.spoken.lose()
	}
}

// callPiece writes a piece of a tool call as renderer.toolCall writes the whole.
func (a *answer) callPiece(raw []byte) {
	members(raw, func(key, function []byte) {
		if string(key) != `"function"` {
			return
		}
		members(function, func(key, value []byte) {
			switch {
			case kindOf(value) != '"':
			case string(key) == `"name"`:
				a.key.callName(value)
			case string(key) == `"arguments"`:
				a.key.text(value)
			}
		})
	})
}

// plain learns from a piece of a completion.
func (a *answer) plain(raw []byte, keyed bool) bool {
	if kindOf(raw) != '"' || len(raw) <= 2 {
		return false
	}
	a.meets(raw, true)
	a.heard(raw, keyed)
	if keyed && a.key != nil && a.key.answer == answerText && a.enter(len(raw)) {
		a.key.text(raw)
	}
	return true
}

// turn begins the assistant's turn in the key once; it says whether n more
// bytes may follow.
func (a *answer) turn(n int) bool {
	if a.key == nil || a.key.answer != answerTurn || !a.enter(n) {
		return false
	}
	if !a.turned {
		a.turned = true
		a.key.turn([]byte(`"assistant"`))
	}
	return true
}

// enter says whether n more bytes may enter the key.
func (a *answer) enter(n int) bool {
	if a.partial || n > a.room {
		a.partial = true
		return false
	}
	a.room -= n
	return true
}

// response learns from the response object that a Responses stream ends with.
func (a *answer) response(kind, raw []byte) {
	switch string(kind) {
	case `"response.completed"`, `"response.incomplete"`:
		a.done = true
	case `"response.failed"`:
		a.failed = true
		return
	default:
		return
	}
	a.whole(raw)
}

// whole learns from an answer that came in one piece.
func (a *answer) whole(raw []byte) {
	members(raw, func(key, value []byte) {
		switch string(key) {
		case `"id"`:
			a.id = value
		case `"usage"`:
			a.usage.read(value)
		case `"choices"`:
			first := true
			each(value, func(choice []byte) {
				if first {
					a.wholeChoice(choice)
				}
				first = false
			})
		case `"output"`:
			if a.key != nil && a.key.answer == answerTurn && a.enter(len(value)) {
				a.key.items(value)
			}
		}
	})
}

func (a *answer) wholeChoice(raw []byte) {
	members(raw, func(key, value []byte) {
		switch string(key) {
		case `"message"`:
			if a.key != nil && a.key.answer == answerTurn && a.enter(len(value)) {
				a.key.message(value)
			}
		case `"text"`:
			a.plain(value, true)
		}
	})
}

// finish is the key of the prompt with its answer; nil when it is not known.
func (a *answer) finish() prefix.Key {
	if a.key == nil || a.key.answer == answerUnknown || a.partial {
		return nil
	}
	return a.key.hash.Key()
}

// read takes an engine's usage object; it says whether that is one.
func (u *usage) read(raw []byte) bool {
	return eachFigure(raw, func(field tallyField, value []byte) { count(u.figure(field), value) })
}

// figure is where a number of a usage is kept; nil for another one.
func (u *usage) figure(field tallyField) *figure {
	switch field {
	case fieldPrompt:
		return &u.prompt
	case fieldCached:
		return &u.cached
	case fieldOutput:
		return &u.output
	}
	return nil
}

// eachFigure calls do for the members of an engine's usage object that are kept; it says
// whether raw is an object.
func eachFigure(raw []byte, do func(field tallyField, value []byte)) bool {
	if kindOf(raw) != '{' {
		return false
	}
	return members(raw, func(key, value []byte) {
		switch string(key) {
		case `"prompt_tokens"`, `"input_tokens"`:
			do(fieldPrompt, value)
		case `"completion_tokens"`, `"output_tokens"`:
			do(fieldOutput, value)
		case `"prompt_tokens_details"`, `"input_tokens_details"`:
			members(value, func(key, value []byte) {
				if string(key) == `"cached_tokens"` {
					do(fieldCached, value)
				}
			})
		}
	}) == len(raw)
}

// count takes a number of tokens; one that cannot be is as good as none.
func count(into *policy.Maybe[int], raw []byte) {
	if n, err := strconv.Atoi(string(raw)); err == nil && n >= 0 && n <= mostAsked {
		*into = policy.Known(n)
	}
}
