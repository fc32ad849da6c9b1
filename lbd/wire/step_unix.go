//go:build unix

package wire

import (
	"errors"
	"io"
)

// stepWhenReady continues an exchange as far as the socket allows and reports whether the exchange is
// complete. Its first call checks that no bytes have arrived before the request was sent, and that
// the connection is still open. Later bytes wake it again.
func (p *Poller) stepWhenReady(fd uintptr) (done bool) {
	if !p.sent {
		p.sent = true
		if _, err := readNow(fd, p.reply.probeByte[:]); !errors.Is(err, errNothing) {
			p.exchangeErr = errStale
			return true
		}
		n, err := writeNow(fd, p.request)
		if err == nil && n < len(p.request) {
			err = io.ErrShortWrite // a socket with an empty send buffer accepts the whole request
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
