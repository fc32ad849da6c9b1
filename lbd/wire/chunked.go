package wire

import (
	"io"
	"math"
	"net/http"
)

const (
	// maxChunkLine limits the line that starts a chunk, including extensions.
	maxChunkLine = 4 << 10
	// maxTrailer limits the trailer fields after the last chunk.
	maxTrailer = 4 << 10
	// maxOverhead limits the bytes by which framing may exceed content. For each chunk, 16 bytes and
	// twice its data are not counted.
	maxOverhead = 16 << 10
)

// chunkState is the part of a chunked body that the next byte belongs to.
type chunkState uint8

const (
	inSize      chunkState = iota // the digits of a chunk's size
	inPadding                     // spaces after them
	inExtension                   // the text after a semicolon
	inSizeLF                      // the LF of that line
	inData
	inDataCR // the line end after the data
	inDataLF
	inTrailerStart // the first byte of a line after the last chunk
	inTrailer      // the remaining bytes of such a line
	inEndLF        // the LF of the last line
	inEnd          // the body is complete
)

// chunkDecoder decodes a chunked body (RFC 9112, section 7.1) that arrives in pieces of any size.
type chunkDecoder struct {
	state     chunkState
	remaining int64 // remaining bytes of the chunk's data; while its size line is read, the size so far
	digits    int   // digits of the size
	line      int   // bytes of the size line
	overhead  int64
	trailer   []byte // fields after the last chunk, each with its CRLF
}

// decode copies content from src to dst, which may be the same memory. It returns the numbers of
// bytes that it wrote and read. It stops when dst is full, and returns io.EOF at the end of the
// body.
func (d *chunkDecoder) decode(dst, src []byte) (given, taken int, err error) {
	for taken < len(src) {
		if d.state == inData {
			if given == len(dst) {
				return given, taken, nil
			}
			piece := src[taken:]
			if int64(len(piece)) > d.remaining {
				piece = piece[:d.remaining]
			}
			n := copy(dst[given:], piece)
			given, taken, d.remaining = given+n, taken+n, d.remaining-int64(n)
			if d.remaining == 0 {
				d.state = inDataCR
			}
			continue
		}
		if err := d.processByte(src[taken]); err != nil {
			return given, taken, err
		}
		taken++
		if d.state == inEnd {
			return given, taken, io.EOF
		}
	}
	return given, taken, nil
}

// processByte processes one byte that is not data.
func (d *chunkDecoder) processByte(b byte) error {
	switch d.state {
	case inDataCR:
		return d.expectByte(b, '\r', inDataLF)
	case inDataLF:
		return d.expectByte(b, '\n', inSize)
	case inEndLF:
		return d.expectByte(b, '\n', inEnd)
	case inTrailerStart, inTrailer:
		return d.trailerByte(b)
	}
	if d.line++; d.line > maxChunkLine {
		return malformed("chunk size line: must have at most %d bytes", maxChunkLine)
	}
	switch {
	case d.state == inSizeLF:
		if err := d.expectByte(b, '\n', inData); err != nil {
			return err
		}
		return d.startChunk()
	case b == '\r' && d.digits > 0:
		d.state = inSizeLF
	case b == '\r' || b == '\n':
		return malformed("chunk size line: no size or a bare LF")
	case d.state == inExtension:
	case d.state == inSize && b == ';' && d.digits > 0:
		d.state = inExtension
	case (b == ' ' || b == '\t') && d.digits > 0:
		d.state = inPadding
	case d.state == inSize:
		return d.sizeDigit(b)
	default:
		return malformed("chunk size line: must end after the size, got %q", b)
	}
	return nil
}

// expectByte returns an error unless the next byte is the expected one.
func (d *chunkDecoder) expectByte(b, wanted byte, next chunkState) error {
	if b != wanted {
		return malformed("chunk: expected %q, got %q", wanted, b)
	}
	d.state = next
	return nil
}

// sizeDigit adds one hexadecimal digit to the chunk's size.
func (d *chunkDecoder) sizeDigit(b byte) error {
	var v int64
	switch {
	case '0' <= b && b <= '9':
		v = int64(b - '0')
	case 'a' <= b && b <= 'f':
		v = int64(b-'a') + 10
	case 'A' <= b && b <= 'F':
		v = int64(b-'A') + 10
	default:
		return malformed("chunk size: must be hexadecimal, got %q", b)
	}
	if d.digits++; d.digits > 16 || d.remaining > math.MaxInt64>>4 {
		return malformed("chunk size: too large")
	}
	d.remaining = d.remaining<<4 | v
	return nil
}

// startChunk starts a chunk after its size line.
func (d *chunkDecoder) startChunk() error {
	d.overhead = max(0, d.overhead+int64(d.line)-16-2*min(d.remaining, math.MaxInt64/4))
	if d.overhead > maxOverhead {
		return malformed("chunks: chunk headers are larger than the content")
	}
	if d.remaining == 0 {
		d.state = inTrailerStart
	}
	d.digits, d.line = 0, 0
	return nil
}

// trailerByte processes one byte after the last chunk.
func (d *chunkDecoder) trailerByte(b byte) error {
	if d.state == inTrailerStart {
		if b == '\r' {
			d.state = inEndLF
			return nil
		}
		d.state = inTrailer
	}
	if len(d.trailer) == maxTrailer {
		return malformed("trailers: must have at most %d bytes", maxTrailer)
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

// addTrailers adds the received trailers to resp.
func (d *chunkDecoder) addTrailers(resp *http.Response) error {
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
