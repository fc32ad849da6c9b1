package lbd

import (
	"bytes"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"skyserve/internal/service"
	"skyserve/internal/testkit"
)

// Secrets of a balancer, and texts of its clients, do not appear in its outputs: log, record,
// metrics, snapshot, decisions, events, history, usage, and errors for others.
func TestPublicResponsesRevealNothing(t *testing.T) {
	const model = "llama"
	secrets := []string{
		"sk-alpha-secret", "sk-mistaken-secret", "admin-secret", "peer-secret", "cookie-secret", "org-secret", // credentials
		"my private diary", "a private tool", "alice@private.example", "private-session", "private-cache", // texts of clients
	}
	e := newEngine(t, model, "")
	log := &lines{}
	t.Setenv("TELLING_KEYS", "sk-alpha-secret name=acme requests_per_minute=6")
	record := filepath.Join(t.TempDir(), "record.jsonl")
	cfg := config("lb", "local/us", service.ReplicaConfig{ID: "us-0", URL: e.URL, Model: model}, service.ReplicaConfig{ID: "us-1", URL: "http://127.0.0.1:1", Model: model})
	cfg.PeerToken, cfg.Record = "peer-secret", record
	cfg.Peers = []service.PeerConfig{{ID: "lb-eu", Region: "local/eu", URL: "http://127.0.0.1:1"}}
	cfg.Balancer.AccessLog = true
	cfg.Balancer.Auth = &service.Auth{KeysFrom: "env:TELLING_KEYS"}
	n := start(t, cfg, Options{
		AdminToken: "admin-secret",
		Logger:     slog.New(slog.NewJSONHandler(log, &slog.HandlerOptions{Level: slog.LevelDebug})),
	})
	hc := client(t)
	send := func(method, url, body string, headers ...string) (int, string) {
		req, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Cookie", "id=cookie-secret")
		for i := 0; i < len(headers); i += 2 {
			req.Header.Set(headers[i], headers[i+1])
		}
		res, err := hc.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		text, err := io.ReadAll(res.Body)
		if err != nil {
			t.Fatal(err)
		}
		return res.StatusCode, string(text)
	}
	admin := func(method, path string) string {
		_, body := send(method, n.adminURL+path, "", "Authorization", "Bearer admin-secret")
		return body
	}
	testkit.Eventually(t, "the replica is ready", func() bool { return strings.Contains(admin("GET", "/workers"), "READY") })
	shown := map[string]string{}
	body := `{"model":"llama","user":"alice@private.example","prompt_cache_key":"private-cache","tools":[{"type":"function","function":{"name":"a private tool"}}],"messages":[{"role":"user","content":"my private diary"}]}`
	key := []string{"Authorization", "Bearer sk-alpha-secret", "X-Session-ID", "private-session", "OpenAI-Organization", "org-secret", "X-Request-ID", "req-1"}
	chat := n.public + "/v1/chat/completions"
	for name, c := range map[string]struct {
		url, body string
		headers   []string
		status    int
	}{
		"served":           {chat, body, key, 200},
		"no key":           {chat, body, nil, 401},
		"mistaken":         {chat, body, []string{"Authorization", "Bearer sk-mistaken-secret"}, 401},
		"mistaken scheme":  {chat, body, []string{"Authorization", "sk-alpha-secret"}, 401},
		"mistaken header":  {chat, body, []string{"X-Skyserve-Peer-Token", "sk-alpha-secret", "X-Skyserve-From", "lb-eu", "X-Skyserve-Hop", "remote"}, 401},
		"not JSON":         {chat, strings.TrimSuffix(body, "}"), key, 400},
		"no such model":    {chat, strings.Replace(body, `"llama"`, `"none"`, 1), key, 404},
		"no model":         {chat, strings.Replace(body, `"model":"llama",`, "", 1), key, 400},
		"no such response": {n.public + "/v1/responses", `{"model":"llama","input":"my private diary","previous_response_id":"resp_1"}`, key, 400},
		"no such path":     {n.public + "/v1/none", body, key, 404},
		"peers":            {n.public + "/skyserve/v1/holds?id=x", "", []string{"X-Skyserve-Peer-Token", "sk-mistaken-secret"}, 405},
	} {
		got, text := send("POST", c.url, c.body, c.headers...)
		if got != c.status {
			t.Errorf("%s: status %d, want %d: %s", name, got, c.status, text)
		}
		shown["the answer to "+name] = text
	}
	for range 6 {
		_, shown["a limit reached"] = send("POST", chat, body, key...)
	}
	for _, path := range []string{
		"/workers", "/list_workers", "/v1/snapshot", "/v1/decisions", "/v1/decisions/req-1", "/v1/requests", "/v1/history", "/v1/usage", "/metrics", "/debug/pprof/cmdline",
		"/debug/pprof/goroutine?debug=1",
	} {
		shown[path] = admin("GET", path)
	}
	shown["a reload"] = admin("POST", "/reload")
	t.Setenv("TELLING_KEYS", "sk-alpha-secret limit=sk-mistaken-secret\nsk-alpha-secret name=b")
	shown["a reload that is refused"] = admin("POST", "/reload")
	_, shown["the admin API to a stranger"] = send("GET", n.adminURL+"/v1/snapshot", "", "Authorization", "Bearer sk-mistaken-secret")
	n.stop()
	if err := n.wait(); err != nil {
		t.Fatal(err)
	}
	shown["the log"] = log.String()
	text, err := os.ReadFile(record)
	if err != nil {
		t.Fatal(err)
	}
	shown["the record"] = string(text)
	if !strings.Contains(shown["the record"], `"finished"`) || !strings.Contains(shown["the log"], "req-1") || !strings.Contains(shown["/v1/decisions/req-1"], "us-0") {
		t.Error("no output to check")
	}
	for where, text := range shown {
		for _, secret := range secrets {
			if at := bytes.Index([]byte(text), []byte(secret)); at >= 0 {
				t.Errorf("%s shows %q: ...%s", where, secret, text[max(0, at-60):at+len(secret)])
			}
		}
	}
}

// A file with a secret that other users can read is named in the log at the start and after a reload, with its mode and
// the remedy; the balancer serves.
func TestReadableSecretsAreLogged(t *testing.T) {
	dir := t.TempDir()
	write := func(name string, mode os.FileMode) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte("sk-0123456789abcdef"), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
		return path
	}
	keys, engineKey, providerKey := write("keys", 0o644), write("engine", 0o640), write("provider", 0o600)
	e := newEngine(t, "llama", "")
	cfg := config("lb", "local/us", service.ReplicaConfig{ID: "us-0", URL: e.URL, Model: "llama", APIKey: "file:" + engineKey})
	cfg.Balancer.Auth = &service.Auth{KeysFrom: "file:" + keys}
	cfg.Providers = []service.Provider{{Name: "p", URL: "http://127.0.0.1:1", APIKey: "file:" + providerKey, Models: []service.ProviderModel{{Name: "x"}}}}
	log := &lines{}
	n := start(t, cfg, Options{Logger: log.logger()})
	for path, mode := range map[string]string{keys: "0644", engineKey: "0640"} {
		want := path + ": other users can read it (mode " + mode + "); run 'chmod 600 " + path + "'"
		if got := strings.Count(log.String(), want); got != 1 {
			t.Errorf("%q is logged %d times, want once:\n%s", want, got, log)
		}
	}
	if strings.Contains(log.String(), providerKey) {
		t.Errorf("the private file %s is logged:\n%s", providerKey, log)
	}
	if err := os.Chmod(providerKey, 0o606); err != nil {
		t.Fatal(err)
	}
	if _, err := n.admin.Reload(t.Context()); err != nil {
		t.Fatal(err)
	}
	if want := providerKey + ": other users can read it (mode 0606)"; !strings.Contains(log.String(), want) {
		t.Errorf("after a reload the log does not contain %q", want)
	}
}
