package proxy

import (
	"encoding/binary"
	"math"
)

// socketFrames follows the frames of a WebSocket in one direction (RFC 6455, section 5.2) without reading
// their content. The zero value is the start of the connection.
type socketFrames struct {
	head      [14]byte // of the current frame
	n         int      // bytes of head that have arrived
	remaining uint64   // bytes of the frame after its head
	inContent bool     // the head is complete
	closed    bool     // a close frame has passed
}

// atBoundary reports whether the next byte begins a frame.
func (f *socketFrames) atBoundary() bool { return f.n == 0 }

// nextBoundary processes bytes up to the end of the current frame, or of the first one in b. It returns
// their number.
func (f *socketFrames) nextBoundary(b []byte) (n int) {
	for n < len(b) {
		if !f.inContent {
			f.head[f.n] = b[n]
			f.n++
			n++
			f.readHead()
		} else {
			step := min(f.remaining, uint64(len(b)-n))
			f.remaining -= step
			n += int(step)
		}
		if f.inContent && f.remaining == 0 {
			f.closed = f.closed || f.head[0]&0x0f == opClose
			f.n, f.inContent = 0, false
			return n
		}
	}
	return n
}

// pass processes all bytes.
func (f *socketFrames) pass(b []byte) {
	for len(b) > 0 {
		b = b[f.nextBoundary(b):]
	}
}

// readHead sets the length of the content once the head is complete.
func (f *socketFrames) readHead() {
	if f.n < 2 {
		return
	}
	length, size := uint64(f.head[1]&0x7f), 2
	switch length {
	case 126:
		size = 4
	case 127:
		size = 10
	}
	masked := f.head[1]&0x80 != 0
	total := size
	if masked {
		total += 4
	}
	if f.n < total {
		return
	}
	switch size {
	case 4:
		length = uint64(binary.BigEndian.Uint16(f.head[2:4]))
	case 10:
		length = min(binary.BigEndian.Uint64(f.head[2:10]), math.MaxInt64)
	}
	f.remaining, f.inContent = length, true
}

const opClose = 8 // opcode of a close frame

// Status codes of close frames (RFC 6455, section 7.4, and its registry).
const (
	closeIdle    = 1001 // the connection was idle
	closeFailed  = 1011 // the replica failed
	closeRestart = 1012 // the balancer shuts down
)

// closeFrame returns a close frame of a server, with a reason of at most 123 bytes.
func closeFrame(code uint16, reason string) []byte {
	frame := []byte{0x80 | opClose, byte(2 + len(reason)), byte(code >> 8), byte(code)}
	return append(frame, reason...)
}
