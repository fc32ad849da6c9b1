package lbd

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"mime/multipart"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/openapi3filter"
	"github.com/getkin/kin-openapi/routers"

	"skyserve/internal/testkit"
)

func init() { // the library knows neither
	openapi3filter.RegisterBodyDecoder("text/event-stream", openapi3filter.PlainBodyDecoder)
	openapi3filter.RegisterBodyDecoder("application/jsonl", openapi3filter.PlainBodyDecoder)
}

// openAPI returns a valid document of docs.
func openAPI(t *testing.T, name string) *openapi3.T {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("../docs", name))
	if err != nil {
		t.Fatal(err)
	}
	document, err := openapi3.NewLoader().LoadFromData(text)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	if err := document.Validate(t.Context()); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return document
}

// apiCall is a request to a route of a document, and the status that it must have.
type apiCall struct {
	route  string // as in the document
	path   string // if it differs from the route's
	body   string
	form   [2]string // file name and content, in place of a body
	status int
}

// check sends the call and validates request and response against the document. It returns the response's body.
func (c apiCall) check(t *testing.T, document *openapi3.T, base string) string {
	t.Helper()
	method, template, _ := strings.Cut(c.route, " ")
	item := document.Paths.Value(template)
	if item == nil || item.GetOperation(method) == nil {
		t.Fatalf("%s is not in the document", c.route)
	}
	path, contentType, body := c.path, "application/json", []byte(c.body)
	if path == "" {
		path = template
	}
	if c.form[0] != "" {
		var b bytes.Buffer
		w := multipart.NewWriter(&b)
		_ = w.WriteField("purpose", "batch")
		part, err := w.CreateFormFile("file", c.form[0])
		if err != nil {
			t.Fatal(err)
		}
		_, _ = part.Write([]byte(c.form[1]))
		_ = w.Close()
		contentType, body = w.FormDataContentType(), b.Bytes()
	}
	request := func() *http.Request {
		req, err := http.NewRequestWithContext(t.Context(), method, base+path, bytes.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		if len(body) > 0 {
			req.Header.Set("Content-Type", contentType)
		}
		return req
	}
	input := &openapi3filter.RequestValidationInput{
		Request: request(), Route: &routers.Route{Spec: document, Path: template, PathItem: item, Method: method, Operation: item.GetOperation(method)}, PathParams: pathParams(template, path),
		QueryParams: request().URL.Query(), Options: &openapi3filter.Options{AuthenticationFunc: openapi3filter.NoopAuthenticationFunc},
	}
	if err := openapi3filter.ValidateRequest(t.Context(), input); err != nil && c.status < 300 {
		t.Errorf("%s: request: %v", c.route, err)
	}
	res, err := client(t).Do(request())
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	answer, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	if res.StatusCode != c.status {
		t.Errorf("%s: %d, want %d: %s", c.route, res.StatusCode, c.status, answer)
	}
	err = openapi3filter.ValidateResponse(context.Background(), &openapi3filter.ResponseValidationInput{
		RequestValidationInput: input, Status: res.StatusCode, Header: res.Header, Body: io.NopCloser(bytes.NewReader(answer)),
		Options: &openapi3filter.Options{IncludeResponseStatus: true},
	})
	if err != nil {
		t.Errorf("%s: response: %v\n%s", c.route, err, answer)
	}
	return string(answer)
}

// pathParams returns the parameters of a path by its template.
func pathParams(template, path string) map[string]string {
	params := map[string]string{}
	path, _, _ = strings.Cut(path, "?")
	parts := strings.Split(path, "/")
	for i, part := range strings.Split(template, "/") {
		if strings.HasPrefix(part, "{") && i < len(parts) {
			params[strings.Trim(part, "{}")] = parts[i]
		}
	}
	return params
}

// example returns a route's example body as JSON.
func example(t *testing.T, document *openapi3.T, route string) string {
	t.Helper()
	method, path, _ := strings.Cut(route, " ")
	media := document.Paths.Value(path).GetOperation(method).RequestBody.Value.Content.Get("application/json")
	text, err := json.Marshal(media.Example)
	if err != nil || media.Example == nil {
		t.Fatalf("%s: example %v: %v", route, media.Example, err)
	}
	return string(text)
}

// The balancer's requests and responses are as docs/openapi.yaml describes them.
func TestPublicAPIFollowsOpenAPI(t *testing.T) {
	document := openAPI(t, "openapi.yaml")
	n := start(t, batchConfig(t, "lb-us", batchStore(t).URL()), Options{Version: "v1"})
	ready(t, n)
	for _, route := range []string{"POST /v1/chat/completions", "POST /v1/completions", "POST /v1/responses"} {
		apiCall{route: route, body: example(t, document, route), status: 200}.check(t, document, n.public)
		streamed := strings.Replace(example(t, document, route), "{", `{"stream":true,`, 1)
		if body := (apiCall{route: route, body: streamed, status: 200}).check(t, document, n.public); !strings.Contains(body, "data: {") {
			t.Errorf("%s: no events: %s", route, body)
		}
	}
	var file, batch struct {
		ID string `json:"id"`
	}
	line := `{"custom_id":"a","method":"POST","url":"/v1/chat/completions","body":{"model":"llama","max_tokens":4,"messages":[{"role":"user","content":"x"}]}}` + "\n"
	testkit.Eventually(t, "the store is connected", func() bool {
		res, err := client(t).Get(n.public + "/v1/files")
		if err != nil {
			return false
		}
		defer res.Body.Close()
		return res.StatusCode == http.StatusOK
	})
	decode(t, apiCall{route: "POST /v1/files", form: [2]string{"a.jsonl", line}, status: 200}.check(t, document, n.public), &file)
	decode(t, apiCall{route: "POST /v1/batches", body: fmt.Sprintf(`{"input_file_id":%q,"endpoint":"/v1/chat/completions","completion_window":"24h"}`, file.ID), status: 200}.check(t, document, n.public), &batch)
	for _, c := range []apiCall{
		{route: "GET /healthz", status: 200},
		{route: "GET /readyz", status: 200},
		{route: "GET /health", status: 200},
		{route: "GET /ping", status: 200},
		{route: "POST /ping", status: 200},
		{route: "GET /version", status: 200},
		{route: "GET /v1/models", status: 200},
		{route: "GET /v1/models/{id}", path: "/v1/models/llama", status: 200},
		{route: "GET /v1/models/{id}", path: "/v1/models/none", status: 404},
		{route: "POST /v1/chat/completions", body: `{"model":"none","messages":[]}`, status: 404},
		{route: "POST /v1/chat/completions", body: `{"messages":[]}`, status: 400},
		{route: "POST /v1/chat/completions", body: `{`, status: 400},
		{route: "POST /v1/messages", body: `{"model":"none","max_tokens":1,"messages":[]}`, status: 404},
		{route: "GET /v1/responses/{id}", path: "/v1/responses/resp_0", status: 404},
		{route: "GET /v1/realtime", path: "/v1/realtime?model=llama", status: 426},
		{route: "GET /v1/files", status: 200},
		{route: "GET /v1/files", path: "/v1/files?limit=0", status: 400},
		{route: "GET /v1/files/{id}", path: "/v1/files/" + file.ID, status: 200},
		{route: "GET /v1/files/{id}", path: "/v1/files/none", status: 404},
		{route: "GET /v1/batches", status: 200},
		{route: "GET /v1/batches/{id}", path: "/v1/batches/" + batch.ID, status: 200},
		{route: "POST /v1/batches/{id}/cancel", path: "/v1/batches/none/cancel", status: 404},
		{route: "POST /v1/batches", body: `{}`, status: 400},
		{route: "DELETE /v1/files/{id}", path: "/v1/files/none", status: 404},
	} {
		c.check(t, document, n.public)
	}

	// The methods of every path are those of the document.
	for path, item := range document.Paths.Map() {
		want := slices.Sorted(maps.Keys(item.Operations()))
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPatch, n.public+strings.Replace(path, "{id}", file.ID, 1), nil)
		if err != nil {
			t.Fatal(err)
		}
		res, err := client(t).Do(req)
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		got := strings.Split(res.Header.Get("Allow"), ", ")
		slices.Sort(got)
		if !slices.Equal(got, want) || res.StatusCode != http.StatusMethodNotAllowed {
			t.Errorf("%s: %d, allows %q, the document has %q", path, res.StatusCode, got, want)
		}
	}
}

// The admin API's requests and responses are as docs/openapi-admin.yaml describes them.
func TestAdminAPIFollowsOpenAPI(t *testing.T) {
	document := openAPI(t, "openapi-admin.yaml")
	n := start(t, batchConfig(t, "lb-us", ""), Options{Version: "v1"})
	ready(t, n)
	for _, c := range []apiCall{
		{route: "GET /healthz", status: 200},
		{route: "GET /readyz", status: 200},
		{route: "GET /v1/snapshot", status: 200},
		{route: "GET /v1/service", status: 404},
		{route: "GET /v1/history", path: "/v1/history?since=1", status: 200},
		{route: "GET /v1/history", path: "/v1/history?points=unstored", status: 200},
		{route: "GET /v1/history", path: "/v1/history?since=x", status: 400},
		{route: "GET /v1/usage", path: "/v1/usage?month=2026-11", status: 200},
		{route: "GET /v1/usage", path: "/v1/usage?month=now", status: 400},
		{route: "GET /usage", status: 200},
		{route: "GET /v1/decisions", status: 200},
		{route: "GET /v1/decisions/{request}", path: "/v1/decisions/none", status: 404},
		{route: "GET /v1/requests", status: 200},
		{route: "GET /v1/requests", path: "/v1/requests?limit=0", status: 400},
		{route: "GET /v1/service/events", status: 404},
		{route: "POST /v1/service/events", body: `{"events":[]}`, status: 404},
		{route: "PUT /v1/service/events/pending", body: `{"source":"c","events":[]}`, status: 404},
		{route: "POST /v1/service/removals", body: `{"machines":["i-1"]}`, status: 404},
		{route: "GET /metrics", status: 200},
		{route: "POST /reload", status: 200},
		{route: "GET /workers", status: 200},
		{route: "GET /list_workers", status: 200},
		{route: "POST /workers", body: `{"id":"b","url":"http://127.0.0.1:1","model":"llama","epoch":1}`, status: 201},
		{route: "POST /workers/{id}/drain", path: "/workers/b/drain", status: 200},
		{route: "DELETE /workers/{id}", path: "/workers/b", status: 200},
		{route: "DELETE /workers/{id}", path: "/workers/b", status: 404},
		{route: "POST /add_worker", path: "/add_worker?url=" + url.QueryEscape("http://127.0.0.1:1"), status: 201},
		{route: "POST /remove_worker", path: "/remove_worker?url=" + url.QueryEscape("http://127.0.0.1:1"), status: 200},
		{route: "POST /remove_worker", path: "/remove_worker?url=x", status: 404},
	} {
		c.check(t, document, n.adminURL)
	}
}

func decode(t *testing.T, text string, into any) {
	t.Helper()
	if err := json.Unmarshal([]byte(text), into); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
}
