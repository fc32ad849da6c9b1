package wire

import (
	"context"
	"errors"
	"net"
	"sync"
)

// lateDials are the dials of a Transport that go on after the deadlines of their requests: see Options.LateDials.
type lateDials struct {
	mu   sync.Mutex
	stop map[context.Context]context.CancelFunc // by the context of the dial
}

// add adds a dial unless there are limit already.
func (l *lateDials) add(dialing context.Context, stop context.CancelFunc, limit int) (ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.stop) >= limit {
		return false
	}
	if l.stop == nil {
		l.stop = map[context.Context]context.CancelFunc{}
	}
	l.stop[dialing] = stop
	return true
}

func (l *lateDials) remove(dialing context.Context) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.stop, dialing)
}

// stopAll ends all late dials.
func (l *lateDials) stopAll() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, stop := range l.stop {
		stop()
	}
}

type dialResult struct {
	nc  net.Conn
	err error
}

// dialLate opens a connection to addr. If ctx reaches its deadline first, dialLate returns, and the connection becomes idle as
// soon as it is open.
func (t *Transport) dialLate(ctx context.Context, addr string) (net.Conn, error) {
	dialing, stop := context.WithTimeout(context.WithoutCancel(ctx), t.opts.DialTimeout+handshakeTimeout)
	done := make(chan dialResult, 1)
	go func() {
		nc, err := t.opts.DialContext(dialing, "tcp", addr)
		done <- dialResult{nc, err}
	}()
	select {
	case r := <-done:
		stop()
		return r.nc, r.err
	case <-ctx.Done():
	}
	if !errors.Is(ctx.Err(), context.DeadlineExceeded) || !t.late.add(dialing, stop, t.opts.LateDials) {
		stop()
	}
	go func() {
		r := <-done
		switch {
		case r.err != nil:
		case dialing.Err() != nil:
			r.nc.Close()
		default:
			t.idle.putConn(newConn(t, addr, r.nc))
		}
		t.late.remove(dialing)
		stop()
	}()
	return nil, context.Cause(ctx)
}
