package wire

import (
	"net/http"
	"net/textproto"
	"strconv"
	"strings"
)

// frame is the way in which the end of a body is determined (RFC 9112, section 6.3).
type frame uint8

const (
	frameNone       frame = iota // there is no body
	frameSized                   // by Content-Length
	frameChunked                 // by a chunk of size 0
	frameUntilClose              // by the end of the connection
)

// frameOf returns the frame of a response's body. interpretHead must have been called.
func frameOf(resp *http.Response) frame {
	switch {
	case resp.Request.Method == http.MethodHead || !mayHaveBody(resp.StatusCode) || resp.ContentLength == 0:
		return frameNone
	case resp.TransferEncoding != nil:
		return frameChunked
	case resp.ContentLength > 0:
		return frameSized
	}
	return frameUntilClose
}

func mayHaveBody(status int) bool {
	return status >= http.StatusOK && status != http.StatusNoContent && status != http.StatusNotModified
}

// interpretHead interprets the fields that describe the message itself and moves them to the fields of the
// response, as net/http does.
func interpretHead(resp *http.Response) error {
	if err := setContentLength(resp); err != nil {
		return err
	}
	if err := setTrailer(resp); err != nil {
		return err
	}
	setClose(resp)
	return nil
}

// setContentLength sets the body's length, -1 when it is not known in advance.
func setContentLength(resp *http.Response) error {
	h := resp.Header
	length, err := contentLength(h)
	if err != nil {
		return err
	}
	if encodings, given := h["Transfer-Encoding"]; given {
		switch {
		case !resp.ProtoAtLeast(1, 1):
			return malformed("Transfer-Encoding: not allowed in %s", resp.Proto)
		case len(encodings) != 1 || !strings.EqualFold(encodings[0], "chunked"):
			return malformed("Transfer-Encoding: must be chunked, got %.80q", encodings)
		case length >= 0:
			return malformed("contains both Transfer-Encoding and Content-Length")
		}
		delete(h, "Transfer-Encoding")
		resp.TransferEncoding = []string{"chunked"}
	}
	resp.ContentLength = length
	if !mayHaveBody(resp.StatusCode) && resp.Request.Method != http.MethodHead {
		resp.ContentLength = 0
	}
	return nil
}

// contentLength returns the single value of Content-Length, -1 when there is none. Equal repeated
// values count as one.
func contentLength(h http.Header) (int64, error) {
	values, given := h["Content-Length"]
	if !given {
		return -1, nil
	}
	first := values[0]
	for _, v := range values[1:] {
		if v != first {
			return 0, malformed("Content-Length: must have one value, got %.80q", values)
		}
	}
	n, err := strconv.ParseUint(first, 10, 63)
	if err != nil {
		return 0, malformed("Content-Length: must be a whole number, got %.80q", first)
	}
	h["Content-Length"] = values[:1]
	return int64(n), nil
}

// setTrailer records which trailers are announced.
func setTrailer(resp *http.Response) error {
	lists, given := resp.Header["Trailer"]
	if !given || resp.TransferEncoding == nil {
		return nil
	}
	delete(resp.Header, "Trailer")
	for _, list := range lists {
		for name := range strings.SplitSeq(list, ",") {
			name = textproto.CanonicalMIMEHeaderKey(textproto.TrimString(name))
			switch name {
			case "":
				continue
			case "Transfer-Encoding", "Trailer", "Content-Length":
				return malformed("%s is announced as a trailer", name)
			}
			if resp.Trailer == nil {
				resp.Trailer = http.Header{}
			}
			resp.Trailer[name] = nil
		}
	}
	return nil
}

// setClose determines whether the connection ends with the response.
func setClose(resp *http.Response) {
	connection := resp.Header["Connection"]
	resp.Close = listContains(connection, "close")
	switch {
	case !resp.ProtoAtLeast(1, 1):
		resp.Close = resp.Close || !listContains(connection, "keep-alive")
	case resp.Close:
		delete(resp.Header, "Connection")
	}
	if frameOf(resp) == frameUntilClose {
		resp.Close = true
	}
}

// listContains reports whether a comma-separated list, over several lines, contains word.
func listContains(lines []string, word string) bool {
	for _, line := range lines {
		for w := range strings.SplitSeq(line, ",") {
			if strings.EqualFold(textproto.TrimString(w), word) {
				return true
			}
		}
	}
	return false
}
