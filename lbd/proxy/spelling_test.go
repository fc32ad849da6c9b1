package proxy

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"
)

// A key that two parsers could interpret differently is rejected with its name: the engine must not
// use a value that the balancer did not parse.
func TestAmbiguousKeysAreRejected(t *testing.T) {
	b := start(t, testOptions(t))
	b.attach("us-0", engine(t, func(w http.ResponseWriter, _ *http.Request) {
		t.Error("an engine got the request")
		w.WriteHeader(http.StatusTeapot)
	}))
	refused := func(key, member string) {
		t.Helper()
		body := expect(t, b.post(responsesPath, `{"model":"chat-small","input":"x",`+member+`}`), http.StatusBadRequest, "ambiguous_key")
		var e struct {
			Error struct{ Message, Param string }
		}
		if err := json.Unmarshal([]byte(body), &e); err != nil || e.Error.Param != key || !strings.Contains(e.Error.Message, key) {
			t.Errorf("%s: the error does not name %s: %s", member, key, body)
		}
	}
	refused("model", `"model":"x"`)
	refused("previous_response_id", `"previous\u005fresponse_id":"resp_theirs"`)
	refused("previous_response_id", `"Previous_response_id":"resp_theirs"`)
	refused("temperature", `"temperatur\u0065":1`)
}

// A key that no parser interprets as a parameter is forwarded unchanged.
func TestEngineKeysAreForwarded(t *testing.T) {
	b := start(t, testOptions(t))
	bodies := make(chan string, 1)
	b.attach("us-0", engine(t, asked(bodies, chunk("a")+doneEvent)))
	for _, member := range []string{
		`"Temperature":1`, `"temperature":1,"temperature":2`, `"\u043a\u043b\u044e\u0447":1`, `"mod\u0435l":"x"`, `"mod` + "\u0435" + `l":"x"`, `"":1`, `"\"model\"":1`,
		`"metadata":{"mod\u0065l":1,"Model":2,"model":3,"model":4}`, `"model\u0000":"x"`, `"\ud800":1`, `"user.id":1`,
		`"tools":[{"function":{"name":"f","parameters":{"properties":{"\u540d\u524d":{"type":"string"}}}}}]`,
	} {
		body := with(plainBody, member)
		read(t, b.post(chatPath, body))
		if got := <-bodies; got != body {
			t.Errorf("the engine got %s, want %s", got, body)
		}
	}
}

// A byte order mark before a body is accepted, as by vLLM, and not forwarded: other engines reject it.
func TestByteOrderMarkIsNotForwarded(t *testing.T) {
	b := start(t, testOptions(t))
	bodies := make(chan string, 1)
	b.attach("us-0", engine(t, asked(bodies, chunk("a")+doneEvent)))
	res := b.post(chatPath, "\xef\xbb\xbf"+plainBody)
	if text := read(t, res); res.StatusCode != http.StatusOK {
		t.Fatalf("got %d %s", res.StatusCode, text)
	}
	if got := <-bodies; got != plainBody {
		t.Errorf("the engine got %q, want %q", got, plainBody)
	}
}

// Below the top level escapes are allowed, because schemas and templates contain keys of their users;
// they are decoded normally.
func TestNestedKeysMatchDecoders(t *testing.T) {
	b := start(t, testOptions(t))
	bodies := make(chan string, 1)
	b.attach("us-0", engine(t, asked(bodies, chunk("a")+usageEvent(3, 0, 1)+doneEvent)))
	for _, options := range []string{
		`{"include\u005fusage":false}`, `{"include_usage":true,"include_us\u0061ge":false}`, `{"x":1,"include_usag\u0065" : null}`,
	} {
		if got := read(t, b.post(chatPath, with(streamBody, `"stream_options":`+options))); strings.Contains(got, "usage\":{") {
			t.Errorf("%s: the client was shown a usage that it did not ask for: %s", options, got)
		}
		var sent struct {
			Options map[string]any `json:"stream_options"`
		}
		if body := <-bodies; json.Unmarshal([]byte(body), &sent) != nil || sent.Options["include_usage"] != true {
			t.Errorf("%s: the usage is not requested from the engine: %s", options, body)
		}
	}
}
