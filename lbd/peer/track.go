package peer

import (
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"time"
)

// errHalfClosed ends a track if only this direction is closed.
var errHalfClosed = errors.New("closed for writing")

// isTrackError reports whether an error comes from the track and not from the connection.
func isTrackError(err error) bool {
	return err != nil && !errors.Is(err, io.EOF) && (errors.Is(err, net.ErrClosed) || errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, errHalfClosed))
}

// track is one direction of a delayed connection: bytes are delivered in order, a fixed time after
// they were written. The user of the connection, with deadlines and Close, is at one end, and a
// goroutine at the other.
type track struct {
	delay time.Duration

	mu       sync.Mutex
	pieces   []piece // in transit, oldest first
	bytes    int     // in pieces
	endErr   error   // returned after all pieces; nil while the track is open
	endAt    time.Time
	closed   bool
	deadline time.Time
	changed  chan struct{} // closed and replaced at every change
}

type piece struct {
	at   time.Time // when it is delivered
	data []byte
}

func newTrack(delay time.Duration) *track {
	return &track{delay: delay, changed: make(chan struct{})}
}

// notify wakes all waiting goroutines; l.mu must be held.
func (l *track) notify() {
	close(l.changed)
	l.changed = make(chan struct{})
}

// wait releases l.mu until a change or the given time; the zero time means no timeout.
func (l *track) wait(until time.Time) {
	changed := l.changed
	l.mu.Unlock()
	defer l.mu.Lock()
	if until.IsZero() {
		<-changed
		return
	}
	timer := time.NewTimer(time.Until(until))
	defer timer.Stop()
	select {
	case <-changed:
	case <-timer.C:
	}
}

// deadlinePassed reports whether the user's deadline has passed.
func (l *track) deadlinePassed() bool { return !l.deadline.IsZero() && !time.Now().Before(l.deadline) }

// write sends a copy of b along the track and blocks while trackBytes are in transit.
func (l *track) write(b []byte, user bool) (n int, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for {
		switch {
		case l.closed:
			return n, net.ErrClosed
		case l.endErr != nil:
			return n, l.endErr
		case user && l.deadlinePassed():
			return n, os.ErrDeadlineExceeded
		case len(b) == 0:
			return n, nil
		case l.bytes < trackBytes:
			size := min(len(b), pieceBytes)
			l.pieces = append(l.pieces, piece{at: time.Now().Add(l.delay), data: append([]byte(nil), b[:size]...)})
			l.bytes += size
			n, b = n+size, b[size:]
			l.notify()
		case user:
			l.wait(l.deadline)
		default:
			l.wait(time.Time{})
		}
	}
}

// read fills b with delivered bytes and blocks until there is at least one. After the last byte it
// returns the error passed to finish.
func (l *track) read(b []byte, user bool) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for {
		if user && l.closed {
			return 0, net.ErrClosed
		}
		if user && l.deadlinePassed() {
			return 0, os.ErrDeadlineExceeded
		}
		if user && len(b) == 0 {
			return 0, nil
		}
		next := l.nextAt()
		if !next.IsZero() && !time.Now().Before(next) {
			if len(l.pieces) == 0 {
				return 0, l.endErr
			}
			return l.readReady(b), nil
		}
		if user && !l.deadline.IsZero() && (next.IsZero() || l.deadline.Before(next)) {
			next = l.deadline
		}
		l.wait(next)
	}
}

// nextAt returns the delivery time of the next piece, or of the end; zero if neither is in transit.
func (l *track) nextAt() time.Time {
	if len(l.pieces) > 0 {
		return l.pieces[0].at
	}
	if l.endErr != nil {
		return l.endAt
	}
	return time.Time{}
}

// readReady moves delivered bytes into b, as many as fit.
func (l *track) readReady(b []byte) (n int) {
	now := time.Now()
	done := 0
	for done < len(l.pieces) && n < len(b) && !now.Before(l.pieces[done].at) {
		p := &l.pieces[done]
		c := copy(b[n:], p.data)
		n += c
		p.data = p.data[c:]
		if len(p.data) > 0 {
			break
		}
		*p = piece{}
		done++
	}
	l.pieces = l.pieces[done:]
	if len(l.pieces) == 0 {
		l.pieces = nil
	}
	l.bytes -= n
	l.notify()
	return n
}

// finish ends the track with err, which is delivered after everything in transit.
func (l *track) finish(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.endErr == nil {
		l.endErr, l.endAt = err, time.Now().Add(l.delay)
		l.notify()
	}
}

// fail ends the track with err and drops everything in transit.
func (l *track) fail(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.pieces, l.bytes = nil, 0
	l.endErr, l.endAt = err, time.Now()
	l.notify()
}

// closeUser closes the user's end; it returns false if it was already closed.
func (l *track) closeUser() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return false
	}
	l.closed = true
	l.notify()
	return true
}

func (l *track) setDeadline(t time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.deadline = t
	l.notify()
}
