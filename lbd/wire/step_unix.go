//go:build unix

package wire

import (
	"errors"
	"io"
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
		n, err := writeNow(fd, p.request)
		if err == nil && n < len(p.request) {
			err = io.ErrShortWrite // a socket that has nothing else to send takes it
		}
		p.fail = err
		return err != nil
	}
	for {
		n, err := readNow(fd, p.reply.room())
		if errors.Is(err, errNothing) {
			p.reply.releaseIfEmpty()
			return false
		}
		if p.took(n, err) {
			return true
		}
	}
}
