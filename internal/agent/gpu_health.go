package agent

import (
	"bufio"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"time"

	"skyserve/internal/telemetry"
)

const (
	// kernelLog is the kernel's log since boot. Only root may read it, as the agent does.
	kernelLog = "/dev/kmsg"
	// nvidiaGPUs is the driver's folder with an entry for each GPU that it sees.
	nvidiaGPUs = "/proc/driver/nvidia/gpus"
	// gpuInterval is the interval at which GPUs are counted and the end of a log file is read again; the
	// kernel's own log is read at once.
	gpuInterval = 2 * time.Second
	// kernelRecord is the size of the largest record of the kernel's log in bytes, which must fit the buffer
	// of a read (CONSOLE_EXT_LOG_MAX of Linux).
	kernelRecord = 8 << 10
	// maxLoggedXids is the maximum number of different errors that are logged: a failing GPU repeats its
	// messages for as long as it is used.
	maxLoggedXids = 50
)

// GPUWatch is how an agent watches the GPUs of its machine.
type GPUWatch struct {
	// Log opens the kernel's log, from its start.
	Log func() (io.ReadCloser, error)
	// Count returns the number of GPUs that the driver sees; false while it is not loaded. nil = unknown.
	Count func() (n int, known bool)
	// Stats returns the figures of the GPUs; none if they are unknown. nil = unknown.
	Stats func(ctx context.Context) ([]telemetry.GPUFigures, error)
	// Simulated watches also while no unit uses GPUs: the machine simulates them.
	Simulated bool
}

// systemGPUs watches the GPUs of a machine in a cloud.
func systemGPUs() *GPUWatch {
	return &GPUWatch{
		Log: func() (io.ReadCloser, error) { return os.Open(kernelLog) },
		Count: func() (int, bool) {
			entries, err := os.ReadDir(nvidiaGPUs)
			return len(entries), err == nil
		},
		Stats: func(ctx context.Context) ([]telemetry.GPUFigures, error) { return gpuStats(ctx, nvidiaSMI[0]) },
	}
}

// fileGPUs watches simulated GPUs: it reads a file in place of the kernel's log, to which a person writes lines to
// simulate errors, and runs the program nvidia-smi in the folder of that file, if there is one.
func fileGPUs(path string) *GPUWatch {
	program := filepath.Join(filepath.Dir(path), nvidiaSMI[0])
	return &GPUWatch{
		Log:       func() (io.ReadCloser, error) { return os.Open(path) },
		Stats:     func(ctx context.Context) ([]telemetry.GPUFigures, error) { return gpuStats(ctx, program) },
		Simulated: true,
	}
}

// watchGPUs watches the GPUs, once a unit uses them, until ctx ends.
func (a *Agent) watchGPUs(ctx context.Context) {
	a.repeat(ctx, gpuInterval, func() (done bool) { return a.opts.GPUs.Simulated || a.usesGPUs() })
	if ctx.Err() != nil {
		return
	}
	var watching sync.WaitGroup
	watching.Go(func() { a.watchKernelLog(ctx) })
	if a.opts.GPUs.Stats != nil {
		watching.Go(func() { a.readGPUStats(ctx) })
	}
	if a.opts.GPUs.Count != nil {
		a.countGPUs(ctx)
	}
	watching.Wait()
}

// usesGPUs reports whether a unit of the deployment uses GPUs.
func (a *Agent) usesGPUs() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.ContainsFunc(a.desired.Units, func(u Unit) bool { return u.GPUs })
}

// countGPUs counts the GPUs until ctx ends. A count is reported once two in a row are equal: while the
// driver loads, it sees some of them.
func (a *Agent) countGPUs(ctx context.Context) {
	last := -1
	a.repeat(ctx, gpuInterval, func() (done bool) {
		n, known := a.opts.GPUs.Count()
		if !known {
			n = -1
		}
		if n == last {
			a.mu.Lock()
			if a.gpus = nil; known {
				a.gpus = &n
			}
			a.mu.Unlock()
		}
		last = n
		return false
	})
}

// watchKernelLog reads the kernel's log until ctx ends, and drains the machine at the first fatal error of
// a GPU. A log that cannot be read is logged once and opened again.
func (a *Agent) watchKernelLog(ctx context.Context) {
	logged, lastError := map[int]bool{}, ""
	a.repeat(ctx, gpuInterval, func() (done bool) {
		err := a.readKernelLog(ctx, logged)
		if ctx.Err() != nil || err == nil || errors.Is(err, fs.ErrNotExist) {
			return ctx.Err() != nil
		}
		if text := err.Error(); text != lastError {
			a.log.Warn("reading the kernel's log failed; errors of GPUs are not detected until it can be read", "err", err)
			lastError = text
		}
		return false
	})
}

// readKernelLog reads the kernel's log until it fails or ctx ends. At the end of a file it waits for more.
func (a *Agent) readKernelLog(ctx context.Context, logged map[int]bool) error {
	file, err := a.opts.GPUs.Log()
	if err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { _ = file.Close() }) // ends a read that waits
	defer func() {
		if stop() {
			_ = file.Close()
		}
	}()
	lines, begun := bufio.NewReaderSize(file, kernelRecord), ""
	for ctx.Err() == nil {
		line, err := readLine(lines)
		if begun += line; err == nil || len(begun) > kernelRecord {
			a.recordXid(begun, logged)
			begun = ""
		}
		switch {
		case err == nil, errors.Is(err, syscall.EPIPE): // the kernel overwrote records before they were read
		case errors.Is(err, io.EOF):
			if !pause(ctx, gpuInterval) {
				return nil
			}
		default:
			return err
		}
	}
	return nil
}

// readLine reads a line. It returns the start of a line that is longer than the buffer, and skips the rest.
func readLine(r *bufio.Reader) (string, error) {
	text, err := r.ReadSlice('\n')
	line := string(text)
	for errors.Is(err, bufio.ErrBufferFull) {
		_, err = r.ReadSlice('\n')
	}
	return line, err
}

// pause waits; it returns false when ctx ended first.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

// recordXid records the error in a line of the kernel's log, if it contains one. It logs each code once.
func (a *Agent) recordXid(line string, logged map[int]bool) {
	x, ok := parseXid(line)
	if !ok {
		return
	}
	if !logged[x.code] && len(logged) < maxLoggedXids {
		logged[x.code] = true
		a.log.Warn("the driver reports an error of a GPU", "error", x.String(), "fatal", x.isFatal())
	}
	if !x.isFatal() {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.gpuError != "" {
		return
	}
	a.gpuError = x.String()
	if a.draining == "" {
		a.setDraining("fatal GPU error: " + a.gpuError)
	}
	a.log.Error("drain started: a GPU of this machine has failed", "error", a.gpuError)
}
