//go:build !unix

package wire

import (
	"errors"
	"net"
	"syscall"
)

// errNothing says that nothing has arrived.
var errNothing = errors.New("nothing has arrived")

// rawOf is for systems where a socket's readiness cannot be asked for: idle
// connections are not checked and a wait holds its buffer.
func rawOf(net.Conn) syscall.RawConn { return nil }

func (c *connReader) lookOnce(uintptr) bool      { return true }
func (c *connReader) pullWhenReady(uintptr) bool { return true }

// writeNow is never called: a FastPath hands all its connections off here.
func writeNow(uintptr, []byte) (int, error) { return 0, errNothing }
