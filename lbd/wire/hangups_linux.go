package wire

import (
	"errors"
	"fmt"
	"sync"
	"syscall"
)

// rdhup is EPOLLRDHUP: the peer has shut down its write side.
const rdhup = 0x2000

// hangupWatcher detects hang-ups of clients on many sockets, with one goroutine and one system call per
// hang-up. Arriving data does not wake it.
type hangupWatcher struct {
	poll      int
	wakeWrite int // closing it stops run
	wakeRead  int // the read end of the pipe, under id 0

	mu       sync.Mutex
	sessions map[uint64]*session
	lastID   uint64
	closed   bool
}

// watchHangups returns a watcher without sockets.
func watchHangups() (*hangupWatcher, error) {
	poll, err := syscall.EpollCreate1(syscall.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("watching clients: epoll_create1: %w", err)
	}
	var pipe [2]int
	if err := syscall.Pipe2(pipe[:], syscall.O_CLOEXEC|syscall.O_NONBLOCK); err != nil {
		closeFD(poll)
		return nil, fmt.Errorf("watching clients: pipe2: %w", err)
	}
	h := &hangupWatcher{poll: poll, wakeRead: pipe[0], wakeWrite: pipe[1], sessions: map[uint64]*session{}}
	ev := syscall.EpollEvent{Events: rdhup | syscall.EPOLLHUP}
	if err := syscall.EpollCtl(poll, syscall.EPOLL_CTL_ADD, h.wakeRead, &ev); err != nil {
		h.close()
		h.release()
		return nil, fmt.Errorf("watching clients: epoll_ctl: %w", err)
	}
	return h, nil
}

// watch watches a session's socket until it is closed or removed.
func (h *hangupWatcher) watch(s *session) error {
	h.mu.Lock()
	h.lastID++
	s.id = h.lastID
	h.sessions[s.id] = s
	h.mu.Unlock()
	ev := syscall.EpollEvent{Events: rdhup | 1<<31, Fd: int32(uint32(s.id)), Pad: int32(uint32(s.id >> 32))} // 1<<31 = EPOLLET
	if err := h.control(s, syscall.EPOLL_CTL_ADD, &ev); err != nil {
		h.forget(s)
		return err
	}
	return nil
}

// unwatch stops watching a session whose socket remains open.
func (h *hangupWatcher) unwatch(s *session) {
	_ = h.control(s, syscall.EPOLL_CTL_DEL, nil) // epoll has already dropped a closed socket
	h.forget(s)
}

// forget removes a session whose socket is closed.
func (h *hangupWatcher) forget(s *session) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.sessions, s.id)
}

func (h *hangupWatcher) control(s *session, op int, ev *syscall.EpollEvent) error {
	var failed error
	err := s.in.raw.Control(func(fd uintptr) { failed = syscall.EpollCtl(h.poll, op, int(fd), ev) })
	return errors.Join(err, failed)
}

// run reports hang-ups to the sessions until close.
func (h *hangupWatcher) run() {
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
			s := h.sessions[id]
			h.mu.Unlock()
			if s != nil {
				s.hungUp()
			}
		}
	}
}

// close stops run.
func (h *hangupWatcher) close() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.closed {
		h.closed = true
		closeFD(h.wakeWrite)
	}
}

// release closes the descriptors.
func (h *hangupWatcher) release() {
	closeFD(h.poll)
	closeFD(h.wakeRead)
}

// closeFD closes a descriptor. Its error is not relevant to callers.
func closeFD(fd int) { _ = syscall.Close(fd) }
