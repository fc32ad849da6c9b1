package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// scriptedLog is a kernel log to which a test appends. At its end it returns io.EOF, like a file.
type scriptedLog struct {
	mu    sync.Mutex
	text  string
	read  int
	fails error // of the next read
}

func (l *scriptedLog) append(text string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.text += text
}

func (l *scriptedLog) Read(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.fails; err != nil {
		l.fails = nil
		return 0, err
	}
	if l.read == len(l.text) {
		return 0, io.EOF
	}
	n := copy(p, l.text[l.read:])
	l.read += n
	return n, nil
}

func (l *scriptedLog) Close() error { return nil }

// watched returns an agent that watches scripted GPUs until the test ends, and its log.
func watched(t *testing.T, w GPUWatch) (*Agent, *strings.Builder) {
	var out strings.Builder
	a := &Agent{opts: Options{Now: time.Now, GPUs: &w}, log: slog.New(slog.NewTextHandler(&out, nil)), desired: Deployment{Units: []Unit{{Name: "engine", GPUs: true}}}}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		a.watchGPUs(ctx)
	}()
	t.Cleanup(func() { cancel(); <-done })
	return a, &out
}

// settle lets the agent read what was appended.
func settle() {
	time.Sleep(3 * gpuInterval)
	synctest.Wait()
}

// The first fatal error drains the machine; a burst of lines is logged once for each code.
func TestFatalGPUErrorDrains(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := &scriptedLog{}
		a, out := watched(t, GPUWatch{Log: func() (io.ReadCloser, error) { return log, nil }})
		log.append("6,1,1,-;Linux version 6.8\nNVRM: Xid (PCI:0000:01:00): 31, pid=1, MMU Fault\n")
		settle()
		if s := a.Status(); s.GPUError != "" || s.Phase == PhaseDraining {
			t.Errorf("after an error of the application: %+v", s)
		}
		log.append("3,2,2,-;NVRM: Xid (PCI:0000:65:00): 79, GPU has fal")
		settle()
		log.append("len off the bus.\n")
		for range 10_000 {
			log.append("3,2,2,-;NVRM: Xid (PCI:0000:65:00): 79, GPU has fallen off the bus.\n")
		}
		for code := range 500 {
			log.append(fmt.Sprintf("3,2,2,-;NVRM: Xid (PCI:0000:66:00): %d, x\n", code))
		}
		log.append(strings.Repeat("y", 3*kernelRecord) + "\n")
		settle()
		s := a.Status()
		if s.GPUError != "Xid 79 on 0000:65:00: GPU has fallen off the bus" || s.Phase != PhaseDraining || s.Reason != "fatal GPU error: "+s.GPUError {
			t.Errorf("status %+v", s)
		}
		if n := strings.Count(out.String(), "\n"); n > maxLoggedXids+1 {
			t.Errorf("%d lines were logged, want at most one for each code, and the drain", n)
		}
	})
}

// A log that cannot be read is read again later, and reported once.
func TestKernelLogIsReopened(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := &scriptedLog{fails: errors.New("input/output error")}
		var denied atomic.Bool
		denied.Store(true)
		a, out := watched(t, GPUWatch{Log: func() (io.ReadCloser, error) {
			if denied.Load() {
				return nil, errors.New("permission denied")
			}
			return log, nil
		}})
		settle()
		if n := strings.Count(out.String(), "permission denied"); n != 1 {
			t.Errorf("logged %d times: %s", n, out)
		}
		denied.Store(false)
		log.append("NVRM: Xid (PCI:0000:01:00): 95, Uncontained\n")
		settle()
		if s := a.Status(); !strings.HasPrefix(s.GPUError, "Xid 95") {
			t.Errorf("status %+v\n%s", s, out)
		}
	})
}

// The number of GPUs is reported once two counts in a row are equal, and unknown without a driver.
func TestGPUsAreCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		counts, at := []int{-1, -1, 3, 8, 8, 8}, 0
		a, _ := watched(t, GPUWatch{Log: func() (io.ReadCloser, error) { return &scriptedLog{}, nil }, Count: func() (int, bool) {
			n := counts[min(at, len(counts)-1)]
			at++
			return n, n >= 0
		}})
		for i, want := range []int{-1, -1, -1, -1, 8, 8} {
			synctest.Wait()
			got := -1
			if n := a.Status().GPUs; n != nil {
				got = *n
			}
			if got != want {
				t.Errorf("after count %d: %d GPUs, want %d", i, got, want)
			}
			time.Sleep(gpuInterval)
		}
	})
}

// Machines without GPUs do not read the kernel's log.
func TestGPUsAreWatchedWhereUsed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		opened := 0
		w := GPUWatch{Log: func() (io.ReadCloser, error) { opened++; return &scriptedLog{}, nil }}
		a := &Agent{opts: Options{Now: time.Now, GPUs: &w}, log: slog.New(slog.DiscardHandler)}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); a.watchGPUs(ctx) }()
		settle()
		if opened != 0 {
			t.Error("the log was opened without a unit that uses GPUs")
		}
		a.mu.Lock()
		a.desired = Deployment{Units: []Unit{{Name: "engine", GPUs: true}}}
		a.mu.Unlock()
		settle()
		if opened == 0 {
			t.Error("the log was not opened")
		}
		cancel()
		<-done
	})
}
