package proxy

import (
	"bytes"
	"io"
	"mime"
	"mime/multipart"
	"net/http"
	"strings"
	"testing"

	"skyserve/lbd/core"
)

// audioForm returns a form with a file of n bytes before its model, and its content type.
func audioForm(t testing.TB, model string, n int, fields ...string) (body, contentType string) {
	t.Helper()
	var out bytes.Buffer
	w := multipart.NewWriter(&out)
	file, err := w.CreateFormFile("file", "speech.mp3")
	if err != nil {
		t.Fatal(err)
	}
	_, _ = file.Write(bytes.Repeat([]byte{0xff, '{', '"', '\r', '\n'}, n/5+1)[:n])
	for _, field := range append(fields, "model="+model) {
		name, value, _ := strings.Cut(field, "=")
		_ = w.WriteField(name, value)
	}
	_ = w.Close()
	return out.String(), "Content-Type: " + w.FormDataContentType()
}

const transcriptions = "/v1/audio/transcriptions"

// A form reaches the engine with the real name of its model and every byte of its file, also after a
// retry and through a peer.
func TestFormsAreForwarded(t *testing.T) {
	us, eu := pair(t, "secret")
	requests := make(chan map[string]string, 1)
	eu.attach("eu-0", engine(t, func(w http.ResponseWriter, req *http.Request) {
		_, _ = io.Copy(io.Discard, req.Body)
		w.WriteHeader(http.StatusInternalServerError)
	}))
	eu.attach("eu-1", engine(t, func(w http.ResponseWriter, req *http.Request) {
		_, params, _ := mime.ParseMediaType(req.Header.Get("Content-Type"))
		form, err := multipart.NewReader(req.Body, params["boundary"]).ReadForm(1 << 20)
		if err != nil {
			t.Error(err)
			return
		}
		file, _ := form.File["file"][0].Open()
		content, _ := io.ReadAll(file)
		requests <- map[string]string{"path": req.URL.Path, "model": form.Value["model"][0], "language": form.Value["language"][0], "file": string(content)}
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"text":"hello","usage":{"type":"tokens","input_tokens":14,"output_tokens":3,"total_tokens":17}}`)
	}))
	for range 2 {
		us.receiveReport("lb-eu-0")
		body, contentType := audioForm(t, "chat-small", 100_000, "language=en")
		if got := expect(t, us.post(transcriptions, body, contentType), 200, ""); !strings.Contains(got, "hello") {
			t.Errorf("the client receives %s", got)
		}
		got := <-requests
		want := strings.Repeat("\xff{\"\r\n", 20_000)
		if got["path"] != transcriptions || got["model"] != testModel || got["language"] != "en" || got["file"] != want {
			t.Errorf("the engine receives %s with model %q, language %q and %d bytes", got["path"], got["model"], got["language"], len(got["file"]))
		}
		eu.report("eu-0")
		eu.report("eu-1")
	}
	us.settled()
	if r := us.Requests(1)[0]; r.PromptTokens == nil || *r.PromptTokens != 14 || r.OutputTokens == nil || *r.OutputTokens != 3 {
		t.Errorf("the usage is %v and %v, want 14 and 3", r.PromptTokens, r.OutputTokens)
	}
	if used := us.memory.Used(); used != 0 {
		t.Errorf("%d bytes of memory are still counted", used)
	}
}

func TestRejectedForms(t *testing.T) {
	o := testOptions(t)
	o.Limits.MaxForm = 100 << 10
	b := start(t, o)
	b.attach("us-0", engine(t, whole(`{"text":"hello"}`)))
	form, contentType := audioForm(t, "chat-small", 10)
	large, largeType := audioForm(t, "chat-small", 200<<10)
	unknown, unknownType := audioForm(t, "gpt-9", 10)
	for name, c := range map[string]struct {
		body, contentType string
		status            int
		code, message     string
	}{
		"JSON":             {plainBody, "Content-Type: application/json", 400, "invalid_content_type", "must be multipart/form-data with a boundary"},
		"no boundary":      {form, "Content-Type: multipart/form-data", 400, "invalid_content_type", "got \"multipart/form-data\""},
		"another boundary": {form, "Content-Type: multipart/form-data; boundary=x", 400, "invalid_multipart", "part 1, byte 0: expected the boundary"},
		"a truncated form": {form[:len(form)-10], contentType, 400, "invalid_multipart", "part 2, byte "},
		"a large file":     {large, largeType, 413, "request_too_large", "at most 102400 bytes"},
		"no such model":    {unknown, unknownType, 404, "model_not_found", "gpt-9"},
	} {
		got := expect(t, b.post(transcriptions, c.body, c.contentType), c.status, c.code)
		if message, _, _ := apiErrorOf(t, got); !strings.Contains(message, c.message) {
			t.Errorf("%s: %s", name, message)
		}
	}
	if c := b.View().Counts; c.Arrived != 0 {
		t.Errorf("counts %+v", c)
	}
}

// Transcripts stream as events, and text formats are forwarded unchanged with unknown tokens.
func TestTranscriptFormats(t *testing.T) {
	events := "data: {\"type\":\"transcript.text.delta\",\"delta\":\"hel\"}\n\ndata: {\"type\":\"transcript.text.delta\",\"delta\":\"lo\"}\n\n" +
		"data: {\"type\":\"transcript.text.done\",\"text\":\"hello\",\"usage\":{\"input_tokens\":14,\"output_tokens\":2}}\n\n"
	for name, c := range map[string]struct {
		field, contentType, answer string
		tokens                     int // -1 = unknown
	}{
		"events": {"stream=true", "text/event-stream", events, 2},
		"srt":    {"response_format=srt", "application/x-subrip", "1\n00:00:00,000 --> 00:00:01,000\nhello\n", -1},
		"JSON":   {"response_format=json", "application/json", `{"text":"hello","usage":{"type":"duration","seconds":3}}`, -1},
	} {
		t.Run(name, func(t *testing.T) {
			b := start(t, testOptions(t))
			b.attach("us-0", engine(t, func(w http.ResponseWriter, req *http.Request) {
				_, _ = io.Copy(io.Discard, req.Body)
				w.Header().Set("Content-Type", c.contentType)
				_, _ = io.WriteString(w, c.answer)
			}))
			body, contentType := audioForm(t, "chat-small", 10, c.field)
			resp := b.post("/v1/audio/translations", body, contentType)
			if got := read(t, resp); got != c.answer || resp.Header.Get("Content-Type") != c.contentType {
				t.Errorf("the client receives %q", got)
			}
			b.settled()
			r := b.Requests(1)[0]
			if known := r.OutputTokens != nil; known != (c.tokens >= 0) || known && *r.OutputTokens != c.tokens {
				t.Errorf("the output has %v tokens, want %d", r.OutputTokens, c.tokens)
			}
			if b.tallied().PromptTokens != int64(max(0, c.tokens)*7) {
				t.Errorf("%d prompt tokens are counted", b.tallied().PromptTokens)
			}
			if b.View().Counts != (core.Counts{Arrived: 1, Finished: 1}) {
				t.Errorf("counts %+v", b.View().Counts)
			}
		})
	}
}

// A file of 25 MiB, the limit of OpenAI and vLLM, is accepted within the smallest memory of a tenant.
func TestLargestForm(t *testing.T) {
	o := testOptions(t)
	o.Keys = apiKeys("sk-one")
	o.Limits.TenantMemory = 32 << 20
	b := start(t, o)
	b.attach("us-0", engine(t, whole(`{"text":"hello"}`)))
	body, contentType := audioForm(t, "chat-small", 25<<20)
	expect(t, b.post(transcriptions, body, contentType, "Authorization: Bearer sk-one"), 200, "")
}
