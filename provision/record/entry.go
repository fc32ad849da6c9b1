package record

import (
	"encoding/json"
	"net/http"
	"net/url"
	"time"
)

// Format is the version of the file's format.
const Format = 1

// Header is the first line of a file.
type Header struct {
	Format  int       `json:"skyserve_recording"` // Format
	Command string    `json:"command"`            // the command without arguments: "skyserve up"
	Version string    `json:"version"`            // of skyserve
	Started time.Time `json:"started"`
}

// Call is a call with its response: each further line of a file.
type Call struct {
	Number     int       `json:"n"` // order of the requests in the process, from 1
	Time       time.Time `json:"time"`
	DurationMS float64   `json:"ms"` // until the end of the response
	Request    Request   `json:"request"`
	Response   *Response `json:"response,omitempty"` // nil: there was none, see Error
	// Error is the error of a call without a response, or of reading the response.
	Error string `json:"error,omitempty"`
}

// Request is the request of a call, without secrets.
type Request struct {
	Method  string            `json:"method"`
	URL     string            `json:"url"`
	Headers map[string]string `json:"headers,omitempty"`
	Body
}

// Response is the response of a call, without secrets.
type Response struct {
	Status  int               `json:"status"`
	Headers map[string]string `json:"headers,omitempty"`
	Body
}

// Body is the body of a message, in one of the formats.
type Body struct {
	JSON json.RawMessage `json:"json,omitempty"`
	Form url.Values      `json:"form,omitempty"`
	XML  string          `json:"xml,omitempty"`
	Text string          `json:"text,omitempty"`
	// Omitted states why a body is not recorded.
	Omitted string `json:"omitted,omitempty"`
	// Bytes is the size of the body as transmitted.
	Bytes int64 `json:"bytes,omitempty"`
}

// Content returns the body as text, to send it again.
func (b Body) Content() string {
	switch {
	case b.JSON != nil:
		return string(b.JSON)
	case b.Form != nil:
		return b.Form.Encode()
	case b.XML != "":
		return b.XML
	}
	return b.Text
}

// joinHeaders returns headers with one text for each name, with their secrets removed.
func (r *Redactor) joinHeaders(h http.Header) map[string]string {
	joined := map[string]string{}
	for name, values := range h {
		switch {
		case len(values) == 0:
		case http.CanonicalHeaderKey(name) == "X-Amz-Target": // the name of an operation, which may look random
			joined[name] = values[0]
		case plainHeaders[http.CanonicalHeaderKey(name)]:
			text := values[0]
			for _, v := range values[1:] {
				text += ", " + v
			}
			joined[name] = r.Value(text)
		default:
			joined[name] = r.placeholder(values[0])
		}
	}
	return joined
}

// plainHeaders are the headers whose value is recorded. Others may contain credentials in ways that this
// package does not know: only their name is recorded.
var plainHeaders = map[string]bool{
	"Accept": true, "Accept-Encoding": true, "Amz-Sdk-Request": true, "Cache-Control": true, "Content-Encoding": true,
	"Content-Length": true, "Content-Type": true, "Date": true, "Expires": true, "Retry-After": true, "Server": true,
	"Strict-Transport-Security": true, "Transfer-Encoding": true, "User-Agent": true, "Vary": true,
	"X-Amz-Bucket-Region": true, "X-Amz-Date": true, "X-Amz-Expected-Bucket-Owner": true, "X-Amz-Object-Ownership": true, "X-Amz-Server-Side-Encryption": true, "X-Amzn-Errortype": true, "X-Amzn-Query-Mode": true, "X-Amzn-Requestid": true,
	"X-Goog-Api-Client": true, "X-Goog-User-Project": true,
}
