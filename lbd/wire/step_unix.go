//go:build unix

package wire

import (
	"errors"
	"io"
)

// stepWhenReady continues an exchange as far as the socket allows and reports whether the exchange is
// complete. Its first call makes sure that nothing has arrived unrequested, including the end of the
// connection. Later bytes wake it again.
func (p *Poller) stepWhenReady(fd uintptr) (done bool) {
	if !p.sent {
		p.sent = true
		if _, err := readNow(fd, p.reply.probeByte[:]); !errors.Is(err, errNothing) {
			p.exchangeErr = errStale
			return true
		}
		n, err := writeNow(fd, p.request)
		if err == nil && n < len(p.request) {
			err = io.ErrShortWrite // a socket with nothing else to send accepts it
		}
		p.exchangeErr = err
		return err != nil
	}
	for {
		n, err := readNow(fd, p.reply.freeSpace())
		if errors.Is(err, errNothing) {
			p.reply.releaseIfEmpty()
			return false
		}
		if p.recordRead(n, err) {
			return true
		}
	}
}
