package proxy

import (
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"strings"
	"sync"

	"github.com/klauspost/compress/zstd"

	"skyserve/lbd/openai"
)

// acceptedEncodings are the content encodings of request bodies that the balancer decodes. The engine
// receives the decoded body, because not every engine decodes bodies, and retries and edits need it.
const acceptedEncodings = "gzip, zstd"

// Memory of the decoders.
const (
	gzipMemory    = 64 << 10              // the window and the tables of DEFLATE
	maxZstdWindow = 8 << 20               // the minimum that RFC 8878 recommends; only rare, high compression levels exceed it
	zstdMemory    = maxZstdWindow + 1<<20 // the window and the tables
)

var gzipReaders sync.Pool // of *gzip.Reader

// decodedBody decodes a compressed request body while it is read. It stops at the limit, so a small body cannot
// become a large one.
type decodedBody struct {
	encoding  string
	encoded   countedReader
	decoder   io.Reader // nil until the first byte is needed
	remaining int64     // bytes until the limit
	limit     int64
	close     func()
}

// countedReader counts the bytes read and keeps the error of reading.
type countedReader struct {
	io.Reader
	n   int64
	err error
}

// Read returns the next bytes of the encoded body.
func (c *countedReader) Read(p []byte) (n int, err error) {
	n, err = c.Reader.Read(p)
	c.n += int64(n)
	if err != nil {
		c.err = err
	}
	return n, err
}

// contentEncoding returns the content encoding of a request's body, in lower case; empty if it has none.
func contentEncoding(h http.Header) string {
	values := h["Content-Encoding"]
	if len(values) == 0 {
		return ""
	}
	encoding := strings.ToLower(strings.TrimSpace(strings.Join(values, ",")))
	switch encoding {
	case "identity":
		return ""
	case "x-gzip": // RFC 9110, section 8.4.1.3
		return "gzip"
	}
	return encoding
}

// decodeBody returns a reader of a body in an encoding, of at most limit bytes when decoded, and the
// memory that it uses. The caller must call its close.
func decodeBody(encoded io.Reader, encoding string, limit int64) (d *decodedBody, memory int64, err error) {
	d = &decodedBody{encoding: encoding, encoded: countedReader{Reader: encoded}, remaining: limit, limit: limit, close: func() {}}
	switch encoding {
	case "gzip":
		return d, gzipMemory, nil
	case "zstd":
		return d, zstdMemory, nil
	}
	return nil, 0, &unsupportedEncodingError{encoding}
}

// Read returns the next decoded bytes.
func (d *decodedBody) Read(p []byte) (n int, err error) {
	if d.decoder == nil {
		err = d.open()
	}
	if err == nil {
		n, err = d.decoder.Read(p)
	}
	if d.remaining -= int64(n); d.remaining < 0 {
		return n, &decodedTooLargeError{&http.MaxBytesError{Limit: d.limit}}
	}
	if err == nil || errors.Is(err, io.EOF) {
		return n, err
	}
	if cause := d.encoded.err; cause != nil && !errors.Is(cause, io.EOF) {
		return n, cause // the body was not received
	}
	return n, &encodingError{d.encoding, d.encoded.n, err}
}

// decodeOwnBody makes a request to a path of the balancer itself contain its decoded body. Its handler limits the
// number of bytes, and receives an *openai.Error for a body that is not valid in its encoding. release frees the memory
// of the decoder.
func (r *Runtime) decodeOwnBody(req *http.Request, tenant string) (release func(), refused *openai.Error) {
	encoding := contentEncoding(req.Header)
	if encoding == "" || req.ContentLength == 0 {
		return func() {}, nil
	}
	body, size, err := decodeBody(req.Body, encoding, math.MaxInt64)
	if err != nil {
		return nil, errEncoding(err)
	}
	memory := r.memory.Use(tenant)
	if err := memory.Set(size); err != nil {
		return nil, errNoMemory(err)
	}
	req.Body, req.ContentLength = io.NopCloser(refusingBody{body}), -1
	return func() { body.close(); memory.Release() }, nil
}

// refusingBody is a decodedBody whose errors are those of the API.
type refusingBody struct{ *decodedBody }

// Read returns the next decoded bytes.
func (b refusingBody) Read(p []byte) (n int, err error) {
	n, err = b.decodedBody.Read(p)
	if refused := errEncoding(err); refused != nil {
		return n, refused
	}
	return n, err
}

// open creates the decoder, which reads the head of the encoded data.
func (d *decodedBody) open() error {
	if d.encoding == "zstd" {
		z, err := zstd.NewReader(&d.encoded, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true), zstd.WithDecoderMaxWindow(maxZstdWindow))
		if err != nil {
			return err
		}
		d.decoder, d.close = z, z.Close
		return nil
	}
	z, pooled := gzipReaders.Get().(*gzip.Reader)
	if !pooled {
		z = new(gzip.Reader)
	}
	d.close = func() { gzipReaders.Put(z) }
	if err := z.Reset(&d.encoded); err != nil {
		if errors.Is(err, io.EOF) {
			return io.ErrUnexpectedEOF // an empty body is not a gzip file
		}
		return err
	}
	d.decoder = z
	return nil
}

// unsupportedEncodingError is a content encoding that the balancer does not decode.
type unsupportedEncodingError struct{ encoding string }

// Error contains the encoding and those that are accepted.
func (e *unsupportedEncodingError) Error() string {
	return fmt.Sprintf("header Content-Encoding: must be one of %s, got %s", acceptedEncodings, openai.Clip([]byte(e.encoding)))
}

// encodingError is a body that is not valid in its content encoding.
type encodingError struct {
	encoding string
	read     int64 // bytes of the encoded body
	err      error
}

// Error contains the position and the cause.
func (e *encodingError) Error() string {
	return fmt.Sprintf("invalid %s data within the first %d bytes: %v", e.encoding, e.read, e.err)
}

// decodedTooLargeError is a body that exceeds the limit when it is decoded.
type decodedTooLargeError struct{ *http.MaxBytesError }

// Unwrap returns the error of a body that is too large.
func (e *decodedTooLargeError) Unwrap() error { return e.MaxBytesError }

// errEncoding returns the error for a body that could not be decoded; nil for another error.
func errEncoding(err error) *openai.Error {
	var unsupported *unsupportedEncodingError
	var invalid *encodingError
	switch {
	case errors.As(err, &unsupported):
		return &openai.Error{
			Status: http.StatusUnsupportedMediaType, Kind: openai.TypeInvalid, Param: "Content-Encoding", Code: "unsupported_encoding",
			Message: err.Error(),
		}
	case errors.As(err, &invalid):
		return openai.Invalid("", "invalid_encoding", "decoding the request body: "+err.Error())
	}
	return nil
}
