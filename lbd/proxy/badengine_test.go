package proxy

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"skyserve/internal/testkit"
	"skyserve/lbd/openai"
)

// rawEngine is a replica that responds to every request with the same bytes and then closes the
// connection.
func rawEngine(t *testing.T, answer string) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			serving.Go(func() {
				defer conn.Close()
				req, err := http.ReadRequest(bufio.NewReader(conn))
				if err != nil {
					return
				}
				_, _ = io.Copy(io.Discard, req.Body)
				_, _ = io.WriteString(conn, answer)
			})
		}
	})
	t.Cleanup(func() {
		l.Close()
		serving.Wait()
	})
	return "http://" + l.Addr().String()
}

func zipped(text string) string {
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	_, _ = io.WriteString(z, text)
	_ = z.Close()
	return b.String()
}

// answered returns a raw response.
func answered(status, contentType, body string, headers ...string) string {
	head := "HTTP/1.1 " + status + "\r\nContent-Type: " + contentType + "\r\n"
	for _, h := range headers {
		head += h + "\r\n"
	}
	return head + fmt.Sprintf("Content-Length: %d\r\n\r\n", len(body)) + body
}

// streamed returns a stream in one chunk, with or without the last chunk.
func streamed(events string, ends bool) string {
	end := ""
	if ends {
		end = "0\r\n\r\n"
	}
	return fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n%s", len(events), events, end)
}

// loginPage is what a reverse proxy sends if it expects a session of a browser.
const loginPage = "\n<!DOCTYPE html><title>Sign in</title>"

// brokenEngines contains responses that are invalid before any part of them reached the client.
// Another replica serves the request; without one it fails.
func brokenEngines() map[string]string {
	const events, json = "text/event-stream", "application/json"
	return map[string]string{
		"empty response":                 "",
		"no HTTP":                        "hello\r\n\r\n",
		"truncated header":               "HTTP/1.1 200 OK\r\nContent-Ty",
		"a header without a body":        "HTTP/1.1 200 OK\r\nContent-Type: " + json + "\r\nContent-Length: 99\r\n\r\n",
		"a stream without a body":        "HTTP/1.1 200 OK\r\nContent-Type: " + events + "\r\nTransfer-Encoding: chunked\r\n\r\n",
		"an empty stream":                answered("200 OK", events, ""),
		"a truncated stream":             streamed(`data: {"choi`, true),
		"a length longer than the body":  "HTTP/1.1 200 OK\r\nContent-Type: " + json + "\r\nContent-Length: 9999\r\n\r\n" + plainReply,
		"a length shorter than the body": "HTTP/1.1 200 OK\r\nContent-Type: " + json + "; charset=utf-8\r\nContent-Length: 50\r\n\r\n" + plainReply,
		"two lengths":                    answered("200 OK", json, plainReply, "Content-Length: 7"),
		"a negative length":              "HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n" + plainReply,
		"empty JSON":                     answered("200 OK", json, ""),
		"truncated JSON":                 answered("200 OK", json, plainReply[:60]),
		"200 and nothing else":           "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
		"a page":                         answered("200 OK", "text/html; charset=utf-8", loginPage),
		"a page of 1 MB":                 answered("200 OK", "TEXT/HTML", loginPage+strings.Repeat(" ", 1<<20)),
		"a compressed page":              answered("200 OK", "text/html", zipped(loginPage), "Content-Encoding: gzip"),
		"plain text":                     answered("200 OK", "text/plain", "ok"),
		"204":                            "HTTP/1.1 204 No Content\r\n\r\n",
		"205":                            "HTTP/1.1 205 Reset Content\r\nContent-Length: 0\r\n\r\n",
		"101":                            "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n",
		"a redirect":                     answered("307 Temporary Redirect", "text/plain", "", "Location: http://10.0.0.1/internal"),
		"an invalid status":              answered("999 Odd", "text/plain", "odd"),
		"a compressed stream":            answered("200 OK", events, zipped(chunk("a")+doneEvent), "Content-Encoding: gzip"),
		"an error under 200":             answered("200 OK", json, `{"error":{"message":"CUDA out of memory","code":500}}`),
		"an error in the stream":         streamed(`data: {"error":{"message":"engine died","code":500}}`+"\n\n", true),
		"NUL in a header":                "HTTP/1.1 200 OK\r\nX-A: a\x00b\r\nContent-Length: 0\r\n\r\n",
		"a header of 2 MB":               "HTTP/1.1 200 OK\r\nX-A: " + strings.Repeat("a", 2<<20) + "\r\nContent-Length: 0\r\n\r\n",
		"too many headers":               "HTTP/1.1 200 OK\r\n" + strings.Repeat("A: 1\r\n", 2000) + "\r\n",
		"bare line feeds":                "HTTP/1.1 200 OK\nContent-Length: 2\n\n{}",
	}
}

// free checks that no resources of any request remain in use.
func (b *balancer) free() {
	b.t.Helper()
	c := b.settled()
	lawful(b.t, c)
	for _, r := range b.View().Replicas {
		if c.Queued != 0 || c.Outstanding != 0 || r.Outstanding != 0 {
			b.t.Errorf("%d queued, %d outstanding, of them %d at %s", c.Queued, c.Outstanding, r.Outstanding, r.ID)
		}
	}
}

func TestFaultyEnginesAreRetried(t *testing.T) {
	for name, answer := range brokenEngines() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := start(t, roundRobin(t))
			b.attach("us-0", rawEngine(t, answer))
			b.attach("us-1", engine(t, speakRaw(chunk("x")+doneEvent)))
			resp := b.post(chatPath, streamBody)
			if got := expect(t, resp, http.StatusOK, ""); got != chunk("x")+doneEvent || resp.Header.Get(headerReplica) != "us-1" {
				t.Errorf("%s returned %q", resp.Header.Get(headerReplica), got)
			}
			b.free()
		})
	}
}

func TestOnlyFaultyEngines(t *testing.T) {
	for name, answer := range brokenEngines() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, body := range []string{streamBody, plainBody} {
				o := roundRobin(t)
				o.Core.RetryBackoff = 0 // the request is retried immediately; core's tests check the backoff
				b := start(t, o)
				b.attach("us-0", rawEngine(t, answer))
				resp := b.post(chatPath, body)
				text := read(t, resp)
				_, kind, _ := apiErrorOf(t, text)
				if resp.StatusCode != http.StatusBadGateway || kind != openai.TypeServer || strings.Contains(text, "10.0.0.1") || resp.Header.Get("Location") != "" {
					t.Errorf("%d %s, want 502 and no address", resp.StatusCode, text)
				}
				b.free()
			}
		})
	}
}

// A page of a reverse proxy is a failure of the replica at every endpoint. Other types than JSON are valid for audio.
func TestPagesAreFailures(t *testing.T) {
	b := start(t, roundRobin(t))
	b.attach("us-0", rawEngine(t, answered("200 OK", "text/html; charset=utf-8", loginPage)))
	for _, path := range []string{"/v1/embeddings", "/v1/audio/speech"} {
		body := expect(t, b.post(path, `{"model":"chat-small","input":"hi"}`), http.StatusBadGateway, "")
		if message, _, _ := apiErrorOf(t, body); !strings.Contains(message, `us-0 returned 200 with the content type "text/html" instead of JSON`) {
			t.Errorf("%s: %s", path, message)
		}
	}
	b.free()
	b = start(t, roundRobin(t))
	b.attach("us-0", rawEngine(t, answered("200 OK", "text/plain", "WEBVTT")))
	if got := expect(t, b.post("/v1/audio/speech", `{"model":"chat-small","input":"hi"}`), http.StatusOK, ""); got != "WEBVTT" {
		t.Errorf("got %q", got)
	}
}

// Unusual responses of an engine are forwarded unchanged.
func TestUnusualResponsesAreUnchanged(t *testing.T) {
	big := chunk(strings.Repeat("x", 1<<20)) + doneEvent
	for name, c := range map[string]struct {
		answer, body string
		status       int
	}{
		"JSON as text/html":         {answered("200 OK", "text/html", plainReply), plainReply, 200},
		"JSON as text/plain":        {answered("200 OK", "text/plain; charset=utf-8", "\n"+plainReply), "\n" + plainReply, 200},
		"a stream as text/plain":    {answered("200 OK", "text/plain", chunk("a")+doneEvent), chunk("a") + doneEvent, 200},
		"tensors":                   {answered("200 OK", "application/octet-stream", "<\x00\xff"), "<\x00\xff", 200},
		"JSON for a stream":         {answered("200 OK", "application/json", plainReply), plainReply, 200},
		"JSON with trailing text":   {answered("200 OK", "application/json", plainReply+" and more"), plainReply + " and more", 200},
		"JSON with NaN":             {answered("200 OK", "application/json", `{"x":NaN}`), `{"x":NaN}`, 200},
		"an error field under 200":  {answered("200 OK", "application/json", `{"error":{"message":"no","code":400}}`), `{"error":{"message":"no","code":400}}`, 200},
		"text under 400":            {answered("400 Bad Request", "application/json", "no"), "no", 400},
		"no type":                   {"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi", "hi", 200},
		"no length":                 {"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n" + plainReply, plainReply, 200},
		"HTTP/1.0":                  {"HTTP/1.0 200 OK\r\nContent-Type: application/json\r\n\r\n" + plainReply, plainReply, 200},
		"early hints":               {"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + answered("200 OK", "application/json", plainReply), plainReply, 200},
		"compressed":                {answered("200 OK", "application/json", zipped(plainReply), "Content-Encoding: gzip"), zipped(plainReply), 200},
		"an event of 1 MB":          {streamed(big, true), big, 200},
		"a stream with only [DONE]": {streamed(doneEvent, true), doneEvent, 200},
		"events without JSON":       {streamed("data: hello\n\nhello\n\n: hi\n\n"+doneEvent, true), "data: hello\n\nhello\n\n: hi\n\n" + doneEvent, 200},
		"a 404 as a stream":         {answered("404 Not Found", "text/event-stream", "data: no\n\n"), "data: no\n\n", 404},
		"an unknown status":         {answered("299 Odd", "text/plain", "odd"), "odd", 299},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := start(t, roundRobin(t))
			b.attach("us-0", rawEngine(t, c.answer))
			resp := b.post(chatPath, streamBody)
			if got := read(t, resp); resp.StatusCode != c.status || got != c.body {
				t.Errorf("%d %.300q, want %d %.300q", resp.StatusCode, got, c.status, c.body)
			}
			b.free()
		})
	}
}

// A stream that fails after it has started ends in an error event, and never appears complete.
func TestFaultyStreams(t *testing.T) {
	for name, events := range map[string]string{
		"no JSON and no [DONE]": "data: hello\n\n",
		"lines without data":    "hello\n\nevent: x\n\n",
		"truncated [DONE]":      "data: [DONE\n\n",
	} {
		t.Run(name, func(t *testing.T) {
			for _, ends := range []bool{true, false} {
				o := roundRobin(t)
				o.NoContinue = true
				b := start(t, o)
				b.attach("us-0", rawEngine(t, streamed(events, ends)))
				got := expect(t, b.post(chatPath, streamBody), http.StatusOK, "")
				if !strings.HasPrefix(got, events) || !strings.Contains(got, `data: {"error":{`) || strings.Contains(got, doneEvent) {
					t.Errorf("got %q", got)
				}
				b.free()
			}
		})
	}
}

// An engine that sends only its header blocks a client at most until the timeout.
func TestMemoryOfHeadersOnly(t *testing.T) {
	testkit.Slow(t)
	for contentType, body := range map[string]string{"text/event-stream": streamBody, "application/json": plainBody} {
		t.Run(contentType, func(t *testing.T) {
			o := roundRobin(t)
			o.Limits.FirstByteTimeout, o.Limits.ResponseTimeout, o.Limits.IdleTimeout = 20*time.Millisecond, 20*time.Millisecond, 20*time.Millisecond
			b := start(t, o)
			b.attach("us-0", engine(t, func(w http.ResponseWriter, req *http.Request) {
				_, _ = io.Copy(io.Discard, req.Body)
				w.Header().Set("Content-Type", contentType)
				_ = http.NewResponseController(w).Flush()
				<-req.Context().Done()
			}))
			expect(t, b.post(chatPath, body), http.StatusGatewayTimeout, "deadline")
			b.free()
		})
	}
}
