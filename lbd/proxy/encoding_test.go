package proxy

import (
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"

	"skyserve/lbd/openai"
)

// compressed returns a text in a content encoding.
func compressed(t testing.TB, encoding, text string) string {
	t.Helper()
	var out bytes.Buffer
	var w io.WriteCloser = gzip.NewWriter(&out)
	if encoding == "zstd" {
		z, err := zstd.NewWriter(&out, zstd.WithEncoderConcurrency(1))
		if err != nil {
			t.Fatal(err)
		}
		w = z
	}
	if _, err := io.WriteString(w, text); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

const aliasBody = `{"model":"chat-small","messages":[{"role":"user","content":"hello"}]}`

// A compressed body reaches the engine decoded, also after a retry.
func TestCompressedBodies(t *testing.T) {
	for _, encoding := range []string{"gzip", "zstd", "GZIP", "x-gzip"} {
		t.Run(encoding, func(t *testing.T) {
			h, requests := listener(whole(plainReply))
			b := start(t, roundRobin(t))
			b.attach("us-0", engine(t, func(w http.ResponseWriter, req *http.Request) {
				_, _ = io.Copy(io.Discard, req.Body)
				w.WriteHeader(http.StatusInternalServerError)
			}))
			b.attach("us-1", engine(t, h))
			for range 2 { // one of them is tried at the failing replica first
				expect(t, b.post(chatPath, compressed(t, encoding, aliasBody), "Content-Encoding: "+encoding), 200, "")
				got := <-requests
				if got.body != plainBody || got.header["Content-Encoding"] != nil || got.header.Get("Content-Length") != fmt.Sprint(len(plainBody)) {
					t.Errorf("the engine receives %q with %v", got.body, got.header)
				}
			}
		})
	}
}

// A peer receives the decoded body.
func TestCompressedBodyIsForwarded(t *testing.T) {
	us, eu := pair(t, "secret")
	h, requests := listener(whole(plainReply))
	eu.attach("eu-0", engine(t, h))
	us.receiveReport("lb-eu-0")
	expect(t, us.post(chatPath, compressed(t, "gzip", aliasBody), "Content-Encoding: gzip"), 200, "")
	if got := <-requests; got.body != plainBody {
		t.Errorf("the engine of the peer receives %q", got.body)
	}
}

func TestInvalidCompressedBodies(t *testing.T) {
	o := testOptions(t)
	o.Limits.MaxBody = 64 << 10
	b := start(t, o)
	b.attach("us-0", engine(t, whole(plainReply)))
	ok := compressed(t, "gzip", aliasBody)
	bomb := `{"model":"chat-small","messages":[],"pad":"` + strings.Repeat("0", 1<<20) + `"}`
	for name, c := range map[string]struct {
		encoding, body string
		status         int
		code, message  string
	}{
		"a gzip bomb":       {"gzip", compressed(t, "gzip", bomb), 413, "request_too_large", "at most 65536 bytes when decoded"},
		"a zstd bomb":       {"zstd", compressed(t, "zstd", bomb), 413, "request_too_large", "at most 65536 bytes when decoded"},
		"no gzip":           {"gzip", aliasBody, 400, "invalid_encoding", "invalid gzip data within the first "},
		"no zstd":           {"zstd", aliasBody, 400, "invalid_encoding", "invalid zstd data within the first "},
		"truncated":         {"gzip", ok[:len(ok)-6], 400, "invalid_encoding", "unexpected EOF"},
		"a wrong checksum":  {"gzip", ok[:len(ok)-8] + "\x00\x00\x00\x00" + ok[len(ok)-4:], 400, "invalid_encoding", "checksum"},
		"bytes after it":    {"gzip", ok + "more", 400, "invalid_encoding", "invalid gzip data"},
		"nothing":           {"gzip", "", 400, "invalid_encoding", "unexpected EOF"},
		"an empty file":     {"gzip", compressed(t, "gzip", ""), 400, "invalid_json", "the end of the body"},
		"invalid JSON":      {"gzip", compressed(t, "gzip", "[]"), 400, "invalid_json", "expected '{'"},
		"another encoding":  {"br", aliasBody, 415, "unsupported_encoding", `must be one of gzip, zstd, got "br"`},
		"two encodings":     {"gzip, gzip", ok, 415, "unsupported_encoding", `got "gzip, gzip"`},
		"identity is plain": {"identity", aliasBody, 200, "", ""},
	} {
		resp := b.post(chatPath, c.body, "Content-Encoding: "+c.encoding)
		got := expect(t, resp, c.status, c.code)
		if !strings.Contains(got, strings.ReplaceAll(c.message, `"`, `\"`)) {
			t.Errorf("%s: %s, want ... %s", name, got, c.message)
		}
		if accepted := resp.Header.Get("Accept-Encoding"); (accepted == "gzip, zstd") != (c.status == 415) {
			t.Errorf("%s: Accept-Encoding is %q", name, accepted)
		}
	}
	if c := b.settled(); c.Arrived != 1 {
		t.Errorf("%d requests reached the core", c.Arrived)
	}
	if used := b.memory.Used(); used != 0 {
		t.Errorf("%d bytes of memory are still counted", used)
	}
}

// The handler of files and batches receives decoded bodies.
func TestCompressedBodiesOfBatches(t *testing.T) {
	b := start(t, testOptions(t))
	b.SetBatches(func(w http.ResponseWriter, req *http.Request, _ Caller) {
		body, err := io.ReadAll(http.MaxBytesReader(w, req.Body, 100))
		var refused *openai.Error
		var large *http.MaxBytesError
		switch {
		case errors.As(err, &refused):
			w.WriteHeader(refused.Status)
			_, _ = w.Write(refused.Body())
		case errors.As(err, &large) || req.ContentLength > 100:
			w.WriteHeader(http.StatusRequestEntityTooLarge)
		default:
			_, _ = w.Write(body)
		}
	})
	for name, c := range map[string]struct {
		encoding, body string
		status         int
		want           string
	}{
		"gzip":             {"gzip", compressed(t, "gzip", "{}"), 200, "{}"},
		"zstd":             {"zstd", compressed(t, "zstd", "{}"), 200, "{}"},
		"no encoding":      {"identity", "{}", 200, "{}"},
		"a gzip bomb":      {"gzip", compressed(t, "gzip", strings.Repeat("0", 1<<20)), 413, ""},
		"no gzip":          {"gzip", "no gzip data", 400, "invalid_encoding"},
		"another encoding": {"br", "{}", 415, "unsupported_encoding"},
		"no body":          {"br", "", 200, ""},
	} {
		for _, path := range []string{"/v1/batches", "/v1/files"} {
			resp := b.post(path, c.body, "Content-Encoding: "+c.encoding)
			if got := expect(t, resp, c.status, ""); !strings.Contains(got, c.want) {
				t.Errorf("%s to %s: %q, want ... %q", name, path, got, c.want)
			}
		}
	}
	if used := b.memory.Used(); used != 0 {
		t.Errorf("%d bytes of memory are still counted", used)
	}
}

// The memory of a tenant counts decoded bytes.
func TestDecodedBytesAreCounted(t *testing.T) {
	o := testOptions(t)
	o.Keys = apiKeys("sk-one")
	o.Limits.TenantMemory = 1 << 20
	b := start(t, o)
	b.attach("us-0", engine(t, whole(plainReply)))
	large := `{"model":"chat-small","messages":[],"pad":"` + strings.Repeat("0", 2<<20) + `"}`
	expect(t, b.post(chatPath, compressed(t, "gzip", large), "Content-Encoding: gzip", "Authorization: Bearer sk-one"), 429, "tenant_memory")
	if used := b.memory.Used(); used != 0 {
		t.Errorf("%d bytes of memory are still counted", used)
	}
}

// A client that disconnects while it sends is not reported as one with invalid data.
func TestBrokenUploadOfCompressedBody(t *testing.T) {
	o := testOptions(t)
	rt, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	body, w := io.Pipe()
	go func() {
		_, _ = io.WriteString(w, compressed(t, "gzip", aliasBody)[:20])
		w.CloseWithError(io.ErrUnexpectedEOF)
	}()
	req := httptest.NewRequestWithContext(t.Context(), http.MethodPost, chatPath, body)
	req.Header.Set("Content-Encoding", "gzip")
	answer := httptest.NewRecorder()
	rt.serveRequest(answer, req)
	if _, _, code := apiErrorOf(t, answer.Body.String()); code != "incomplete_body" {
		t.Errorf("the error is %s", answer.Body)
	}
}

// FuzzEncodedBodies checks that a decoded body is within its limit, and equals that of the encoder.
func FuzzEncodedBodies(f *testing.F) {
	for _, text := range []string{"", "x", strings.Repeat("a", 5000)} {
		f.Add([]byte(text), []byte(compressed(f, "gzip", text)), false)
		f.Add([]byte(text), []byte(compressed(f, "zstd", text)), true)
	}
	f.Fuzz(func(t *testing.T, text, encoded []byte, z bool) {
		encoding := "gzip"
		if z {
			encoding = "zstd"
		}
		const limit = 4 << 10
		for _, in := range []string{string(encoded), compressed(t, encoding, string(text))} {
			d, _, err := decodeBody(strings.NewReader(in), encoding, limit)
			if err != nil {
				t.Fatal(err)
			}
			out, err := io.ReadAll(d)
			d.close()
			if err == nil && len(out) > limit {
				t.Fatalf("%d bytes pass a limit of %d", len(out), limit)
			}
			if err != nil && errBody(err, 0).Status == 0 {
				t.Fatalf("%v has no status", err)
			}
			if in != string(encoded) && len(text) <= limit && (err != nil || string(out) != string(text)) {
				t.Fatalf("%q became %q: %v", text, out, err)
			}
		}
	})
}
