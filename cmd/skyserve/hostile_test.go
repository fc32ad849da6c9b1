package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"

	"skyserve/provision/local"
)

// hostile has control sequences that no remote end may send to a terminal: it clears the screen, sets
// the title, overwrites the line, reverses the writing direction and hides letters. The printed part
// starts with its first word.
const hostile = "HOSTILE\x1b[2J\x1b]0;owned\x07\x1b[31m\u009b1mred\u202eevil\u2066x\u200b\ufeff\U000e0041\rREADY\b\x7f\n\v\ttab\xff\u2028"

// poisoned returns a JSON document with hostile text after every string except times and the values
// of the kept keys.
func poisoned(document string, kept ...string) string {
	var v any
	if err := json.Unmarshal([]byte(document), &v); err != nil {
		panic(err)
	}
	text, err := json.Marshal(poison(v, "", kept))
	if err != nil {
		panic(err)
	}
	return string(text)
}

func poison(v any, key string, kept []string) any {
	switch v := v.(type) {
	case map[string]any:
		for k := range v {
			v[k] = poison(v[k], k, kept)
		}
	case []any:
		for i := range v {
			v[i] = poison(v[i], key, kept)
		}
	case string:
		if _, err := time.Parse(time.RFC3339, v); err == nil || strings.Contains(" "+strings.Join(kept, " ")+" ", " "+key+" ") {
			return v
		}
		return v + hostile
	}
	return v
}

// hostileAdmin has the responses of a balancer and a controller, with hostile text wherever possible.
var hostileAdmin = sync.OnceValue(func() map[string]string { // at its first use: this binary is also the command in scripts
	return map[string]string{
		"/v1/snapshot": poisoned(`{"at":"2026-11-21T10:00:00Z","service":"chat","regions":[{"name":"local/us",
			"balancers":[{"id":"lb-us-0","region":"local/us","policy":"cost","version":"v"}],
			"replicas":[{"id":"us-0","model":"m","state":"READY","reason":"r","gpu":"g","balancer":"lb-us-0","url":"u"}],
			"models":[{"model":"m"}],"forwarded_to":[{"region":"local/eu","requests":1}]}],
			"forecast":[{"model":"m","region":"local/us","forecaster":"arima"}],"donations":[{"replica":"us-0","region":"local/us","model":"m"}],
			"controller":{"leader":"lb-us-0","term":3,"standbys":["lb-eu-0"]},"store":{"nodes":3,"leader":"l","members":[{"node":"lb-us-0","state":"current"}],"problem":"p"},
			"plan":{"status":"optimal","reason":"r","problem":"p"},"targets":[],"prices":[],"strategy":"auto",
			"events":[{"at":"2026-11-21T10:00:00Z","kind":"k","model":"m","region":"local/us","reason":"r","message":"x"}]}`, "service", "name", "id"),
		"/v1/state":          poisoned(`{"service":"chat","leading":true,"store":"not replicated","balancers":[{"id":"lb-us-0","region":"local/us","alive":true}],"replicas":[]}`, "id"),
		"/v1/usage":          poisoned(november),
		"/v1/service/events": poisoned(`{"complete":false,"problem":"p","events":[{"id":"1","at":"2026-11-21T10:00:00Z","actor":"a","kind":"k","region":"local/us","object":"o","message":"m","reason":"r"}]}`),
		"/v1/decisions":      poisoned(`{"balancer":"lb-us-0","region":"local/us","recorded":1,"limit":2}`),
		"/v1/decisions/a": poisoned(`{"request":"a","at":"2026-11-21T10:00:00Z","balancer":"lb-us-0","region":"local/us","model":"m","tier":"IW-F","state":"finished","status":200,
			"tries":[{"kind":"dispatch","target":"us-0","reason":"cheapest","failure":"f","error":"e",
			"decision":{"policy":"cost","reason":"cheapest","considered":[{"id":"us-0","available":true}]}}],"error":"x"}`, "request", "tier", "kind"),
		"/v1/history": `{"points":[],"complete":true}`,
		"/readyz":     "ok",
		"/healthz":    "ok",
		"/v1/models":  poisoned(`{"data":[{"id":"m"}]}`),
	}
})

// hostileServer serves hostileAdmin, and a hostile error for other paths.
func hostileServer(t *testing.T, responses map[string]string) string {
	t.Helper()
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if response, has := responses[r.URL.Path]; has {
			fmt.Fprint(w, response)
			return
		}
		w.WriteHeader(http.StatusTeapot)
		fmt.Fprint(w, poisoned(`{"error":{"message":"no","type":"t","code":"c"}}`))
	}))
	t.Cleanup(srv.Close)
	return srv.URL
}

// hostileCloud rejects every call with hostile text that XML can contain.
func hostileCloud(t *testing.T) string {
	t.Helper()
	const text = "<Error><Code>HOSTILE\u009b2J</Code><Message>HOSTILE\u202ex\u2066\u200b\u007f\U000e0041</Message></Error>"
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/xml")
		w.WriteHeader(http.StatusBadRequest)
		fmt.Fprint(w, "<Response><Errors>"+text+"</Errors>"+text+"</Response>")
	}))
	t.Cleanup(srv.Close)
	return srv.URL
}

// hostileService creates a local service whose processes are servers of the test, with hostile logs.
func hostileService(t *testing.T, admin string) {
	t.Helper()
	home := t.TempDir()
	t.Setenv("SKYSERVE_HOME", home)
	dir := filepath.Join(home, "services", "chat")
	write(t, filepath.Join(dir, "service.yaml"), "name: chat\nmodels: [{name: m, engine: {kind: sim}}]\nregions: [{name: local/us}]\n")
	for id, kind := range map[string]string{"lb-us-0": "balancer", "us-0": "replica", "controller": "controller"} {
		object := filepath.Join(dir, "objects", id+".json")
		write(t, object, "")
		t.Setenv("SKYSERVE_OBJECT_RECORD", poisoned(fmt.Sprintf(`{"id":%q,"kind":%q,"region":"local/us","spec":"x","address":%q,"admin":%q,"labels":{"model":"m","gpu":"g"},"endpoints":{"inside":{"agent":"127.0.0.1:1"},"outside":{"agent":"127.0.0.1:1"}}}`, id, kind, admin, admin),
			"id", "kind", "region", "spec", "address", "admin", "agent"))
		held, err := local.HoldObject(object)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(held.Release)
		write(t, filepath.Join(dir, "logs", id+".log"), "first "+hostile+"\n"+hostile+"\r\nlast "+hostile)
	}
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// No command prints a control character from logs, responses, files or errors.
func TestCommandsEscapeControlSequences(t *testing.T) {
	good, bad := hostileServer(t, hostileAdmin()), hostileServer(t, nil)
	hostileService(t, good)
	dir := t.TempDir()
	file := func(name, text string) string {
		path := filepath.Join(dir, name)
		write(t, path, text)
		return path
	}
	problem := file("problem.json", poisoned(`{"models":["m"],"regions":["r"],"gpus":["g"],"n":[[[0]]],"theta":[[1000]],"alpha":[1],"sigma":[[0.1]],"rho":[[[5000]]],"epsilon":0.5}`))
	impossible := file("impossible.json", poisoned(`{"models":["m"],"regions":["r"],"gpus":["g"],"n":[[[0]]],"theta":[[1000]],"alpha":[1],"sigma":[[0.1]],"rho":[[[5000]]],"epsilon":0.5,"max":[[1]]}`))
	spec := file("service.yaml", "name: chat\n\"HOSTILE\\e[2J\\u202e\": 1\nmodels: [{name: \"HOSTILE\\e[2Jm\", engine: {kind: \"HOSTILE\\e[2J\"}}]\nregions: [{name: local/us}]\n")
	cloud := file("cloud.yaml", "name: far\nmodels: [{name: m, engine: {kind: sim}, gpus: [{type: L4, tps: 1000}]}]\nregions: [{name: aws/us-east-1}]\nbalancer: {insecure: true, auth: {keys_from: env:KEYS}}\n")
	aws := hostileCloud(t)
	t.Setenv("KEYS", "key-of-a-client")
	t.Setenv("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "secret")
	raw := file("raw.yaml", "service: chat\n\"HOSTILE\\e[2J\\u202e\": 1\n")
	missing := filepath.Join(dir, "HOSTILE\x1b[2J\u202e.yaml")
	for _, args := range [][]string{
		{"status"},
		{"status", "-o", "json"},
		{"replica", "list"},
		{"replica", "list", "-o", "json"},
		{"replica", "drain", "us-0", "--service", hostile},
		{"logs", "chat"},
		{"logs", "chat", "us-0", "--tail", "2"},
		{"logs", "chat", hostile},
		{"top", "--once"},
		{"top", "-o", "json"},
		{"top", "--once", "--admin", bad},
		{"top", "--replay", missing},
		{"events"},
		{"events", "-o", "json"},
		{"events", "--admin", bad},
		{"explain", "a"},
		{"explain", "a", "-o", "json"},
		{"explain", hostile},
		{"explain", "a", "--admin", bad},
		{"usage", "--by", "key,tenant,model,region"},
		{"usage", "-o", "json"},
		{"usage", "--admin", bad},
		{"plan", "--problem", problem},
		{"plan", "--problem", problem, "-o", "json"},
		{"plan", "--problem", problem, "-o", "lp"},
		{"plan", "--problem", impossible},
		{"plan", "--history", bad},
		{"plan", "--history", missing},
		{"forecast", "--history", bad},
		{"load", "--target", "us=" + good, "--clients", "us=1", "--duration", "100ms"},
		{"load", "--target", "us=" + good, "--clients", "us=1", "--duration", "100ms", "-o", "json"},
		{"load", "--target", "us=" + bad, "--clients", "us=1", "--duration", "100ms"},
		{"validate", spec},
		{"validate", spec, "-o", "json"},
		{"up", spec},
		{"up", missing},
		{"down", hostile},
		{"connect", hostile},
		{"gc", "--region", "aws/us-east-1", "--endpoint-aws", aws, "--dry-run"},
		{"doctor", cloud, "--endpoint-aws", aws},
		{"up", cloud, "--endpoint-aws", aws, "--program", "http://127.0.0.1:1/skyserve#sha256=" + strings.Repeat("0", 64), "--yes"},
		{"sim", "run", hostile},
		{"lb", "--config", missing},
		{"controller", "--config", raw},
		{"engine", "--profile", hostile},
		{hostile},
		{"status", "--" + hostile},
	} {
		t.Run(strings.ToValidUTF8(strings.Join(args, " "), "?"), func(t *testing.T) {
			var out, errOut bytes.Buffer
			execute(context.Background(), args, &out, &errOut)
			for name, text := range map[string]string{"stdout": out.String(), "stderr": errOut.String()} {
				if where := harmful(text); where != "" {
					t.Errorf("%s holds %s", name, where)
				}
			}
			if !strings.Contains(out.String()+errOut.String(), "HOSTILE") {
				t.Errorf("nothing hostile was printed, so nothing was tried:\n%s%s", &out, &errOut)
			}
			if args[len(args)-1] == "json" && !json.Valid(out.Bytes()) {
				t.Errorf("no JSON:\n%s%s", &out, &errOut)
			}
		})
	}
}

// harmful returns the first part of a text that would affect a terminal or mislead a reader; ""
// if there is none.
func harmful(text string) string {
	for at, r := range text {
		switch {
		case r == utf8.RuneError && !strings.HasPrefix(text[at:], "\ufffd"),
			r < 0x20 && r != '\n' && r != '\t', r >= 0x7f && r < 0xa0,
			r >= 0x200b && r <= 0x200f, r >= 0x2028 && r <= 0x202e, r >= 0x2060 && r <= 0x206f, r == 0xfeff, r >= 0xe0000 && r <= 0xe0fff:
			return fmt.Sprintf("%U in %q", r, text[max(0, at-40):min(len(text), at+40)])
		}
	}
	return ""
}
