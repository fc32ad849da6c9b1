package lbd

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"skyserve/internal/service"
	"skyserve/internal/testkit"
)

const (
	chatPath  = "/v1/chat/completions"
	chatBody  = `{"model":"llama","messages":[{"role":"user","content":"hello"}]}`
	wholeChat = `{"id":"c","object":"chat.completion","choices":[{"index":0,"message":{"role":"assistant","content":"hi"},"finish_reason":"stop"}],"usage":{"prompt_tokens":7,"completion_tokens":3,"total_tokens":10}}`
)

// request is a raw HTTP request.
func request(head, body string) string {
	return head + "\r\nHost: x\r\nContent-Length: " + strconv.Itoa(len(body)) + "\r\n\r\n" + body
}

func chunks(pieces ...string) string {
	var out strings.Builder
	for _, p := range pieces {
		fmt.Fprintf(&out, "%x\r\n%s\r\n", len(p), p)
	}
	return "POST " + chatPath + " HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n" + out.String()
}

// Any input on a connection results in the correct status, in an error in OpenAI's format if it was
// HTTP, and leaves no resources in use.
func TestInvalidInput(t *testing.T) {
	testkit.Slow(t)
	t.Parallel()
	e := newEngine(t, "llama", "")
	n := start(t, config("lb-us-0", "local/us", service.ReplicaConfig{ID: "us-0", URL: e.URL, Model: "llama"}), Options{})
	ready(t, n)
	const post = "POST " + chatPath + " HTTP/1.1"
	for name, c := range map[string]struct {
		raw    string
		status int    // 0: the connection may just be closed
		code   string // of an error in OpenAI's format; "" if net/http responds or the request is served
	}{
		"good":                          {request(post, chatBody), 200, ""},
		"no JSON":                       {request(post, "hello"), 400, "invalid_json"},
		"nothing":                       {request(post, ""), 400, "invalid_json"},
		"truncated JSON":                {request(post, chatBody[:30]), 400, "invalid_json"},
		"deep JSON":                     {request(post, `{"model":"llama","a":`+strings.Repeat("[", 1<<20)), 400, "invalid_json"},
		"JSON in UTF-16":                {request(post, "\xff\xfe{\x00}\x00"), 400, "invalid_json"},
		"invalid UTF-8":                 {request(post, strings.Replace(chatBody, "hello", "h\xc3llo", 1)), 400, "invalid_json"},
		"a lone surrogate":              {request(post, strings.Replace(chatBody, "hello", `\ud800`, 1)), 200, ""},
		"NUL in JSON":                   {request(post, strings.Replace(chatBody, "hello", "h\x00llo", 1)), 400, "invalid_json"},
		"a key twice":                   {request(post, `{"model":"gpt-9",`+chatBody[1:]), 400, "ambiguous_key"},
		"a key in different case":       {request(post, `{"Model":"gpt-9",`+chatBody[1:]), 400, "ambiguous_key"},
		"a key with an escape":          {request(post, `{"mod\u0065l":"gpt-9",`+chatBody[1:]), 400, "ambiguous_key"},
		"an unknown key twice":          {request(post, `{"x":1,"x":2,`+chatBody[1:]), 200, ""},
		"a byte order mark":             {request(post, "\xef\xbb\xbf"+chatBody), 200, ""},
		"two byte order marks":          {request(post, "\xef\xbb\xbf\xef\xbb\xbf"+chatBody), 400, "invalid_json"},
		"only a byte order mark":        {request(post, "\xef\xbb\xbf"), 400, "invalid_json"},
		"an invalid number":             {request(post, `{"temperature":NaN,`+chatBody[1:]), 400, "invalid_json"},
		"a line of 10 MB":               {request(post, strings.Replace(chatBody, "hello", strings.Repeat("x", 10<<20), 1)), 200, ""},
		"a body of 17 MB":               {post + "\r\nHost: x\r\nContent-Length: 17825792\r\n\r\n", 413, "request_too_large"},
		"a compressed body":             {request(post+"\r\nContent-Encoding: gzip", compressed(chatBody)), 200, ""},
		"a truncated compressed body":   {request(post+"\r\nContent-Encoding: gzip", compressed(chatBody)[:20]), 400, "invalid_encoding"},
		"a length longer than the body": {post + "\r\nHost: x\r\nContent-Length: 999\r\n\r\n" + chatBody, 400, "incomplete_body"},
		"a length below zero":           {post + "\r\nHost: x\r\nContent-Length: -1\r\n\r\n" + chatBody, 400, ""},
		"a non-numeric length":          {post + "\r\nHost: x\r\nContent-Length: 0x10\r\n\r\n" + chatBody, 400, ""},
		"a huge length":                 {post + "\r\nHost: x\r\nContent-Length: 99999999999999999999\r\n\r\n", 400, ""},
		"two lengths":                   {post + "\r\nHost: x\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n" + chatBody, 400, ""},
		"two lengths in one":            {post + "\r\nHost: x\r\nContent-Length: 5, 6\r\n\r\n" + chatBody, 400, ""},
		"chunks":                        {chunks(chatBody[:9], chatBody[9:], ""), 200, ""},
		"chunks and a length":           {strings.Replace(chunks(chatBody, ""), "\r\nTransfer", "\r\nContent-Length: 4\r\nTransfer", 1), 200, ""},
		"chunks without the last one":   {chunks(chatBody), 400, "incomplete_body"},
		"a chunk without a length":      {chunks() + "zz\r\nhello\r\n0\r\n\r\n", 400, "incomplete_body"},
		"a chunk shorter than its size": {chunks() + "fff\r\n" + chatBody, 400, "incomplete_body"},
		"a chunk longer than its size":  {chunks() + "4\r\n" + chatBody + "\r\n0\r\n\r\n", 400, "incomplete_body"},
		"a huge chunk":                  {chunks() + "fffffffffffffffff\r\n" + chatBody, 400, "incomplete_body"},
		"another transfer coding":       {strings.Replace(chunks(chatBody, ""), "chunked", "gzip, chunked", 1), 501, ""},
		"obfuscated chunked":            {strings.Replace(chunks(chatBody, ""), "chunked", "\vchunked", 1), 400, ""},
		"a space before the colon":      {post + "\r\nHost: x\r\nContent-Length : 4\r\n\r\n{}{}", 400, ""},
		"a folded header":               {request(post+"\r\nX-A: 1\r\n 2", chatBody), 200, ""},
		"bare line feeds":               {strings.ReplaceAll(request(post, chatBody), "\r\n", "\n"), 200, ""},
		"NUL in a header":               {request(post+"\r\nX-A: a\x00b", chatBody), 400, ""},
		"a header without a name":       {request(post+"\r\n: a", chatBody), 400, ""},
		"a header of 100 KB":            {request(post+"\r\nX-A: "+strings.Repeat("a", 100<<10), chatBody), 431, ""},
		"20,000 headers":                {request(post+strings.Repeat("\r\nA: 1", 20000), chatBody), 431, ""},
		"3,000 headers":                 {request(post+strings.Repeat("\r\nA: 1", 3000), chatBody), 200, ""},
		"no host":                       {post + "\r\n\r\n", 400, ""},
		"two hosts":                     {request(post+"\r\nHost: y", chatBody), 400, ""},
		"HTTP/1.0":                      {request("POST "+chatPath+" HTTP/1.0", chatBody), 200, ""},
		"HTTP/0.9":                      {"GET /\r\n\r\n", 400, ""},
		"HTTP/3.0":                      {request("POST "+chatPath+" HTTP/3.0", chatBody), 505, ""},
		"TLS to a plain port":           {"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400, ""},
		"an unknown method":             {request("BREW "+chatPath+" HTTP/1.1", chatBody), 405, "method_not_allowed"},
		"TRACE":                         {request("TRACE "+chatPath+" HTTP/1.1", ""), 405, "method_not_allowed"},
		"OPTIONS *":                     {request("OPTIONS * HTTP/1.1", ""), 200, ""},
		"CONNECT":                       {"CONNECT example.com:443 HTTP/1.1\r\nHost: example.com:443\r\n\r\n", 404, "not_found"},
		"an authority as target":        {request("POST example.com:443 HTTP/1.1", chatBody), 404, "not_found"},
		"a whole URL":                   {request("POST http://elsewhere"+chatPath+" HTTP/1.1", chatBody), 200, ""},
		"a path with dot-dot":           {request("POST /v1/../admin HTTP/1.1", chatBody), 404, "not_found"},
		"a path with dot-dot to itself": {request("POST /v1/x/.."+chatPath[3:]+" HTTP/1.1", chatBody), 404, "not_found"},
		"an escaped dot-dot path":       {request("POST /v1/%2e%2e/metrics HTTP/1.1", chatBody), 404, "not_found"},
		"two slashes":                   {request("POST /"+chatPath+" HTTP/1.1", chatBody), 404, "not_found"},
		"NUL in the path":               {request("POST /v1/chat%00/completions HTTP/1.1", chatBody), 404, "not_found"},
		"a path of 100 KB":              {request("POST /"+strings.Repeat("a", 100<<10)+" HTTP/1.1", chatBody), 431, ""},
		"a peer's path":                 {request("GET /skyserve/v1/heartbeat HTTP/1.1", ""), 401, ""},
		"an upgrade":                    {request(post+"\r\nConnection: upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: x", chatBody), 200, ""},
		"an upgrade to HTTP/2":          {request(post+"\r\nConnection: upgrade, http2-settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__", chatBody), 200, ""},
		"invalid HTTP/2":                {"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\nhello, world, this is no frame", 0, ""},
		"an unknown Expect":             {request(post+"\r\nExpect: tea", chatBody), 417, ""},
	} {
		t.Run(name, func(t *testing.T) {
			got, status := rawly(t, n.public, c.raw, c.status != http.StatusOK)
			if c.status == 0 {
				return // any end is accepted
			}
			if status != c.status {
				t.Fatalf("status %d, want %d: %.300s", status, c.status, got)
			}
			if c.code != "" && !strings.Contains(got, `"code":"`+c.code+`"`) {
				t.Errorf("want an error of code %s in OpenAI's format: %.300s", c.code, got)
			}
		})
	}
	n.quiet(t)
	if got := ask(t, client(t), n.public, "llama"); got.status != 200 {
		t.Errorf("afterwards a good request gets %d %s", got.status, got.body)
	}
}

func compressed(text string) string {
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	_, _ = io.WriteString(z, text)
	_ = z.Close()
	return b.String()
}

// rawly sends bytes over a connection and returns the body and the status of the response, 0 if the
// connection is closed without one. ends: the write side is closed after the bytes; a client that does
// so while a response is pending would count as disconnected.
func rawly(t *testing.T, public, raw string, ends bool) (answer string, status int) {
	t.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(public, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(testkit.Timeout))
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		_, _ = io.WriteString(conn, raw) // a server that has rejected it does not read further
		if ends {
			_ = conn.(*net.TCPConn).CloseWrite()
		}
	}()
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err == nil {
		var body []byte
		body, err = io.ReadAll(resp.Body)
		answer, status = string(body), resp.StatusCode
	}
	if timeout, ok := err.(net.Error); ok && timeout.Timeout() {
		t.Fatal("the connection hangs")
	}
	conn.Close()
	<-sent
	return answer, status
}
