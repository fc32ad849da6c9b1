package openai

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
)

// Whether an engine continues an assistant's message cannot be seen from its kind: engines ignore
// parameters that they do not know, and vLLM ignores continue_final_message for models with the
// harmony format (gpt-oss). Such an engine begins a new answer. Therefore an engine is asked the same
// chat twice, and the two requests differ only in continue_final_message. An engine that honours the
// parameter leaves the last message open, so its prompt is shorter by the tokens that end a message.
// An engine that ignores it reports the same number of prompt tokens twice.

// checkedMessage is the assistant's message of the check. Its text is easy to continue.
const checkedMessage = "A, B, C, D, E, F, G, H,"

// CheckTokens is the maximum number of tokens that both requests of a check generate together.
const CheckTokens = openCheckTokens + 1

// openCheckTokens is enough to detect reasoning and a new header in the text.
const openCheckTokens = 4

// CheckBody returns a request of the check of an engine's model: for the open message or for the
// closed one.
func CheckBody(model string, open bool) []byte {
	tokens := 1
	if open {
		tokens = openCheckTokens
	}
	name, _ := json.Marshal(model) // encoding a string cannot fail
	body := append([]byte(`{"model":`), name...)
	body = append(body, `,"messages":[{"role":"user","content":"Recite the alphabet."},{"role":"assistant","content":"`+checkedMessage+
		`"}],"add_generation_prompt":false,"continue_final_message":`...)
	body = strconv.AppendBool(body, open)
	body = append(body, `,"temperature":0,"stream":true,"stream_options":{"include_usage":true},"max_tokens":`...)
	return append(strconv.AppendInt(body, int64(tokens), 10), '}')
}

// CheckAnswer is the response to a request of a check.
type CheckAnswer struct {
	Prompt Figure // tokens of the prompt
	text   []byte
	other  bool // it contains reasoning, tool calls or an error
}

// ReadCheck reads a stream that answers a request of a check.
func ReadCheck(stream []byte) CheckAnswer {
	t := Transcript{RemainingBytes: len(stream)}
	defer t.Release()
	a := Answer{Transcript: &t}
	var events Splitter
	for len(stream) > 0 {
		size, ok := events.Next(stream)
		if !ok {
			break
		}
		if data := EventData(stream[:size]); data != nil {
			a.Event(data)
		}
		stream = stream[size:]
	}
	return CheckAnswer{Prompt: a.Usage.Prompt, text: decoded(t.Text()), other: t.Lost() || a.Failed}
}

// Errors of ProvesContinuation.
var (
	errCheckUsage     = errors.New("its engine does not report the number of prompt tokens in streams")
	errCheckReasoning = errors.New("its engine returns a continued message as reasoning, or with an error")
	errCheckEmpty     = errors.New("its engine returns no text for a continued message")
	errCheckHeader    = errors.New("its engine begins a new message instead of continuing the last one")
)

// ContinuesText checks the response for the open message; an error means that the engine does not
// continue it as text.
func (a *CheckAnswer) ContinuesText() error {
	switch trimmed := bytes.TrimSpace(a.text); {
	case a.other:
		return errCheckReasoning
	case !a.Prompt.Known:
		return errCheckUsage
	case len(trimmed) == 0:
		return errCheckEmpty
	case hasControlMark(a.text), bytes.HasPrefix(trimmed, []byte(checkedMessage[:4])):
		return errCheckHeader
	}
	return nil
}

// ProvesContinuation compares the responses for the open and the closed message. It returns nil only
// if the engine honours continue_final_message.
func ProvesContinuation(open, closed *CheckAnswer) error {
	switch {
	case !closed.Prompt.Known:
		return errCheckUsage
	case open.Prompt.Value >= closed.Prompt.Value:
		return fmt.Errorf("its engine ignores continue_final_message: a chat has %d prompt tokens with it and %d without", open.Prompt.Value, closed.Prompt.Value)
	}
	return nil
}
