package server

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"reflect"

	"skyserve/internal/sim/engine"
)

// body is the request body of the generation routes and of /tokenize. Unknown fields, and fields
// without a meaning for the simulated engine (temperature, stop and so on), are ignored.
type body struct {
	Model               string          `json:"model"`
	Prompt              json.RawMessage `json:"prompt"`
	Messages            []message       `json:"messages"`
	Tools               json.RawMessage `json:"tools"`
	ToolChoice          json.RawMessage `json:"tool_choice"`
	ResponseFormat      json.RawMessage `json:"response_format"`
	MaxTokens           *int            `json:"max_tokens"`
	MaxCompletionTokens *int            `json:"max_completion_tokens"`
	MinTokens           int             `json:"min_tokens"`
	IgnoreEOS           bool            `json:"ignore_eos"`
	Stream              bool            `json:"stream"`
	StreamOptions       *streamOptions  `json:"stream_options"`
	N                   *int            `json:"n"`
	Seed                *int64          `json:"seed"`
	Priority            int             `json:"priority"`
	CacheSalt           string          `json:"cache_salt"`
	ContinueFinal       bool            `json:"continue_final_message"`
	AddPrompt           *bool           `json:"add_generation_prompt"`
}

type streamOptions struct {
	IncludeUsage    bool `json:"include_usage"`
	ContinuousUsage bool `json:"continuous_usage_stats"`
}

// message is a message of a chat. Content is a string, an array of parts, or absent.
type message struct {
	Role      string          `json:"role"`
	Content   json.RawMessage `json:"content"`
	ToolCalls json.RawMessage `json:"tool_calls"`
}

// maxNew returns the token limit of the response, nil if the client set none.
func (b *body) maxNew() *int {
	if b.MaxCompletionTokens != nil {
		return b.MaxCompletionTokens
	}
	return b.MaxTokens
}

// readBody decodes a JSON document into v. Errors are problems: 413 above the size limit, 400 for an
// invalid document.
func (s *Server) readBody(w http.ResponseWriter, r *http.Request, v any) error {
	var buf bytes.Buffer
	if r.ContentLength > 0 && r.ContentLength <= s.opts.MaxBodyBytes {
		buf.Grow(int(r.ContentLength) + bytes.MinRead)
	}
	if _, err := buf.ReadFrom(http.MaxBytesReader(w, r.Body, s.opts.MaxBodyBytes)); err != nil {
		var tooLarge *http.MaxBytesError
		if errors.As(err, &tooLarge) {
			return &problem{
				status: http.StatusRequestEntityTooLarge, kind: "invalid_request_error", code: "request_too_large",
				message: fmt.Sprintf("reading the request body: exceeds the limit of %d bytes", tooLarge.Limit),
			}
		}
		return malformed("", "reading the request body: "+err.Error())
	}
	if err := json.Unmarshal(buf.Bytes(), v); err != nil {
		return explainJSON(err)
	}
	return nil
}

// explainJSON converts a decoding error to a problem with its position.
func explainJSON(err error) *problem {
	var syntax *json.SyntaxError
	var kind *json.UnmarshalTypeError
	switch {
	case errors.As(err, &kind):
		at := "reading the request body: "
		if kind.Field != "" {
			at += kind.Field + ": "
		}
		return malformed(kind.Field, fmt.Sprintf("%smust be %s, got %s at byte %d", at, jsonKind(kind.Type), kind.Value, kind.Offset))
	case errors.As(err, &syntax):
		return malformed("", fmt.Sprintf("reading the request body: invalid JSON: %v at byte %d", err, syntax.Offset))
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return malformed("", "reading the request body: empty")
	}
	return malformed("", "reading the request body: "+err.Error())
}

// jsonKind returns the JSON name of a Go type.
func jsonKind(t reflect.Type) string {
	switch t.Kind() {
	case reflect.Struct, reflect.Map:
		return "an object"
	case reflect.Slice, reflect.Array:
		return "an array"
	case reflect.String:
		return "a string"
	case reflect.Bool:
		return "true or false"
	}
	return "an integer"
}

// prompt is a prompt in tokens.
type prompt struct {
	tokens []engine.Token
	// continued is the number of tokens at its end that belong to the response.
	continued int
	// unmarked reports that the request does not mark the start of the response.
	unmarked bool
}

// completionPrompt returns the prompt of /v1/completions: a string, an array with one string, or an
// array of token IDs. A text of more than limit tokens is a problem.
func (b *body) completionPrompt(limit int) (prompt, error) {
	text, ids, err := readPrompt(b.Prompt)
	if err != nil || ids != nil {
		return prompt{tokens: ids, unmarked: true}, err
	}
	if err := b.checkLength(text, limit); err != nil {
		return prompt{}, err
	}
	return prompt{tokens: engine.Tokenize(nil, text), unmarked: true}, nil
}

// checkLength rejects a text of more than limit tokens before allocating memory for them.
func (b *body) checkLength(text string, limit int) error {
	if len(text) <= limit {
		return nil
	}
	if n := engine.CountTokens(text); n > limit {
		return tooLong(n, limit, b.maxNew())
	}
	return nil
}

// readPrompt returns the text of a prompt, or its token IDs.
func readPrompt(raw json.RawMessage) (text string, ids []engine.Token, err error) {
	switch firstByte(raw) {
	case 0:
		return "", nil, malformed("prompt", "prompt is required")
	case '"':
		err = json.Unmarshal(raw, &text)
		return text, nil, err
	case '[':
		return readPromptArray(raw)
	}
	return "", nil, malformed("prompt", "prompt: must be a string or an array of token IDs, got "+excerpt(raw))
}

func readPromptArray(raw json.RawMessage) (string, []engine.Token, error) {
	var ids []engine.Token
	if json.Unmarshal(raw, &ids) == nil {
		if len(ids) == 0 {
			return "", nil, malformed("prompt", "prompt: must contain at least one token, got []")
		}
		return "", ids, nil
	}
	var texts []string
	if json.Unmarshal(raw, &texts) != nil {
		return "", nil, malformed("prompt", "prompt: must be a string or an array of token IDs, got "+excerpt(raw))
	}
	if len(texts) != 1 {
		return "", nil, malformed("prompt", fmt.Sprintf("prompt: must contain one prompt, got %d", len(texts)))
	}
	return texts[0], nil, nil
}

// firstByte returns the first byte of a raw value (without leading space), or 0 if the value is absent
// or null.
func firstByte(raw json.RawMessage) byte {
	if len(raw) == 0 || raw[0] == 'n' {
		return 0
	}
	return raw[0]
}

// excerpt returns the start of a value, for error messages.
func excerpt(raw json.RawMessage) string {
	const limit = 40
	switch {
	case len(raw) == 0:
		return "nothing"
	case len(raw) <= limit:
		return string(raw)
	}
	return string(bytes.ToValidUTF8(raw[:limit], nil)) + "..."
}
