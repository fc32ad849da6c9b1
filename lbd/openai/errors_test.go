package openai

import (
	"strings"
	"testing"
)

func TestErrorResponseEvent(t *testing.T) {
	for name, c := range map[string]struct {
		status int
		body   string
		path   string
		want   string
	}{
		"OpenAI's format":     {400, "{\n \"error\": {\"message\": \"too long\"}\n}", chatPath, `data: {"error":{"message":"too long"}}` + "\n\n"},
		"with a name":         {503, `{"error":{"code":"x"}}`, "/v1/responses", "event: error\n" + `data: {"error":{"code":"x"}}` + "\n\n"},
		"an error as text":    {400, `{"error":"no"}`, chatPath, `data: {"error":{"message":"the engine returned status 400: \"{\\\"error\\\":\\\"no\\\"}\"","type":"invalid_request_error","param":null,"code":"engine_error"}}` + "\n\n"},
		"no JSON":             {502, "<html>\n", chatPath, `data: {"error":{"message":"the engine returned status 502: \"\u003chtml\u003e\\n\"","type":"server_error","param":null,"code":"engine_error"}}` + "\n\n"},
		"truncated JSON":      {500, `{"error":{"message":"a`, chatPath, `data: {"error":{"message":"the engine returned status 500: \"{\\\"error\\\":{\\\"message\\\":\\\"a\"","type":"server_error","param":null,"code":"engine_error"}}` + "\n\n"},
		"Anthropic's format":  {503, `{"type":"error","error":{"type":"overloaded_error"}}`, pathMessages, "event: error\n" + `data: {"type":"error","error":{"type":"overloaded_error"}}` + "\n\n"},
		"another format":      {400, `{"error":{"message":"x"}}`, pathMessages, "event: error\n" + `data: {"type":"error","error":{"type":"invalid_request_error","message":"x"},"request_id":"req-1"}` + "\n\n"},
		"without a message":   {500, `{"error":{"code":"x"}}`, pathMessages, "event: error\n" + `data: {"type":"error","error":{"type":"api_error","message":"the engine returned status 500: \"{\\\"error\\\":{\\\"code\\\":\\\"x\\\"}}\""},"request_id":"req-1"}` + "\n\n"},
		"nothing in the body": {500, "", chatPath, `data: {"error":{"message":"the engine returned status 500: \"\"","type":"server_error","param":null,"code":"engine_error"}}` + "\n\n"},
	} {
		if got := string(endpoints[c.path].ErrorResponseEvent(c.status, []byte(c.body), "req-1")); got != c.want {
			t.Errorf("%s: got\n%s, want\n%s", name, got, c.want)
		}
	}
}

// Clip does not divide a character.
func TestClipEndsAtWholeCharacters(t *testing.T) {
	for raw, want := range map[string]string{
		"llama":                                  `"llama"`,
		strings.Repeat("é", 20):                  `"` + strings.Repeat("é", 20) + `"`,
		strings.Repeat("é", 30):                  `"` + strings.Repeat("é", 20) + `"...`,
		"x" + strings.Repeat("é", 30):            `"x` + strings.Repeat("é", 19) + `"...`,
		"xxx" + strings.Repeat("\U0001f600", 20): `"xxx` + strings.Repeat("\U0001f600", 9) + `"...`,
	} {
		if got := Clip([]byte(raw)); got != want {
			t.Errorf("Clip(%q) = %s, want %s", raw, got, want)
		}
	}
}
