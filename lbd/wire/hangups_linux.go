package wire

import (
	"errors"
	"fmt"
	"sync"
	"syscall"
)

// rdhup is EPOLLRDHUP: the other end has shut down its writing.
const rdhup = 0x2000

// hangups watches many sockets for the end that their clients make of them, with
// one goroutine and one system call for each end: data that arrives wakes nobody.
type hangups struct {
	poll int
	wake int // closing it ends run
	end  int // its other end, under id 0

	mu   sync.Mutex
	by   map[uint64]*session
	last uint64
	gone bool
}

// watchHangups makes a watch over nothing.
func watchHangups() (*hangups, error) {
	poll, err := syscall.EpollCreate1(syscall.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("watching clients: epoll_create1: %w", err)
	}
	var pipe [2]int
	if err := syscall.Pipe2(pipe[:], syscall.O_CLOEXEC|syscall.O_NONBLOCK); err != nil {
		shut(poll)
		return nil, fmt.Errorf("watching clients: pipe2: %w", err)
	}
	h := &hangups{poll: poll, end: pipe[0], wake: pipe[1], by: map[uint64]*session{}}
	ev := syscall.EpollEvent{Events: rdhup | syscall.EPOLLHUP}
	if err := syscall.EpollCtl(poll, syscall.EPOLL_CTL_ADD, h.end, &ev); err != nil {
		h.close()
		h.release()
		return nil, fmt.Errorf("watching clients: epoll_ctl: %w", err)
	}
	return h, nil
}

// add watches a session's socket until it is closed or removed.
func (h *hangups) add(s *session) error {
	h.mu.Lock()
	h.last++
	s.id = h.last
	h.by[s.id] = s
	h.mu.Unlock()
	ev := syscall.EpollEvent{Events: rdhup | 1<<31, Fd: int32(uint32(s.id)), Pad: int32(uint32(s.id >> 32))} // 1<<31 = EPOLLET
	if err := h.control(s, syscall.EPOLL_CTL_ADD, &ev); err != nil {
		h.drop(s)
		return err
	}
	return nil
}

// remove ends the watch over a session whose socket stays open.
func (h *hangups) remove(s *session) {
	_ = h.control(s, syscall.EPOLL_CTL_DEL, nil) // a socket that is closed is watched no more
	h.drop(s)
}

// drop forgets a session whose socket is closed.
func (h *hangups) drop(s *session) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.by, s.id)
}

func (h *hangups) control(s *session, op int, ev *syscall.EpollEvent) error {
	var failed error
	err := s.in.raw.Control(func(fd uintptr) { failed = syscall.EpollCtl(h.poll, op, int(fd), ev) })
	return errors.Join(err, failed)
}

// run tells sessions of their clients' ends until close.
func (h *hangups) run() {
	defer h.release()
	events := make([]syscall.EpollEvent, 128)
	for {
		n, err := syscall.EpollWait(h.poll, events, -1)
		if err != nil && !errors.Is(err, syscall.EINTR) {
			return
		}
		for _, ev := range events[:max(n, 0)] {
			id := uint64(uint32(ev.Fd)) | uint64(uint32(ev.Pad))<<32
			if id == 0 {
				return
			}
			h.mu.Lock()
			s := h.by[id]
			h.mu.Unlock()
			if s != nil {
				s.hungUp()
			}
		}
	}
}

// close ends run.
func (h *hangups) close() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.gone {
		h.gone = true
		shut(h.wake)
	}
}

// release gives the descriptors back.
func (h *hangups) release() {
	shut(h.poll)
	shut(h.end)
}

// shut closes a descriptor. What it may fail with says nothing of what was done by it.
func shut(fd int) { _ = syscall.Close(fd) }
