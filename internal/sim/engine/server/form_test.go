package server

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
)

const weather = `,"tools":[{"type":"function","function":{"name":"time"}},{"type":"function","function":{"name":"weather","parameters":
	{"type":"object","properties":{"city":{"type":"string"},"unit":{"enum":["°C","°F"]}}}}}]`

// toolReply is a response with function calls.
type toolReply struct {
	Choices []struct {
		Message struct {
			Content   *string
			ToolCalls []toolCall `json:"tool_calls"`
		}
		FinishReason string `json:"finish_reason"`
	}
}

func TestForcedFunctionIsCalled(t *testing.T) {
	bubble(t, Options{Speed: 1000}, func(t *testing.T, b *bench) {
		for choice, want := range map[string]string{
			`"required"`: "time", `{"type":"function","function":{"name":"weather"}}`: "weather",
		} {
			body := chat("Is it warm?", weather+`,"tool_choice":`+choice)
			_, text := b.post(chatPath, body)
			var r toolReply
			if err := json.Unmarshal([]byte(text), &r); err != nil || len(r.Choices) != 1 || len(r.Choices[0].Message.ToolCalls) != 1 {
				t.Fatalf("tool_choice %s: %s (%v)", choice, text, err)
			}
			call := r.Choices[0].Message.ToolCalls[0]
			if r.Choices[0].Message.Content != nil || r.Choices[0].FinishReason != "tool_calls" || call.Function.Name != want || call.Type != "function" || call.ID == "" {
				t.Errorf("tool_choice %s: %s", choice, text)
			}
			name, arguments := b.streamCall(body)
			if name != want || arguments != call.Function.Arguments || !json.Valid([]byte(arguments)) {
				t.Errorf("tool_choice %s: streamed %s(%s), whole %s(%s)", choice, name, arguments, call.Function.Name, call.Function.Arguments)
			}
		}
		for _, free := range []string{"", `,"tool_choice":"auto"`, `,"tool_choice":"none"`, `,"tool_choice":null`} {
			if r := b.complete(chatPath, chat("Is it warm?", weather+`,"max_tokens":5`+free)); r.Usage.CompletionTokens != 5 || r.text() == "" {
				t.Errorf("tool_choice %q: %+v, want five words", free, r)
			}
		}
	})
}

// streamCall streams a response with a call.
func (b *bench) streamCall(body string) (name, arguments string) {
	b.t.Helper()
	chunks, err := b.stream(chatPath, strings.TrimSuffix(body, "}")+`,"stream":true}`)
	if err != nil {
		b.t.Fatal(err)
	}
	for _, c := range chunks[:len(chunks)-1] {
		var piece struct {
			Choices []struct {
				Delta struct {
					ToolCalls []toolCall `json:"tool_calls"`
				}
			}
		}
		if err := json.Unmarshal([]byte(c.data), &piece); err != nil || len(piece.Choices[0].Delta.ToolCalls) != 1 {
			b.t.Fatalf("event %s: %v", c.data, err)
		}
		call := piece.Choices[0].Delta.ToolCalls[0]
		if call.Index == nil || *call.Index != 0 {
			b.t.Errorf("event %s: no call has this index", c.data)
		}
		name += call.Function.Name
		arguments += call.Function.Arguments
	}
	return name, arguments
}

func TestDocumentMatchesSchema(t *testing.T) {
	schema := `{"type":"object","properties":{
		"city":{"type":"string"},"inhabitants":{"type":"integer","minimum":1000000,"maximum":1000050},"capital":{"type":["boolean","null"]},
		"size":{"enum":["small","größer"]},"rivers":{"type":"array","minItems":2,"items":{"$ref":"#/$defs/river"}},
		"kind":{"const":"city"},"more":{"anyOf":[{"type":"null"},{"type":"string"}]}},
		"$defs":{"river":{"type":"object","properties":{"name":{"type":"string"},"into":{"$ref":"#/$defs/river"}}}}}`
	bubble(t, Options{Speed: 1000}, func(t *testing.T, b *bench) {
		format := `,"max_tokens":500,"response_format":{"type":"json_schema","json_schema":{"name":"place","strict":true,"schema":` + schema + `}}`
		r := b.complete(chatPath, chat("Tell me of a city.", format))
		var place struct {
			City, Size, Kind string
			Inhabitants      int
			Capital          *bool
			Rivers           []struct{ Name string }
		}
		if err := json.Unmarshal([]byte(r.text()), &place); err != nil {
			t.Fatalf("%s: %v", r.text(), err)
		}
		if place.City == "" || place.Kind != "city" || place.Inhabitants < 1000000 || place.Inhabitants > 1000050 || place.Capital == nil ||
			(place.Size != "small" && place.Size != "größer") || len(place.Rivers) != 2 || place.Rivers[0].Name == "" {
			t.Errorf("%s is not of the schema", r.text())
		}
		if r.Choices[0].FinishReason != "stop" {
			t.Errorf("finish reason %s of a whole document", r.Choices[0].FinishReason)
		}
		chunks, err := b.stream(chatPath, strings.TrimSuffix(chat("Tell me of a city.", format), "}")+`,"stream":true}`)
		streamed := ""
		for _, c := range chunks[:len(chunks)-1] {
			streamed += c.Choices[0].Delta.Content
		}
		if err != nil || streamed != r.text() {
			t.Errorf("streamed %q, whole %q: %v", streamed, r.text(), err)
		}
		cut := b.complete(chatPath, chat("Tell me of a city.", `,"max_tokens":3,"response_format":{"type":"json_object"}`))
		if cut.Choices[0].FinishReason != "length" || cut.Usage.CompletionTokens != 3 {
			t.Errorf("a document that is cut off: %+v", cut)
		}
		if r := b.complete(chatPath, chat("x", `,"response_format":{"type":"json_object"}`)); !json.Valid([]byte(r.text())) {
			t.Errorf("json_object: %s", r.text())
		}
		if r := b.complete(chatPath, chat("x", `,"max_tokens":4,"response_format":{"type":"text"}`)); r.Usage.CompletionTokens != 4 {
			t.Errorf("text: %+v", r)
		}
	})
}

func TestRecursiveSchemaTerminates(t *testing.T) {
	var wide strings.Builder
	for i := range 100 {
		fmt.Fprintf(&wide, `"p%d":{"$ref":"#"},`, i)
	}
	bubble(t, Options{Speed: 1000}, func(t *testing.T, b *bench) {
		schema := `{"type":"object","properties":{` + strings.TrimSuffix(wide.String(), ",") + `}}`
		r := b.complete(chatPath, chat("x", `,"max_tokens":20000,"response_format":{"type":"json_schema","json_schema":{"schema":`+schema+`}}`))
		if !json.Valid([]byte(r.text())) || len(r.text()) > 4*maxDocumentBytes {
			t.Errorf("%d bytes", len(r.text()))
		}
	})
}

func TestFormErrors(t *testing.T) {
	bubble(t, Options{}, func(t *testing.T, b *bench) {
		for more, param := range map[string]string{
			`,"tool_choice":"required"`:          "tool_choice",
			`,"tool_choice":"always"`:            "tool_choice",
			`,"tool_choice":{"type":"function"}`: "tool_choice",
			`,"tool_choice":7`:                   "tool_choice",
			weather + `,"tool_choice":{"type":"function","function":{"name":"rain"}}`: "tool_choice",
			`,"tools":{},"tool_choice":"required"`:                                    "tools",
			`,"response_format":"json"`:                                               "response_format",
			`,"response_format":{"type":"xml"}`:                                       "response_format",
			`,"response_format":{"type":"json_schema"}`:                               "response_format",
		} {
			status, text := b.post(chatPath, chat("x", more))
			if e := errorOf(t, text); status != http.StatusBadRequest || e.Param == nil || *e.Param != param {
				t.Errorf("%s: %d %s, want 400 of %s", more, status, text, param)
			}
		}
	})
}
