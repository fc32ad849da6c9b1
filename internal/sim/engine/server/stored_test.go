package server

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"
)

// request sends a request without a body and returns status and text.
func (b *bench) request(method, path string) (int, string) {
	b.t.Helper()
	req, err := http.NewRequestWithContext(b.t.Context(), method, "http://engine"+path, nil)
	if err != nil {
		b.t.Fatal(err)
	}
	resp, err := b.client.Do(req)
	if err != nil {
		b.t.Fatalf("%s %s: %v", method, path, err)
	}
	return resp.StatusCode, read(b.t, resp)
}

func TestResponseIsStoredUntilDeleted(t *testing.T) {
	bubble(t, Options{}, func(t *testing.T, b *bench) {
		given := b.respond(`{"input":"hello","max_output_tokens":9}`)
		path := responsesPath + "/" + given.ID
		whole, _ := json.Marshal(given)
		if status, text := b.request("GET", path); status != http.StatusOK || strings.TrimSpace(text) != string(whole) {
			t.Errorf("%d %s, want the stored response: %s", status, text, whole)
		}
		if status, text := b.request("POST", path+"/cancel"); status != http.StatusBadRequest || !strings.Contains(errorOf(t, text).Message, "background") {
			t.Errorf("cancelling a complete response: %d %s", status, text)
		}
		if status, text := b.request("DELETE", path); status != http.StatusOK || !strings.Contains(text, `"deleted":true`) {
			t.Errorf("deleting: %d %s", status, text)
		}
		for method, rest := range map[string]string{"GET": "", "DELETE": "", "POST": "/cancel"} {
			if status, text := b.request(method, path+rest); status != http.StatusNotFound || errorOf(t, text).Message == "" {
				t.Errorf("%s%s of a deleted response: %d %s", method, rest, status, text)
			}
		}
		if status, _ := b.post(responsesPath, `{"input":"more","previous_response_id":"`+given.ID+`"}`); status != http.StatusNotFound {
			t.Errorf("continuing a deleted response: %d", status)
		}
		secret := b.respond(`{"input":"hello","max_output_tokens":9,"store":false}`)
		if status, _ := b.request("GET", responsesPath+"/"+secret.ID); status != http.StatusNotFound {
			t.Errorf("reading a response with store false: %d", status)
		}
	})
}

func TestInputItems(t *testing.T) {
	bubble(t, Options{}, func(t *testing.T, b *bench) {
		for input, want := range map[string]string{
			`"hello"`: `[{"content":[{"text":"hello","type":"input_text"}],"id":"item_ID_0","role":"user","type":"message"}]`,
			`[{"role":"user","content":"a"},{"id":"msg_1","role":"user","content":"b"}]`: `[{"content":"a","id":"item_ID_0","role":"user"},{"content":"b","id":"msg_1","role":"user"}]`,
		} {
			given := b.respond(`{"input":` + input + `,"max_output_tokens":2}`)
			status, text := b.request("GET", responsesPath+"/"+given.ID+"/input_items")
			var list struct{ Data json.RawMessage }
			if err := json.Unmarshal([]byte(text), &list); err != nil || status != http.StatusOK || string(list.Data) != strings.ReplaceAll(want, "ID", given.ID) {
				t.Errorf("%s: %d %s", input, status, text)
			}
		}
	})
}
