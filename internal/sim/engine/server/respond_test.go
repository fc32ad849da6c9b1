package server

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
)

const responsesPath = "/v1/responses"

// respond sends a request to /v1/responses and returns the response.
func (b *bench) respond(body string) response {
	b.t.Helper()
	status, text := b.post(responsesPath, body)
	var r response
	if err := json.Unmarshal([]byte(text), &r); err != nil || status != 200 {
		b.t.Fatalf("%s has response %d %s", body, status, text)
	}
	return r
}

func (r *response) text() string { return r.Output[0].Content[0].Text }

func TestResponseEqualsChatCompletion(t *testing.T) {
	bubble(t, Options{}, func(t *testing.T, b *bench) {
		first := b.respond(`{"input":"hello","instructions":"be brief","max_output_tokens":9}`)
		if first.Object != "response" || first.Status != "incomplete" || first.Incomplete.Reason != "max_output_tokens" || first.Usage.OutputTokens != 9 {
			t.Errorf("response %+v", first)
		}
		_, chatted := b.post(chatPath, `{"messages":[{"role":"system","content":"be brief"},{"role":"user","content":"hello"}],"max_tokens":9}`)
		quoted, _ := json.Marshal(first.text())
		if !strings.Contains(chatted, string(quoted)) {
			t.Errorf("the response contains %s, the chat %s", quoted, chatted)
		}
	})
}

func TestResponseContinuesPrevious(t *testing.T) {
	bubble(t, Options{}, func(t *testing.T, b *bench) {
		first := b.respond(`{"input":"hello","max_output_tokens":9}`)
		second := b.respond(fmt.Sprintf(`{"input":"and then?","previous_response_id":%q,"max_output_tokens":9}`, first.ID))
		continued, _ := json.Marshal(first.text())
		reported := b.respond(`{"input":[{"role":"user","content":"hello"},{"type":"message","role":"assistant","content":` + string(continued) + `},{"role":"user","content":"and then?"}],"max_output_tokens":9}`)
		if second.text() != reported.text() || second.Usage.InputTokens != reported.Usage.InputTokens || *second.Previous != first.ID {
			t.Errorf("continuing a response yields %+v, sending the whole conversation %+v", second, reported)
		}
		if reported.Usage.InputDetails.CachedTokens == 0 {
			t.Error("nothing of the conversation was cached")
		}
	})
}

func TestResponseStream(t *testing.T) {
	bubble(t, Options{}, func(t *testing.T, b *bench) {
		whole := b.respond(`{"input":"hello","max_output_tokens":7}`)
		_, stream := b.post(responsesPath, `{"input":"hello","max_output_tokens":7,"stream":true}`)
		var kinds []string
		var text strings.Builder
		var last struct {
			Type     string
			Delta    string
			Sequence int `json:"sequence_number"`
			Response response
		}
		for line := range strings.Lines(stream) {
			data, ok := strings.CutPrefix(line, "data: ")
			if !ok {
				continue
			}
			if err := json.Unmarshal([]byte(data), &last); err != nil || last.Sequence != len(kinds) {
				t.Fatalf("event %d: %s: %v", len(kinds), data, err)
			}
			kinds = append(kinds, last.Type)
			if last.Type == "response.output_text.delta" {
				text.WriteString(last.Delta)
			}
		}
		if text.String() != whole.text() || len(kinds) != 7+7 || last.Type != "response.incomplete" || last.Response.text() != whole.text() {
			t.Errorf("streamed %q in %q, in one piece %q", text.String(), kinds, whole.text())
		}
		b.respond(fmt.Sprintf(`{"input":"more","previous_response_id":%q}`, last.Response.ID))
	})
}

func TestResponseErrors(t *testing.T) {
	bubble(t, Options{}, func(t *testing.T, b *bench) {
		unstored := b.respond(`{"input":"hello","store":false}`)
		for body, want := range map[string]string{
			`{"input":"x","previous_response_id":"resp_9"}`:                     `404 "resp_9\" not found`,
			fmt.Sprintf(`{"input":"x","previous_response_id":%q}`, unstored.ID): "404 not found",
			`{"model":"gpt-9","input":"x"}`:                                     "404 does not exist",
			`{}`:                                                                "400 input: is required, a string or an array of items",
			`{"input":7}`:                                                       "400 got 7",
			`{"input":[7]}`:                                                     "400 must be an object",
			`{"input":[{"type":"computer_call"}]}`:                              `400 input[0].type: must be message, function_call or function_call_output, got \"computer_call`,
			`{"input":[{"content":"x"}]}`:                                       "400 messages[0].role is required",
			`{"input":"x","max_output_tokens":0}`:                               "400 max_tokens: must be at least 1, got 0",
			`{"input":"x"`:                                                      "400 invalid JSON",
		} {
			status, text := b.post(responsesPath, body)
			code, words, _ := strings.Cut(want, " ")
			if fmt.Sprint(status) != code || !strings.Contains(text, words) {
				t.Errorf("%s has response %d %s, want %s", body, status, text, want)
			}
		}
		calls := b.respond(`{"input":[{"role":"user","content":"x"},{"type":"function_call","name":"f","arguments":"{}","call_id":"c"},{"type":"function_call_output","call_id":"c","output":"5"}]}`)
		if calls.text() == "" {
			t.Error("no response to a function call")
		}
	})
}

func TestStoredResponsesAreBounded(t *testing.T) {
	bubble(t, Options{}, func(t *testing.T, b *bench) {
		s := &b.server.stored
		for i := range maxResponses + 10 {
			s.putConversation(conversation{id: fmt.Sprint(i)})
		}
		if _, known := s.find("9"); known || len(s.byID) != maxResponses {
			t.Errorf("%d responses are stored, want %d without the oldest", len(s.byID), maxResponses)
		}
	})
}

func TestRerank(t *testing.T) {
	bubble(t, Options{LoRA: []string{"sql"}}, func(t *testing.T, b *bench) {
		order := func(body string) (list reranking) {
			status, text := b.post("/v1/rerank", body)
			if err := json.Unmarshal([]byte(text), &list); err != nil || status != 200 {
				t.Fatalf("%s has response %d %s", body, status, text)
			}
			return list
		}
		all := order(`{"query":"water","documents":["river","market","sea"]}`)
		if len(all.Results) != 3 || all.Usage.TotalTokens != 6 {
			t.Fatalf("%+v", all)
		}
		for i, r := range all.Results[1:] {
			if r.RelevanceScore > all.Results[i].RelevanceScore || r.RelevanceScore < 0 {
				t.Errorf("scores %+v are not sorted", all.Results)
			}
		}
		if top := order(`{"query":"water","documents":["river","market","sea"],"top_n":1}`); len(top.Results) != 1 || top.Results[0].Index != all.Results[0].Index {
			t.Errorf("the best result alone is %+v", top.Results)
		}
		if other := order(`{"model":"sql","query":"water","documents":["river"]}`); other.Results[0].RelevanceScore == order(`{"query":"water","documents":["river"]}`).Results[0].RelevanceScore {
			t.Error("an adapter has the same scores as its model")
		}
		for _, body := range []string{`{"query":"x"}`, `{"query":"x","documents":[]}`, `{"query":"x","documents":[1]}`, `{"query":"x","documents":["a"],"top_n":0}`} {
			if status, text := b.post("/v1/rerank", body); status != 400 {
				t.Errorf("%s has response %d %s", body, status, text)
			}
		}
	})
}
