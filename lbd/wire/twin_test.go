package wire

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"reflect"
	"strings"
	"testing"
)

// seen contains everything that a caller receives of a response.
type seen struct {
	Status           string
	Code, Minor      int
	Header, Trailer  http.Header
	ContentLength    int64
	TransferEncoding []string
	Close            bool
	Body             string
	headErr, bodyErr error
}

func observe(rt http.RoundTripper, req *http.Request) (s seen) {
	resp, err := rt.RoundTrip(req)
	if err != nil {
		return seen{headErr: err}
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return seen{
		Status: resp.Status, Code: resp.StatusCode, Minor: resp.ProtoMinor, Header: resp.Header, Trailer: resp.Trailer,
		ContentLength: resp.ContentLength, TransferEncoding: resp.TransferEncoding, Close: resp.Close, Body: string(body), bodyErr: err,
	}
}

// differs describes where two views of a response differ, "" if nowhere. What an interrupted body
// contained before is not compared: that is a matter of timing.
func differs(ours, theirs seen) string {
	if (ours.headErr == nil) != (theirs.headErr == nil) || (ours.bodyErr == nil) != (theirs.bodyErr == nil) {
		return fmt.Sprintf("ours fails with %v and %v, theirs with %v and %v", ours.headErr, ours.bodyErr, theirs.headErr, theirs.bodyErr)
	}
	if ours.bodyErr != nil {
		ours.Body, theirs.Body, ours.Trailer, theirs.Trailer = "", "", nil, nil
	}
	ours.headErr, ours.bodyErr, theirs.headErr, theirs.bodyErr = nil, nil, nil, nil
	if _, added := ours.Header["Cache-Control"]; !added {
		theirs.Header.Del("Cache-Control") // made from Pragma
	}
	if !reflect.DeepEqual(ours, theirs) {
		return fmt.Sprintf("ours %+v, theirs %+v", ours, theirs)
	}
	return ""
}

// both requests the same response with our transport and with net/http's, in memory.
func both(t testing.TB, method, raw string, piece int) (ours, theirs seen) {
	dial := piped(once(raw, piece))
	us := NewTransport(Options{DialContext: dial, MaxHeadBytes: 8 << 10})
	them := &http.Transport{DialContext: dial, DisableCompression: true, MaxResponseHeaderBytes: 8 << 10}
	defer us.CloseIdleConnections()
	defer them.CloseIdleConnections()
	return observe(us, request(t, method, "http://engine/", "")), observe(them, request(t, method, "http://engine/", ""))
}

const chunkedHead = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n"

// answers contains raw responses that both sides interpret equally. Only this package rejects those
// in refused.
var answers = map[string]string{
	"sized":                        "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Type: text/plain\r\n\r\nhello",
	"nothing":                      "",
	"sized, cut":                   "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhel",
	"sized, more follows":          "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhelloHTTP/1.1 200 OK\r\n",
	"length zero":                  "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
	"length twice":                 "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 5\r\n\r\nhello",
	"two lengths":                  "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello!",
	"lengths in a list":            "HTTP/1.1 200 OK\r\nContent-Length: 5, 5\r\n\r\nhello",
	"length with sign":             "HTTP/1.1 200 OK\r\nContent-Length: +5\r\n\r\nhello",
	"length negative":              "HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\nhello",
	"length hex":                   "HTTP/1.1 200 OK\r\nContent-Length: 0x5\r\n\r\nhello",
	"length empty":                 "HTTP/1.1 200 OK\r\nContent-Length:\r\n\r\nhello",
	"length huge":                  "HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999\r\n\r\nhello",
	"length padded":                "HTTP/1.1 200 OK\r\nContent-Length: \t 005 \r\n\r\nhello",
	"until close":                  "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n\r\nhello",
	"until close, nothing":         "HTTP/1.1 200 OK\r\n\r\n",
	"chunked":                      chunkedHead + "\r\n5\r\nhello\r\n6\r\n world\r\n0\r\n\r\n",
	"chunked, upper case":          "HTTP/1.1 200 OK\r\ntransfer-encoding: CHUNKED\r\n\r\nA\r\n0123456789\r\n0\r\n\r\n",
	"chunked, zeros":               chunkedHead + "\r\n0005\r\nhello\r\n000\r\n\r\n",
	"chunked, extension":           chunkedHead + "\r\n5;a=\"b\"\r\nhello\r\n0;x\r\n\r\n",
	"chunked, long extension":      chunkedHead + "\r\n5;" + strings.Repeat("a", 5000) + "\r\nhello\r\n0\r\n\r\n",
	"chunked, framing only":        chunkedHead + "\r\n" + strings.Repeat("1;"+strings.Repeat("a", 900)+"\r\nx\r\n", 30) + "0\r\n\r\n",
	"chunked, space after size":    chunkedHead + "\r\n5 \t\r\nhello\r\n0\r\n\r\n",
	"chunked, space before ;":      chunkedHead + "\r\n5 ;a\r\nhello\r\n0\r\n\r\n",
	"chunked, space before size":   chunkedHead + "\r\n 5\r\nhello\r\n0\r\n\r\n",
	"chunked, no size":             chunkedHead + "\r\n\r\nhello\r\n0\r\n\r\n",
	"chunked, size is no number":   chunkedHead + "\r\n5g\r\nhello\r\n0\r\n\r\n",
	"chunked, negative size":       chunkedHead + "\r\n-5\r\nhello\r\n0\r\n\r\n",
	"chunked, 0x size":             chunkedHead + "\r\n0x5\r\nhello\r\n0\r\n\r\n",
	"chunked, huge size":           chunkedHead + "\r\nffffffffffffffff\r\nhello\r\n0\r\n\r\n",
	"chunked, size of 17 digits":   chunkedHead + "\r\n00000000000000005\r\nhello\r\n0\r\n\r\n",
	"chunked, bare LF after size":  chunkedHead + "\r\n5\nhello\r\n0\r\n\r\n",
	"chunked, bare CR in size":     chunkedHead + "\r\n5\r;\r\nhello\r\n0\r\n\r\n",
	"chunked, bare LF after data":  chunkedHead + "\r\n5\r\nhello\n0\r\n\r\n",
	"chunked, data too long":       chunkedHead + "\r\n5\r\nhello!\r\n0\r\n\r\n",
	"chunked, cut in size":         chunkedHead + "\r\n5\r\nhello\r\n6",
	"chunked, cut in data":         chunkedHead + "\r\n5\r\nhel",
	"chunked, cut before the end":  chunkedHead + "\r\n5\r\nhello\r\n0\r\n",
	"chunked, nothing":             chunkedHead + "\r\n0\r\n\r\n",
	"chunked, more follows":        chunkedHead + "\r\n0\r\n\r\nHTTP/1.1 200 OK\r\n\r\n",
	"chunked twice":                "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
	"gzip, chunked":                "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
	"identity":                     "HTTP/1.1 200 OK\r\nTransfer-Encoding: identity\r\n\r\nhello",
	"trailer":                      chunkedHead + "Trailer: X-Sum, x-two\r\n\r\n2\r\nhi\r\n0\r\nX-Sum: 1\r\nX-Other: a\r\nX-Other: b\r\n\r\n",
	"trailer that never comes":     chunkedHead + "Trailer: X-Sum\r\n\r\n2\r\nhi\r\n0\r\n\r\n",
	"trailer, cut":                 chunkedHead + "\r\n2\r\nhi\r\n0\r\nX-Sum: 1\r\n",
	"trailer, broken":              chunkedHead + "\r\n2\r\nhi\r\n0\r\nX-Sum\r\n\r\n",
	"trailer, too long":            chunkedHead + "\r\n2\r\nhi\r\n0\r\nX-Sum: " + strings.Repeat("a", 5000) + "\r\n\r\n",
	"trailer that reframes":        chunkedHead + "Trailer: Content-Length\r\n\r\n0\r\n\r\n",
	"trailer without chunks":       "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTrailer: X\r\n\r\nhi",
	"close":                        "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: x, Close\r\n\r\nhi",
	"keep-alive":                   "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: keep-alive\r\nKeep-Alive: timeout=5\r\n\r\nhi",
	"1.0":                          "HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nhi",
	"1.0, keep-alive":              "HTTP/1.0 200 OK\r\nContent-Length: 2\r\nConnection: Keep-Alive\r\n\r\nhi",
	"1.0, until close":             "HTTP/1.0 200 OK\r\n\r\nhi",
	"1.2":                          "HTTP/1.2 200 OK\r\nContent-Length: 2\r\n\r\nhi",
	"204":                          "HTTP/1.1 204 No Content\r\n\r\n",
	"204 with length":              "HTTP/1.1 204 No Content\r\nContent-Length: 5\r\n\r\n",
	"204 chunked":                  "HTTP/1.1 204 No Content\r\nTransfer-Encoding: chunked\r\n\r\n",
	"304 with length":              "HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\nEtag: \"a\"\r\n\r\n",
	"interim":                      "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi",
	"interim only":                 "HTTP/1.1 100 Continue\r\n\r\n",
	"interim without end":          strings.Repeat("HTTP/1.1 100 Continue\r\n\r\n", 400) + "HTTP/1.1 200 OK\r\n\r\n",
	"interim with length":          "HTTP/1.1 103 Early Hints\r\nContent-Length: 7\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi",
	"interim with bad length":      "HTTP/1.1 103 Early Hints\r\nContent-Length: x\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi",
	"interim that closes":          "HTTP/1.1 103 Early Hints\r\nConnection: close\r\nTrailer: X\r\nTransfer-Encoding: chunked\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi",
	"no reason":                    "HTTP/1.1 200\r\nContent-Length: 2\r\n\r\nhi",
	"empty reason":                 "HTTP/1.1 200 \r\nContent-Length: 2\r\n\r\nhi",
	"odd status":                   "HTTP/1.1 799 What\tnow \xff\r\nContent-Length: 2\r\n\r\nhi",
	"status of two digits":         "HTTP/1.1 20 OK\r\n\r\n",
	"status of four digits":        "HTTP/1.1 2000 OK\r\n\r\n",
	"status is no number":          "HTTP/1.1 2x0 OK\r\n\r\n",
	"no version":                   "200 OK\r\n\r\n",
	"other protocol":               "SSH-2.0-OpenSSH_9.6\r\n",
	"blank line first":             "\r\nHTTP/1.1 200 OK\r\n\r\n",
	"cut in status":                "HTTP/1.1 20",
	"cut in field":                 "HTTP/1.1 200 OK\r\nContent-Le",
	"cut before blank line":        "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n",
	"field without colon":          "HTTP/1.1 200 OK\r\nnonsense\r\n\r\n",
	"field without name":           "HTTP/1.1 200 OK\r\n: x\r\n\r\n",
	"field without value":          "HTTP/1.1 200 OK\r\nX-A:\r\nX-A: \r\nContent-Length: 0\r\n\r\n",
	"first field folded":           "HTTP/1.1 200 OK\r\n X: y\r\n\r\n",
	"field twice":                  "HTTP/1.1 200 OK\r\nset-cookie: a\r\nSET-COOKIE: b\r\nsEt-coOkie:c \r\nContent-Length: 0\r\n\r\n",
	"control character in value":   "HTTP/1.1 200 OK\r\nX-A: a\x00b\r\n\r\n",
	"bare CR in value":             "HTTP/1.1 200 OK\r\nX-A: a\rb\r\n\r\n",
	"control character in name":    "HTTP/1.1 200 OK\r\nX\x01A: a\r\n\r\n",
	"tab and high bytes in value":  "HTTP/1.1 200 OK\r\nX-A: \ta\tb\xc3\xa4\t\r\nContent-Length: 0\r\n\r\n",
	"colons in value":              "HTTP/1.1 200 OK\r\nX-A: a:b: c\r\nContent-Length: 0\r\n\r\n",
	"head of some size":            "HTTP/1.1 200 OK\r\nX-A: " + strings.Repeat("a", 6000) + "\r\nContent-Length: 2\r\n\r\nhi",
	"head too large":               "HTTP/1.1 200 OK\r\nX-A: " + strings.Repeat("a", 9000) + "\r\nContent-Length: 2\r\n\r\nhi",
	"pragma":                       "HTTP/1.1 200 OK\r\nPragma: no-cache\r\nContent-Length: 0\r\n\r\n",
	"events":                       chunkedHead + "Content-Type: text/event-stream\r\n\r\n" + strings.Repeat("1b\r\ndata: {\"choices\":[\"abc\"]}\n\n\r\n", 400) + "0\r\n\r\n",
	"large body":                   "HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n" + strings.Repeat("0123456789", 10000),
	"large chunk":                  chunkedHead + "\r\n186A0\r\n" + strings.Repeat("0123456789", 10000) + "\r\n0\r\n\r\n",
	"set-cookie with a long value": "HTTP/1.1 200 OK\r\nSet-Cookie: " + strings.Repeat("a=b; ", 100) + "\r\nContent-Length: 0\r\n\r\n",
}

// refused are responses that net/http accepts and this package does not, each by a rule of the package
// documentation.
var refused = map[string]string{
	"lines end in LF":         "HTTP/1.1 200 OK\nContent-Length: 2\n\nhi",
	"a line ends in LF":       "HTTP/1.1 200 OK\r\nX-A: b\nContent-Length: 2\r\n\r\nhi",
	"folded":                  "HTTP/1.1 200 OK\r\nX-A: b\r\n c\r\nContent-Length: 2\r\n\r\nhi",
	"space before colon":      "HTTP/1.1 200 OK\r\nContent-Length : 2\r\n\r\nhi",
	"chunked and length":      chunkedHead + "Content-Length: 2\r\n\r\n0\r\n\r\n",
	"204, chunked and length": "HTTP/1.1 204 No Content\r\nTransfer-Encoding: chunked\r\nContent-Length: 2\r\n\r\n",
	"1.0 chunked":             "HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nhi",
	"version 2":               "HTTP/2.0 200 OK\r\nContent-Length: 2\r\n\r\nhi",
	"version 0":               "HTTP/0.9 200 OK\r\nContent-Length: 2\r\n\r\nhi",
	"two spaces":              "HTTP/1.1  200 OK\r\nContent-Length: 2\r\n\r\nhi",
	"status with sign":        "HTTP/1.1 +20 OK\r\nContent-Length: 2\r\n\r\nhi",
	"status below 100":        "HTTP/1.1 099 OK\r\nContent-Length: 2\r\n\r\nhi",
	"control in reason":       "HTTP/1.1 200 O\rK\r\nContent-Length: 2\r\n\r\nhi",
	"101":                     "HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: Upgrade\r\n\r\n",
	"too many fields":         "HTTP/1.1 200 OK\r\n" + strings.Repeat("A:\r\n", 1001) + "Content-Length: 2\r\n\r\nhi",
}

func TestResponsesMatchNetHTTP(t *testing.T) {
	for name, raw := range answers {
		for _, method := range []string{http.MethodGet, http.MethodHead, http.MethodPost} {
			for _, piece := range []int{1 << 20, 1, 7} {
				if piece == 1 && len(raw) > 20000 {
					continue
				}
				ours, theirs := both(t, method, raw, piece)
				if diff := differs(ours, theirs); diff != "" {
					t.Errorf("%s, %s, %d bytes at a time: %s", name, method, piece, diff)
				}
			}
		}
	}
}

func TestAmbiguousResponsesAreRejected(t *testing.T) {
	for name, raw := range refused {
		ours, theirs := both(t, http.MethodGet, raw, 1<<20)
		if !errors.Is(ours.headErr, ErrMalformed) {
			t.Errorf("%s: got %v, want ErrMalformed", name, ours.headErr)
		}
		if theirs.headErr != nil {
			t.Errorf("%s: net/http fails too (%v): the case belongs to the other table", name, theirs.headErr)
		}
	}
}

// strict are parts of the errors of the rules that net/http does not have.
var strict = []string{
	"bare LF", "field: name must be", "Transfer-Encoding: not allowed in HTTP/1.0", "both Transfer-Encoding", "status line", "status 101", "must have at most",
	"control character",
}

func FuzzResponse(f *testing.F) {
	for _, table := range []map[string]string{answers, refused} {
		for _, raw := range table {
			f.Add(raw, uint8(0), false)
			f.Add(raw, uint8(3), true)
		}
	}
	f.Fuzz(func(t *testing.T, raw string, piece uint8, head bool) {
		method := http.MethodGet
		if head {
			method = http.MethodHead
		}
		size := int(piece)
		if size == 0 || len(raw) > 4096 {
			size = 1 << 20
		}
		ours, theirs := both(t, method, raw, size)
		for _, err := range []error{ours.headErr, ours.bodyErr} {
			if !errors.Is(err, ErrMalformed) {
				continue
			}
			for _, rule := range strict {
				if strings.Contains(err.Error(), rule) {
					return
				}
			}
		}
		if diff := differs(ours, theirs); diff != "" {
			t.Errorf("%q: %s", raw, diff)
		}
	})
}
