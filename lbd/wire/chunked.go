package wire

import (
	"io"
	"math"
	"net/http"
)

const (
	// maxChunkLine bounds the line that begins a chunk, extensions included.
	maxChunkLine = 4 << 10
	// maxTrailer bounds what follows the last chunk.
	maxTrailer = 4 << 10
	// maxOverhead bounds by how much framing may exceed content: 16 bytes a chunk
	// and twice its data are free.
	maxOverhead = 16 << 10
)

// chunkState is what the next byte of a chunked body belongs to.
type chunkState uint8

const (
	inSize      chunkState = iota // the digits of a chunk's size
	inPadding                     // spaces after them
	inExtension                   // what follows a semicolon
	inSizeLF                      // the LF of that line
	inData
	inDataCR // the line's end after the data
	inDataLF
	inTrailerStart // the first byte of a line after the last chunk
	inTrailer      // the rest of it
	inEndLF        // the LF of the last line
	inNothing      // the body is complete
)

// chunks decodes a chunked body (RFC 9112, section 7.1) that arrives in pieces
// of any size.
type chunks struct {
	state    chunkState
	left     int64 // of the chunk's data; in its first line: its size so far
	digits   int   // of the size
	line     int   // bytes of that line
	overhead int64
	trailer  []byte // fields after the last chunk, each with its CRLF
}

// decode moves content from src to dst, which may be the same memory, and says
// how much it took and gave. It stops where dst is full, and with io.EOF where
// the body ends.
func (d *chunks) decode(dst, src []byte) (given, taken int, err error) {
	for taken < len(src) {
		if d.state == inData {
			if given == len(dst) {
				return given, taken, nil
			}
			piece := src[taken:]
			if int64(len(piece)) > d.left {
				piece = piece[:d.left]
			}
			n := copy(dst[given:], piece)
			given, taken, d.left = given+n, taken+n, d.left-int64(n)
			if d.left == 0 {
				d.state = inDataCR
			}
			continue
		}
		if err := d.step(src[taken]); err != nil {
			return given, taken, err
		}
		taken++
		if d.state == inNothing {
			return given, taken, io.EOF
		}
	}
	return given, taken, nil
}

// step takes one byte that is not data.
func (d *chunks) step(b byte) error {
	switch d.state {
	case inDataCR:
		return d.want(b, '\r', inDataLF)
	case inDataLF:
		return d.want(b, '\n', inSize)
	case inEndLF:
		return d.want(b, '\n', inNothing)
	case inTrailerStart, inTrailer:
		return d.trail(b)
	}
	if d.line++; d.line > maxChunkLine {
		return malformed("the line before a chunk is longer than %d bytes", maxChunkLine)
	}
	switch {
	case d.state == inSizeLF:
		if err := d.want(b, '\n', inData); err != nil {
			return err
		}
		return d.begin()
	case b == '\r' && d.digits > 0:
		d.state = inSizeLF
	case b == '\r' || b == '\n':
		return malformed("chunk: a line without a size or with a bare LF")
	case d.state == inExtension:
	case d.state == inSize && b == ';' && d.digits > 0:
		d.state = inExtension
	case (b == ' ' || b == '\t') && d.digits > 0:
		d.state = inPadding
	case d.state == inSize:
		return d.digit(b)
	default:
		return malformed("chunk size: got %q after it", b)
	}
	return nil
}

// want takes one byte that can be nothing else.
func (d *chunks) want(b, wanted byte, next chunkState) error {
	if b != wanted {
		return malformed("chunk: want %q, got %q", wanted, b)
	}
	d.state = next
	return nil
}

// digit takes one digit of a chunk's size.
func (d *chunks) digit(b byte) error {
	var v int64
	switch {
	case '0' <= b && b <= '9':
		v = int64(b - '0')
	case 'a' <= b && b <= 'f':
		v = int64(b-'a') + 10
	case 'A' <= b && b <= 'F':
		v = int64(b-'A') + 10
	default:
		return malformed("chunk size: got %q", b)
	}
	if d.digits++; d.digits > 16 || d.left > math.MaxInt64>>4 {
		return malformed("chunk size: it is too large")
	}
	d.left = d.left<<4 | v
	return nil
}

// begin comes after a chunk's first line.
func (d *chunks) begin() error {
	d.overhead = max(0, d.overhead+int64(d.line)-16-2*min(d.left, math.MaxInt64/4))
	if d.overhead > maxOverhead {
		return malformed("chunks: more framing than content")
	}
	if d.left == 0 {
		d.state = inTrailerStart
	}
	d.digits, d.line = 0, 0
	return nil
}

// trail takes one byte after the last chunk.
func (d *chunks) trail(b byte) error {
	if d.state == inTrailerStart {
		if b == '\r' {
			d.state = inEndLF
			return nil
		}
		d.state = inTrailer
	}
	if len(d.trailer) == maxTrailer {
		return malformed("trailers: longer than %d bytes", maxTrailer)
	}
	d.trailer = append(d.trailer, b)
	if b == '\n' {
		if n := len(d.trailer); n < 2 || d.trailer[n-2] != '\r' {
			return malformed("trailers: a line ends in a bare LF")
		}
		d.state = inTrailerStart
	}
	return nil
}

// finish puts the trailers that came into a response.
func (d *chunks) finish(resp *http.Response) error {
	if d.trailer == nil {
		return nil
	}
	fields, err := parseFields(string(d.trailer), 0)
	if err != nil {
		return err
	}
	if resp.Trailer == nil {
		resp.Trailer = make(http.Header, len(fields))
	}
	for name, values := range fields {
		resp.Trailer[name] = values
	}
	return nil
}
