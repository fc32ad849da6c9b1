//go:build !unix

package wire

import (
	"errors"
	"net"
	"syscall"
)

// errNothing means that nothing has arrived.
var errNothing = errors.New("nothing has arrived")

// rawOf returns nil on systems where a socket's readiness cannot be checked. Idle connections are not
// checked and a waiting read keeps its buffer.
func rawOf(net.Conn) syscall.RawConn { return nil }

func (c *connReader) peekOnce(uintptr) bool      { return true }
func (c *connReader) readWhenReady(uintptr) bool { return true }

// writeNow is never called: on these systems a FastPath hands off all its connections.
func writeNow(uintptr, []byte) (int, error) { return 0, errNothing }
