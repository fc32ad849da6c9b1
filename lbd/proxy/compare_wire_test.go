//go:build compare && linux

package proxy_test

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"strconv"
)

// The requests of the client and the responses of the engine. Each request has a unique mark, and each
// part of the response repeats it: a response that reaches the wrong client, or is incomplete, is
// detected.
const (
	compareModel = "compare"
	markPrefix   = "mark:"
	markDigits   = 16
	wordDigits   = 6
	bodySize     = 4096
	systemTexts  = 16   // system prompts that all conversations share
	systemSize   = 1400 // bytes of each
	historySize  = 2000 // bytes that a conversation's turns share in addition to it
	turns        = 6    // requests of a conversation
	holdUser     = `"user":"hold"`
	doneText     = "data: [DONE]\n\n"
	usageText    = `data: {"id":"chatcmpl-compare","object":"chat.completion.chunk","model":"compare","choices":[],"usage":{"prompt_tokens":1000,"completion_tokens":64,"total_tokens":1064}}` + "\n\n"
	maxLine      = 8 << 10 // of a head; proxies add a few short fields
)

// stencil is a text with gaps to be filled in.
type stencil struct {
	text string
	gaps []int // where each gap begins
}

// cut makes a stencil of text, whose gaps are runs of '#'.
func cut(text string) stencil {
	s := stencil{text: text}
	for i := range len(text) {
		if text[i] == '#' && (i == 0 || text[i-1] != '#') {
			s.gaps = append(s.gaps, i)
		}
	}
	return s
}

// fill appends the text with its gaps filled in, in order.
func (s *stencil) fill(dst []byte, values ...[]byte) []byte {
	at := len(dst)
	dst = append(dst, s.text...)
	for i, v := range values {
		copy(dst[at+s.gaps[i]:], v)
	}
	return dst
}

var (
	answerStencil = cut(`{"id":"chatcmpl-################","object":"chat.completion","created":1700000000,"model":"compare",` +
		`"choices":[{"index":0,"message":{"role":"assistant","content":"The quick brown fox jumps over the lazy dog and is back in time for tea."},` +
		`"finish_reason":"stop"}],"usage":{"prompt_tokens":1000,"completion_tokens":16,"total_tokens":1016}}`)
	eventStencil = cut(`data: {"id":"chatcmpl-################","object":"chat.completion.chunk","created":1700000000,"model":"compare",` +
		`"choices":[{"index":0,"delta":{"content":" w######"},"finish_reason":null}]}` + "\n\n")
)

// digits writes n in hexadecimal, with leading zeros, into all of dst.
func digits(dst []byte, n uint64) {
	const hex = "0123456789abcdef"
	for i := len(dst) - 1; i >= 0; i-- {
		dst[i] = hex[n&15]
		n >>= 4
	}
}

// appendAnswer appends the body of the response to a request with this mark.
func appendAnswer(dst, mark []byte) []byte { return answerStencil.fill(dst, mark) }

// appendEvent appends event number i of the stream for that request.
func appendEvent(dst, mark []byte, i int) []byte {
	var value [wordDigits]byte
	digits(value[:], uint64(i))
	return eventStencil.fill(dst, mark, value[:])
}

// chunkHead is the relevant part of the head of a request or a response.
type chunkHead struct {
	first   string // its first line
	length  int    // Content-Length; -1 = none
	chunked bool
}

// readHead reads a head up to its empty line.
func readHead(in *bufio.Reader) (chunkHead, error) {
	h := chunkHead{length: -1}
	line, err := readLine(in)
	if err != nil {
		return h, err
	}
	h.first = string(line)
	for {
		line, err := readLine(in)
		if err != nil {
			return h, fmt.Errorf("reading a head: %w", err)
		}
		if len(line) == 0 {
			return h, nil
		}
		if err := h.field(line); err != nil {
			return h, err
		}
	}
}

func (h *chunkHead) field(line []byte) error {
	name, value, ok := bytes.Cut(line, []byte(":"))
	if !ok {
		return fmt.Errorf("reading a head: want NAME: VALUE, got %q", line)
	}
	value = bytes.TrimSpace(value)
	switch {
	case bytes.EqualFold(name, []byte("Content-Length")):
		n, err := strconv.Atoi(string(value))
		if err != nil || n < 0 {
			return fmt.Errorf("reading a head: Content-Length: want a whole number, got %q", value)
		}
		h.length = n
	case bytes.EqualFold(name, []byte("Transfer-Encoding")):
		h.chunked = bytes.EqualFold(value, []byte("chunked"))
	}
	return nil
}

// readLine reads a line without its end. It is valid until the next read.
func readLine(in *bufio.Reader) ([]byte, error) {
	line, err := in.ReadSlice('\n')
	switch {
	case errors.Is(err, bufio.ErrBufferFull):
		return nil, fmt.Errorf("reading a line: longer than %d bytes", maxLine)
	case errors.Is(err, io.EOF) && len(line) > 0:
		return nil, io.ErrUnexpectedEOF
	case err != nil:
		return nil, err
	}
	return bytes.TrimRight(line, "\r\n"), nil
}

// readChunk appends the next chunk of a body; the last one is empty.
func readChunk(in *bufio.Reader, dst []byte) ([]byte, error) {
	line, err := readLine(in)
	if err != nil {
		return dst, fmt.Errorf("reading a chunk: %w", err)
	}
	n, err := strconv.ParseUint(string(line), 16, 31)
	if err != nil {
		return dst, fmt.Errorf("reading a chunk: want its size, got %q", line)
	}
	at := len(dst)
	dst = append(dst, make([]byte, n)...)
	if _, err := io.ReadFull(in, dst[at:]); err != nil {
		return dst[:at], fmt.Errorf("reading a chunk of %d bytes: %w", n, err)
	}
	if line, err := readLine(in); err != nil || len(line) > 0 {
		return dst, fmt.Errorf("reading a chunk of %d bytes: want its end, got %q (%v)", n, line, err)
	}
	return dst, nil
}
