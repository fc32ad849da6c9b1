package batch

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"strings"
	"syscall"
	"testing"
	"testing/iotest"

	"skyserve/internal/store"
	"skyserve/lbd/batch/job"
	"skyserve/lbd/openai"
)

// codeOf returns the code of an error in OpenAI's format.
func codeOf(body []byte) string {
	var e struct {
		Error struct {
			Code, Message, Type string
		}
	}
	if json.Unmarshal(body, &e) != nil || e.Error.Message == "" || e.Error.Type == "" {
		return "invalid: " + string(body)
	}
	return e.Error.Code
}

func TestFiles(t *testing.T) {
	n := startNode(t, serveStore(t), nil, Options{})
	me, other := Caller{Tenant: "me"}, Caller{Tenant: "other"}
	var ids []string
	for i := range 5 {
		ids = append(ids, n.mustUpload(me, fmt.Sprint("file ", i)))
	}
	var f job.File
	if status := n.get(me, "GET", PathFiles+"/"+ids[0], &f); status != 200 || f.Filename != "in.jsonl" || f.Bytes != 6 || f.Object != "file" || f.Purpose != "batch" || f.Status != "processed" {
		t.Errorf("%d %+v", status, f)
	}
	if status, body := n.call(me, "GET", PathFiles+"/"+ids[3]+"/content", nil, ""); status != 200 || string(body) != "file 3" {
		t.Errorf("content: %d %q", status, body)
	}
	page := func(query string) (got string) {
		var l list[job.File]
		if status := n.get(me, "GET", PathFiles+query, &l); status != 200 {
			return fmt.Sprint(status)
		}
		for _, f := range l.Data {
			for i, id := range ids {
				if id == f.ID {
					got += fmt.Sprint(i)
				}
			}
		}
		if l.HasMore {
			got += "+"
		}
		return got
	}
	// Ids of the same millisecond are in random order, so only sets of whole pages are compared.
	if got := page(""); len(got) != 5 {
		t.Errorf("all: %s", got)
	}
	if got := page("?limit=2"); len(got) != 3 || got[2] != '+' {
		t.Errorf("first page: %s", got)
	}
	all, seen, after := page("?order=asc"), "", ""
	for range 3 {
		got := page("?order=asc&limit=2" + after)
		seen += strings.TrimSuffix(got, "+")
		after = "&after=" + ids[seen[len(seen)-1]-'0']
	}
	if seen != all {
		t.Errorf("pages %s, want %s", seen, all)
	}
	if got := page("?purpose=batch_output"); got != "" {
		t.Errorf("outputs: %s", got)
	}
	for _, path := range []string{"/" + ids[0], "/" + ids[0] + "/content"} {
		if status := n.get(other, "GET", PathFiles+path, nil); status != 404 {
			t.Errorf("another tenant reads %s: %d", path, status)
		}
	}
	if status := n.get(other, "DELETE", PathFiles+"/"+ids[0], nil); status != 404 {
		t.Errorf("another tenant deletes: %d", status)
	}
	b := n.submitFile(me, "24h", ids[1])
	if status, body := n.call(me, "DELETE", PathFiles+"/"+ids[1], nil, ""); status != http.StatusConflict || codeOf(body) != "file_in_use" || !strings.Contains(string(body), b.ID) {
		t.Errorf("deleting an input: %d %s", status, body)
	}
	if status, body := n.call(me, "DELETE", PathFiles+"/"+ids[0], nil, ""); status != 200 || !strings.Contains(string(body), `"deleted":true`) {
		t.Errorf("deleting: %d %s", status, body)
	}
	if status := n.get(me, "GET", PathFiles+"/"+ids[0], nil); status != 404 {
		t.Errorf("a deleted file: %d", status)
	}
}

func TestBatchesAreListed(t *testing.T) {
	n := startNode(t, serveStore(t), nil, Options{})
	file := n.mustUpload(Caller{}, line("a", "x"))
	for range 3 {
		n.submitFile(Caller{}, "24h", file)
	}
	var first, second list[job.Batch]
	n.get(Caller{}, "GET", PathBatches+"?limit=2", &first)
	if len(first.Data) != 2 || !first.HasMore || *first.LastID != first.Data[1].ID {
		t.Fatalf("%+v", first)
	}
	n.get(Caller{}, "GET", PathBatches+"?limit=2&after="+*first.LastID, &second)
	if len(second.Data) != 1 || second.HasMore || second.Data[0].ID > first.Data[1].ID {
		t.Errorf("%+v", second)
	}
	var none list[job.Batch]
	if n.get(Caller{Tenant: "other"}, "GET", PathBatches, &none); none.Data == nil || len(none.Data) != 0 || none.FirstID != nil {
		t.Errorf("%+v", none)
	}
}

func TestBadRequests(t *testing.T) {
	limits := job.DefaultLimits()
	limits.FileBytes, limits.TenantBytes, limits.TenantFiles, limits.TenantBatches, limits.KeyBatches = 100, 150, 4, 2, 1
	n := startNode(t, serveStore(t), nil, Options{Limits: limits})
	file, foreign := n.mustUpload(Caller{}, "x"), n.mustUpload(Caller{Tenant: "other"}, "x")
	const form = `multipart/form-data; boundary=x`
	upload := func(content string, fields ...string) func() (int, []byte) {
		return func() (int, []byte) { return n.upload(Caller{}, content, fields...) }
	}
	call := func(method, path, body, contentType string) func() (int, []byte) {
		return func() (int, []byte) { return n.call(Caller{}, method, path, strings.NewReader(body), contentType) }
	}
	create := func(change ...string) func() (int, []byte) {
		body := fmt.Sprintf(`{"input_file_id":%q,"endpoint":"/v1/completions","completion_window":"24h"}`, file)
		return call("POST", PathBatches, strings.NewReplacer(change...).Replace(body), "application/json")
	}
	for _, c := range []struct {
		name   string
		status int
		code   string
		do     func() (int, []byte)
	}{
		{"no form", 400, "invalid_content_type", call("POST", PathFiles, "{}", "application/json")},
		{"cut form", 400, "invalid_multipart", call("POST", PathFiles, "--x\r\nContent-Disposition: form-data; name=\"file\"; filename=\"f\"\r\n\r\nabc", form)},
		{"no file", 400, "missing_required_parameter", call("POST", PathFiles, "--x\r\nContent-Disposition: form-data; name=\"purpose\"\r\n\r\nbatch\r\n--x--\r\n", form)},
		{"no purpose", 400, "invalid_value", upload("x")},
		{"other purpose", 400, "invalid_value", upload("x", "purpose", "fine-tune")},
		{"expiry", 400, "invalid_value", upload("x", "purpose", "batch", "expires_after[seconds]", "5")},
		{"empty file", 400, "empty_file", upload("", "purpose", "batch")},
		{"large file", 413, "file_too_large", upload(strings.Repeat("x", 101), "purpose", "batch")},
		{"huge file", 413, "file_too_large", upload(strings.Repeat("x", 200_000), "purpose", "batch")},
		{"file id", 404, "file_not_found", call("GET", PathFiles+"/file-x.>", "", "")},
		{"foreign content", 404, "file_not_found", call("GET", PathFiles+"/"+foreign+"/content", "", "")},
		{"unknown path", 404, "not_found", call("GET", PathFiles+"/"+file+"/parts", "", "")},
		{"method", 405, "method_not_allowed", call("PUT", PathFiles, "", "")},
		{"method of a file", 405, "method_not_allowed", call("POST", PathFiles+"/"+file, "", "")},
		{"limit", 400, "invalid_value", call("GET", PathFiles+"?limit=0", "", "")},
		{"after", 400, "invalid_value", call("GET", PathBatches+"?after=x.>", "", "")},
		{"order", 400, "invalid_value", call("GET", PathFiles+"?order=up", "", "")},
		{"no json", 400, "invalid_json", call("POST", PathBatches, "{", "application/json")},
		{"large json", 413, "request_too_large", call("POST", PathBatches, strings.Repeat(" ", maxParams+1), "application/json")},
		{"foreign file", 404, "file_not_found", create(file, foreign)},
		{"endpoint", 400, "invalid_value", create("/v1/completions", "/v1/files")},
		{"window", 400, "invalid_value", create("24h", "5s")},
		{"batch id", 404, "batch_not_found", call("GET", PathBatches+"/batch_x.>", "", "")},
		{"batch method", 405, "method_not_allowed", call("DELETE", PathBatches+"/batch_x", "", "")},
		{"cancel method", 405, "method_not_allowed", call("GET", PathBatches+"/batch_x/cancel", "", "")},
	} {
		status, body := c.do()
		if got := codeOf(body); status != c.status || got != c.code {
			t.Errorf("%s: %d %s, want %d %s", c.name, status, body, c.status, c.code)
		}
	}
	entries, err := n.records.Keys(t.Context(), "file.")
	if err != nil || len(entries) != 2 {
		t.Errorf("refused files remain: %v, %v", entries, err)
	}
	if status, body := n.upload(Caller{}, strings.Repeat("x", 100), "purpose", "batch"); status != 200 {
		t.Errorf("%d %s", status, body)
	}
	if status, body := n.upload(Caller{}, strings.Repeat("x", 60), "purpose", "batch"); status != 429 || codeOf(body) != "file_limit" {
		t.Errorf("beyond the bytes of a tenant: %d %s", status, body)
	}
	for range 2 {
		n.mustUpload(Caller{}, "x")
	}
	if status, body := n.upload(Caller{}, "x", "purpose", "batch"); status != 429 || codeOf(body) != "file_limit" {
		t.Errorf("beyond the files of a tenant: %d %s", status, body)
	}
	key := Caller{Key: "k"}
	n.submitFile(key, "24h", file)
	body := fmt.Sprintf(`{"input_file_id":%q,"endpoint":"/v1/completions","completion_window":"24h"}`, file)
	if status, got := n.call(key, "POST", PathBatches, strings.NewReader(body), ""); status != 429 || codeOf(got) != "batch_limit" {
		t.Errorf("beyond the batches of a key: %d %s", status, got)
	}
	n.submitFile(Caller{Key: "l"}, "24h", file)
	if status, got := n.call(Caller{Key: "m"}, "POST", PathBatches, strings.NewReader(body), ""); status != 429 || codeOf(got) != "batch_limit" {
		t.Errorf("beyond the batches of a tenant: %d %s", status, got)
	}
}

// While the store does not respond, nothing is accepted.
func TestStoreOutage(t *testing.T) {
	srv := serveStore(t)
	n := startNode(t, srv, nil, Options{})
	file := n.mustUpload(Caller{}, "x")
	srv.Close()
	for _, c := range []struct{ method, path, body string }{
		{"GET", PathFiles, ""},
		{"GET", PathFiles + "/" + file, ""},
		{"GET", PathBatches, ""},
		{"POST", PathBatches, fmt.Sprintf(`{"input_file_id":%q,"endpoint":"/v1/completions","completion_window":"24h"}`, file)},
	} {
		if status, body := n.call(Caller{}, c.method, c.path, strings.NewReader(c.body), ""); status != 503 || codeOf(body) != "store_unavailable" {
			t.Errorf("%s %s: %d %s", c.method, c.path, status, body)
		}
	}
	if status, body := n.upload(Caller{}, "x", "purpose", "batch"); status != 503 || codeOf(body) != "store_unavailable" {
		t.Errorf("upload: %d %s", status, body)
	}
}

// A client that disconnects during an upload leaves nothing.
func TestCutUploadLeavesNothing(t *testing.T) {
	n := startNode(t, serveStore(t), nil, Options{})
	head := "--x\r\nContent-Disposition: form-data; name=\"file\"; filename=\"f\"\r\n\r\n"
	body := io.MultiReader(strings.NewReader(head), bytes.NewReader(make([]byte, 3<<20)))
	if status, got := n.call(Caller{}, "POST", PathFiles, body, "multipart/form-data; boundary=x"); status != 400 || codeOf(got) != "invalid_multipart" {
		t.Errorf("%d %s", status, got)
	}
	entries, err := n.records.Keys(t.Context(), "file.")
	if err != nil || len(entries) != 0 {
		t.Errorf("%v, %v", entries, err)
	}
}

// A body that does not arrive in time has an error that clients retry. A reader may refuse a body with an error of its
// own.
func TestUnreadableBodies(t *testing.T) {
	n := startNode(t, serveStore(t), nil, Options{})
	head := "--x\r\nContent-Disposition: form-data; name=\"file\"; filename=\"f\"\r\n\r\n"
	for path, start := range map[string]string{PathBatches: "{", PathFiles: head + "x", PathFiles + "/": "--"} {
		for code, err := range map[string]error{"request_timeout": os.ErrDeadlineExceeded, "invalid_encoding": openai.Invalid("", "invalid_encoding", "invalid gzip data")} {
			body := io.MultiReader(strings.NewReader(start), iotest.ErrReader(err))
			if status, got := n.call(Caller{}, "POST", path, body, "multipart/form-data; boundary=x"); status != map[string]int{"request_timeout": 408, "invalid_encoding": 400}[code] || codeOf(got) != code {
				t.Errorf("%s: %d %s, want %s", path, status, got, code)
			}
		}
	}
}

// fullParts is a bucket that has no space.
type fullParts struct{ store.CloudBucket }

func (fullParts) PutPart(context.Context, string, []byte) error { return syscall.ENOSPC }

func (fullParts) PartNames(context.Context, string) ([]string, error) { return nil, nil }

// A file that cannot be stored is not accepted.
func TestFullStore(t *testing.T) {
	st, err := store.Connect(t.Context(), serveStore(t).URL(), "", store.FilesIn(fullParts{}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(st.Close)
	n := &node{Service: New(Options{Store: st, Balancer: "lb", Logger: slog.New(slog.DiscardHandler)}), t: t, store: st}
	if status, body := n.upload(Caller{}, "x", "purpose", "batch"); status != 503 || codeOf(body) != "store_unavailable" {
		t.Errorf("%d %s", status, body)
	}
	entries, err := n.records.Keys(t.Context(), "file.")
	if err != nil || len(entries) != 0 {
		t.Errorf("%v, %v", entries, err)
	}
}
