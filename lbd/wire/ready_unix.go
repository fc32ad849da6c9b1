//go:build unix

package wire

import (
	"errors"
	"io"
	"net"
	"os"
	"syscall"
)

// errNothing says that nothing has arrived.
var errNothing = errors.New("nothing has arrived")

// rawOf gives access to a socket's readiness, nil where nc is none. A type that
// wraps a socket may give its reads a meaning of their own, so only the plain
// ones count.
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

// lookOnce asks for a byte without waiting: c.fail tells what came of it.
func (c *connReader) lookOnce(fd uintptr) bool {
	var one [1]byte
	c.got, c.fail = readNow(fd, one[:])
	return true
}

// pullWhenReady reads into the buffer once something has arrived; until then it
// reports false and leaves no empty buffer behind.
func (c *connReader) pullWhenReady(fd uintptr) bool {
	c.hold()
	c.got, c.fail = readNow(fd, c.buf.b[c.w:])
	if !errors.Is(c.fail, errNothing) {
		if c.fail != nil && !errors.Is(c.fail, io.EOF) {
			c.fail = &net.OpError{Op: "read", Net: c.nc.LocalAddr().Network(), Source: c.nc.LocalAddr(), Addr: c.nc.RemoteAddr(), Err: c.fail}
		}
		return true
	}
	if c.w == 0 {
		c.release()
	}
	return false
}

// readNow reads what is there: errNothing when there is nothing, io.EOF at the
// end.
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

// writeNow writes what there is room for, which may be none of it.
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
