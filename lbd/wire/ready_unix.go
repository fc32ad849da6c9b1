//go:build unix

package wire

import (
	"errors"
	"io"
	"net"
	"os"
	"syscall"
)

// errNothing means that nothing has arrived.
var errNothing = errors.New("nothing has arrived")

// rawOf returns access to a socket's readiness, nil if nc is not a socket. A type that wraps a socket
// may change the bytes that its reads return, so only the plain types are supported.
func rawOf(nc net.Conn) syscall.RawConn {
	var socket syscall.Conn
	switch nc := nc.(type) {
	case *net.TCPConn:
		socket = nc
	case *net.UnixConn:
		socket = nc
	default:
		return nil
	}
	raw, err := socket.SyscallConn()
	if err != nil {
		return nil
	}
	return raw
}

// peekOnce tries to read a byte without waiting; c.readErr is the result.
func (c *connReader) peekOnce(fd uintptr) bool {
	var one [1]byte
	c.readBytes, c.readErr = readNow(fd, one[:])
	return true
}

// readWhenReady reads into the buffer once bytes have arrived. Until then it returns false and
// releases an empty buffer.
func (c *connReader) readWhenReady(fd uintptr) bool {
	c.acquireBuffer()
	c.readBytes, c.readErr = readNow(fd, c.buf.b[c.w:])
	if !errors.Is(c.readErr, errNothing) {
		if c.readErr != nil && !errors.Is(c.readErr, io.EOF) {
			c.readErr = &net.OpError{Op: "read", Net: c.nc.LocalAddr().Network(), Source: c.nc.LocalAddr(), Addr: c.nc.RemoteAddr(), Err: c.readErr}
		}
		return true
	}
	if c.w == 0 {
		c.release()
	}
	return false
}

// readNow reads the bytes that have arrived. It returns errNothing if there are none, and io.EOF at
// the end.
func readNow(fd uintptr, p []byte) (int, error) {
	for {
		n, err := syscall.Read(int(fd), p)
		switch {
		case n > 0:
			return n, nil
		case err == nil:
			return 0, io.EOF
		case errors.Is(err, syscall.EINTR):
		case errors.Is(err, syscall.EAGAIN):
			return 0, errNothing
		default:
			return 0, os.NewSyscallError("read", err)
		}
	}
}

// writeNow writes as much as the socket accepts, which may be nothing.
func writeNow(fd uintptr, p []byte) (int, error) {
	for {
		n, err := syscall.Write(int(fd), p)
		switch {
		case err == nil:
			return n, nil
		case errors.Is(err, syscall.EINTR):
		case errors.Is(err, syscall.EAGAIN):
			return 0, nil
		default:
			return 0, os.NewSyscallError("write", err)
		}
	}
}
