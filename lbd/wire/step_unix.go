//go:build unix

package wire

import (
	"errors"
	"io"
	"os"
	"syscall"
)

// stepWhenReady goes on with an exchange as far as the socket lets it, and says
// whether the exchange is over. At its first call it makes sure that nothing has
// come, the end included, that nobody asked for. What comes from then on wakes it
// up again.
func (p *Poller) stepWhenReady(fd uintptr) (over bool) {
	if !p.sent {
		p.sent = true
		if _, err := readNow(fd, p.reply.one[:]); !errors.Is(err, errNothing) {
			p.fail = errStale
			return true
		}
		p.fail = writeNow(fd, p.request)
		return p.fail != nil
	}
	for {
		n, err := readNow(fd, p.reply.room())
		if errors.Is(err, errNothing) {
			p.reply.letGo()
			return false
		}
		if p.took(n, err) {
			return true
		}
	}
}

// writeNow writes all of p, which a socket that has nothing to send takes.
func writeNow(fd uintptr, p []byte) error {
	for {
		n, err := syscall.Write(int(fd), p)
		switch {
		case errors.Is(err, syscall.EINTR):
		case err != nil:
			return os.NewSyscallError("write", err)
		case n < len(p):
			return io.ErrShortWrite
		default:
			return nil
		}
	}
}
