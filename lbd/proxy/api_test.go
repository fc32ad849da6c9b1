package proxy

import (
	"errors"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"skyserve/internal/service"

	"skyserve/internal/testkit"
	"skyserve/lbd/core"
)

func equal(a, b []string) bool { return slices.Equal(a, b) }

func contains(s string, parts ...string) bool {
	return !slices.ContainsFunc(parts, func(p string) bool { return !strings.Contains(s, p) })
}

func TestPaths(t *testing.T) {
	b := start(t, testOptions(t))
	for _, c := range []struct {
		method, path string
		status       int
		code         string
	}{
		{"GET", "/healthz", 200, ""},
		{"HEAD", "/healthz", 200, ""},
		{"POST", "/healthz", 405, "method_not_allowed"},
		{"GET", "/readyz", 503, ""},
		{"GET", "/health", 503, ""},
		{"HEAD", "/health", 503, ""},
		{"POST", "/health", 405, "method_not_allowed"},
		{"GET", "/ping", 503, ""},
		{"POST", "/ping", 503, ""},
		{"GET", "/version", 200, ""},
		{"POST", "/version", 405, "method_not_allowed"},
		{"GET", "/v1/models", 200, ""},
		{"GET", chatPath, 405, "method_not_allowed"},
		{"GET", "/v1/files", 503, "no_store"},
		{"POST", "/v1/files/x", 503, "no_store"},
		{"POST", "/v1/batches", 503, "no_store"},
		{"GET", "/", 404, "not_found"},
		{"POST", "/v1/filesystem", 404, "not_found"},
		{"POST", chatPath + "/", 404, "not_found"},
		{"GET", "/metrics", 404, "not_found"},
	} {
		req, err := http.NewRequestWithContext(t.Context(), c.method, b.url+c.path, nil)
		if err != nil {
			t.Fatal(err)
		}
		t.Run(c.method+c.path, func(t *testing.T) { expect(t, b.do(req), c.status, c.code) })
	}
}

func TestReady(t *testing.T) {
	b := start(t, testOptions(t))
	want := func(status int, why string) {
		t.Helper()
		for _, path := range []string{"/readyz", "/health", "/ping"} {
			if code, body := b.get(path); code != status || !strings.Contains(body, why) {
				t.Errorf("%s returns %d %q, want %d %q", path, code, body, status, why)
			}
		}
	}
	want(503, "no replica is attached")
	if _, err := b.AddReplica(replicaAt("us-0", "http://127.0.0.1:1")); err != nil {
		t.Fatal(err)
	}
	want(503, "none of 1 replica is ready and no peer can serve: 'skyserve top' shows the reasons\n")
	b.Step(core.Event{Kind: core.EventReplicaReport, Target: "us-0", Report: &core.ProbeReport{Reason: "dial tcp 10.0.0.7:8000: no route to host"}})
	if _, body := b.get("/readyz"); strings.Contains(body, "10.0.0.7") {
		t.Errorf("readyz, which requires no key, names a machine: %q", body)
	}
	b.report("us-0")
	want(200, "ok")
	if !b.DrainReplica("us-0") || b.DrainReplica("us-9") {
		t.Error("draining does not distinguish a known replica from an unknown one")
	}
	want(503, "every replica is draining")
	if _, err := b.AddReplica(replicaAt("us-1", "http://127.0.0.1:1")); err != nil {
		t.Fatal(err)
	}
	want(503, "none of 2 replicas is ready and no peer can serve: 'skyserve top' shows the reasons\n")
}

// A replica with a key of its own receives no credential of the client, also from a service without keys, which
// forwards them to other engines.
func TestEngineKeyReplacesCredentials(t *testing.T) {
	b := start(t, testOptions(t))
	headers := make(chan http.Header, 1)
	cfg := replicaAt("us-0", engine(t, func(w http.ResponseWriter, r *http.Request) {
		headers <- r.Header.Clone()
		asked(make(chan string, 1), chunk("a")+doneEvent)(w, r)
	}))
	cfg.Key = "engine-key"
	if _, err := b.AddReplica(cfg); err != nil {
		t.Fatal(err)
	}
	b.report("us-0")
	read(t, b.post(chatPath, plainBody, "Authorization: Bearer theirs", "X-Api-Key: theirs"))
	if h := <-headers; h.Get("Authorization") != "Bearer engine-key" || h.Get("X-Api-Key") != "" {
		t.Errorf("the engine got %v", h)
	}
}

// The version is visible to everyone who may use the service.
func TestVersion(t *testing.T) {
	o := testOptions(t)
	o.Version = "1.2.3"
	b := start(t, o)
	if status, body := b.get("/version"); status != 200 || body != `{"version":"1.2.3"}`+"\n" {
		t.Errorf("without keys: %d %s", status, body)
	}
	b.SetKeys(apiKeys("sk-one"))
	if status, body := b.get("/version"); status != 401 || strings.Contains(body, "1.2.3") {
		t.Errorf("without the required key: %d %s", status, body)
	}
	if status, body := b.get("/version", "Authorization: Bearer sk-one"); status != 200 || !strings.Contains(body, "1.2.3") {
		t.Errorf("with the required key: %d %s", status, body)
	}
	if status, _ := b.get("/health"); status != 503 {
		t.Errorf("/health requires a key: %d", status)
	}
}

func TestMalformedBodies(t *testing.T) {
	b := start(t, testOptions(t))
	b.attach("us-0", engine(t, whole(plainReply)))
	for body, found := range map[string]string{
		"":                            "byte 0 (line 1, column 1): expected '{', got the end of the body",
		"[]":                          "byte 0 (line 1, column 1): expected '{', got '['",
		"{\"model\":\n  \"x\",}":      "byte 16 (line 2, column 7): expected a key in quotes, got '}'",
		`{"model":"x" "a":1}`:         "byte 13 (line 1, column 14): expected ',' or '}', got '\"'",
		`{"model":"x`:                 "byte 11 (line 1, column 12): expected '\"' at the end of a string, got the end of the body",
		`{"model":tru}`:               "byte 12 (line 1, column 13): expected true, got '}'",
		`{"a":01}`:                    "byte 6 (line 1, column 7): expected ',' or '}', got '1'",
		`{"a":1.}`:                    "byte 7 (line 1, column 8): expected a digit, got '}'",
		`{"a":1e+}`:                   "byte 8 (line 1, column 9): expected a digit, got '}'",
		`{"a":-}`:                     "byte 6 (line 1, column 7): expected a digit, got '}'",
		`{"a":"\x"}`:                  "byte 7 (line 1, column 8): expected one of \"\\/bfnrtu after a backslash, got 'x'",
		`{"a":"\u12g4"}`:              "byte 10 (line 1, column 11): expected four hexadecimal digits, got 'g'",
		"{\"a\":\"\n\"}":              `byte 6 (line 1, column 7): expected no control character in a string, got '\n'`,
		`{"a" 1}`:                     "byte 5 (line 1, column 6): expected ':' after a key, got '1'",
		`{"a":[1 2]}`:                 "byte 8 (line 1, column 9): expected ',' or ']', got '2'",
		`{"a":1} x`:                   "byte 8 (line 1, column 9): expected nothing after the object, got 'x'",
		"{\"a\":\xff}":                "byte 5 (line 1, column 6): expected UTF-8, got byte 0xff",
		strings.Repeat(`{"a":`, 1000): "expected at most 256 levels of brackets, got '{'",
	} {
		got := expect(t, b.post(chatPath, body), http.StatusBadRequest, "invalid_json")
		if message, _, _ := apiErrorOf(t, got); !strings.HasSuffix(message, found) {
			t.Errorf("%q returns %q, want ... %q", body, message, found)
		}
	}
	if c := b.View().Counts; c.Arrived != 0 {
		t.Errorf("counts %+v: a malformed request reached the core", c)
	}
}

func TestUnknownModels(t *testing.T) {
	b := start(t, testOptions(t))
	for body, want := range map[string]struct {
		status      int
		code, found string
	}{
		`{"messages":[]}`:        {400, "missing_required_parameter", "model is required"},
		`{"model":7}`:            {400, "invalid_type", "model: must be a string, got 7"},
		`{"model":["m"]}`:        {400, "invalid_type", "model: must be a string, got an array"},
		`{"model":{"name":"m"}}`: {400, "invalid_type", "model: must be a string, got an object"},
		`{"model":null}`:         {400, "invalid_type", "model: must be a string, got null"},
		`{"model":"gpt-9"}`:      {404, "model_not_found", `"gpt-9" does not exist`},
		`{"model":"Chat-Small"}`: {404, "model_not_found", "does not exist"},
	} {
		got := expect(t, b.post(chatPath, body), want.status, want.code)
		if message, _, _ := apiErrorOf(t, got); !contains(message, want.found, "available models: chat-small, "+testModel) {
			t.Errorf("%s returns %q", body, message)
		}
	}
}

// A balancer that knows no model yet, because its engines are still loading, does not say that the model does not exist:
// clients do not retry 404.
func TestModelsBeforeFirstReplicaIsReady(t *testing.T) {
	options := testOptions(t)
	options.Self.Models = nil
	b := start(t, options)
	resp := b.post(chatPath, `{"model":"llama","messages":[]}`)
	if resp.Header.Get("Retry-After") == "" {
		t.Error("no Retry-After")
	}
	body := expect(t, resp, http.StatusServiceUnavailable, "no_models")
	if message, _, _ := apiErrorOf(t, body); !contains(message, `"llama" is not known yet`, "no replica") {
		t.Errorf("returned %q", message)
	}
}

func TestPreviousResponse(t *testing.T) {
	b := start(t, testOptions(t))
	b.attach("us-0", engine(t, whole(`{"id":"resp_1","output":[],"usage":{"input_tokens":5,"output_tokens":7,"input_tokens_details":{"cached_tokens":3}}}`)))
	expect(t, b.post("/v1/responses", `{"model":"chat-small","input":"x","previous_response_id":"resp_1"}`), 400, "previous_response_not_found")
	expect(t, b.post("/v1/responses", `{"model":"chat-small","input":"x","previous_response_id":null}`), 200, "")
	b.settled()
	if p := b.tallied(); p.PromptTokens != 5 || p.OutputTokens != 7 || p.CachedTokens != 3 {
		t.Errorf("points %+v, want the usage of one response", p)
	}
}

// sendPartOfBody sends one byte of a body of nine, and returns everything that the balancer sends until it closes the
// connection.
func (b *balancer) sendPartOfBody(path string) (answer string, err error) {
	b.t.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(b.url, "http://"))
	if err != nil {
		b.t.Fatal(err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(5 * time.Second)) // only to end a failing test
	_, _ = io.WriteString(conn, "POST "+path+" HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n{")
	all, err := io.ReadAll(conn)
	return string(all), err
}

// If a request is rejected and its client sends no more of the declared body, the connection is
// closed.
func TestBodyOfRejectedRequest(t *testing.T) {
	o := testOptions(t)
	o.Keys, o.Limits.BodyTimeout = apiKeys("sk"), 20*time.Millisecond
	b := start(t, o)
	for path, status := range map[string]string{chatPath: "401", "/v1/models/x": "405", "/v1/files": "401", "/none": "404"} {
		answer, err := b.sendPartOfBody(path)
		if err != nil || !strings.HasPrefix(answer, "HTTP/1.1 "+status) {
			t.Errorf("%s: got %q, %v", path, answer, err)
		}
	}
}

// A body that does not arrive within Limits.BodyTimeout is rejected.
func TestBodyTimeout(t *testing.T) {
	o := testOptions(t)
	o.Limits.BodyTimeout = 100 * time.Millisecond
	b := start(t, o)
	b.responderAt("us-0")
	id, _ := b.respond("", false)
	for _, path := range []string{chatPath, responsesPath + "/" + id + "/cancel"} {
		answer, _ := b.sendPartOfBody(path)
		if !strings.HasPrefix(answer, "HTTP/1.1 408") || !strings.Contains(answer, "not received within 100ms: send a smaller body, or use a faster connection") {
			t.Errorf("%s: got %q, want 408 and the limit", path, answer)
		}
	}
}

func TestTooLargeBody(t *testing.T) {
	testkit.Slow(t)
	b := start(t, testOptions(t))
	b.attach("us-0", engine(t, whole(plainReply)))
	t.Run("declared", func(t *testing.T) {
		conn, err := net.Dial("tcp", strings.TrimPrefix(b.url, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		_, _ = io.WriteString(conn, "POST "+chatPath+" HTTP/1.1\r\nHost: x\r\nContent-Length: 20971520\r\n\r\n") // and no byte of it
		answer, err := io.ReadAll(conn)
		if err != nil || !strings.HasPrefix(string(answer), "HTTP/1.1 413 ") || !contains(string(answer), "request_too_large", "Connection: close") {
			t.Errorf("got %q, %v", answer, err)
		}
	})
	t.Run("chunked", func(t *testing.T) {
		body := io.MultiReader(strings.NewReader(`{"model":"`), strings.NewReader(strings.Repeat("x", 20<<20)))
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, b.url+chatPath, io.NopCloser(body))
		if err != nil {
			t.Fatal(err)
		}
		resp, err := client.Do(req)
		if err != nil {
			var op *net.OpError
			if !errors.As(err, &op) {
				t.Fatal(err)
			}
			return // disconnected before it had read the response
		}
		expect(t, resp, http.StatusRequestEntityTooLarge, "request_too_large")
	})
	t.Run("largest", func(t *testing.T) {
		begin, end := `{"model":"chat-small","prompt":"`, `"}`
		expect(t, b.post("/v1/completions", begin+strings.Repeat("x", 16<<20-len(begin)-len(end))+end), 200, "")
	})
	if c := b.settled(); c.Arrived != 1 {
		t.Errorf("counts %+v, want one arrival", c)
	}
}

func TestTiers(t *testing.T) {
	b := start(t, testOptions(t))
	b.attach("us-0", engine(t, whole(plainReply)))
	expect(t, b.post(chatPath, plainBody, "X-Skyserve-Tier: gold"), 400, "invalid_tier")
	expect(t, b.post(chatPath, plainBody, "X-Skyserve-Tier: niw"), 200, "")
	expect(t, b.post(chatPath, plainBody), 200, "")
	b.settled()
	p := b.History(0)
	if len(p) != 2 || p[0].Tier != service.TierFast || p[1].Tier != service.TierDeferred {
		t.Errorf("points %+v, want one of each tier", p)
	}
}

func TestKeys(t *testing.T) {
	o := testOptions(t)
	o.Keys = apiKeys("sk-one", "sk-two")
	b := start(t, o)
	b.attach("us-0", engine(t, func(w http.ResponseWriter, req *http.Request) {
		if got := req.Header.Get("Authorization"); got != "" {
			t.Errorf("the engine got the client's key %q", got)
		}
		_, _ = io.WriteString(w, plainReply)
	}))
	for header, status := range map[string]int{
		"Authorization: Bearer sk-one": 200, "Authorization: bearer sk-two": 200, "Authorization: Bearer sk-three": 401,
		"Authorization: Basic sk-one": 401, "Authorization: Bearer ": 401, "X-None: 1": 401, "Authorization: Bearer sk-on": 401,
	} {
		code := ""
		if status == 401 {
			code = "invalid_api_key"
		}
		expect(t, b.post(chatPath, plainBody, header), status, code)
		if got, _ := b.get("/v1/models", header); got != status {
			t.Errorf("%s: /v1/models returns %d, want %d", header, got, status)
		}
	}
	if got, _ := b.get("/healthz"); got != 200 {
		t.Errorf("healthz requires a key: %d", got)
	}
	if c := b.settled(); c.Arrived != 2 {
		t.Errorf("counts %+v, want two arrivals", c)
	}
}

// An unknown path that differs from a known one only in /v1 names the known one.
func TestUnknownPathSuggestsKnownOne(t *testing.T) {
	b := start(t, testOptions(t))
	for path, want := range map[string]string{
		"/chat/completions": "did you mean /v1/chat/completions?", "/v1" + chatPath: "did you mean /v1/chat/completions?",
		"/models": "did you mean /v1/models?", "/v1/v1/models": "did you mean /v1/models?",
	} {
		message, _, _ := apiErrorOf(t, expect(t, b.post(path, plainBody), 404, "not_found"))
		if !strings.HasSuffix(message, want) {
			t.Errorf("%s: %s", path, message)
		}
	}
	if message, _, _ := apiErrorOf(t, expect(t, b.post("/v1/unknown", plainBody), 404, "not_found")); strings.Contains(message, "did you mean") {
		t.Errorf("an unknown path: %s", message)
	}
}
