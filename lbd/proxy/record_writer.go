package proxy

import (
	"encoding/json"
	"io"
	"log/slog"
	"time"
)

// Limits of a recordWriter.
const (
	recordWriteSize     = 64 << 10    // size of the buffer at which it is written although more lines are queued
	maxRecordBuffer     = 1 << 20     // maximum size of the buffer while writes to the file fail
	recordRetryInterval = time.Second // between attempts to write to the file
)

// recordWriter writes lines of JSON to a file whose disk may be full for a while. It writes unwritten
// data later, from the exact byte on, so that no line is split by another. It rejects lines that
// exceed its memory.
type recordWriter struct {
	out         io.Writer
	log         *slog.Logger
	maxBuffer   int // maximum size of buf
	buf         []byte
	lastErr     error // error of the last attempt; nil if it succeeded
	lastAttempt time.Time
}

func newRecordWriter(to io.Writer, log *slog.Logger) *recordWriter {
	return &recordWriter{out: to, log: log, maxBuffer: maxRecordBuffer}
}

// addLine adds a line. It returns false if there is no space.
func (w *recordWriter) addLine(line any) bool {
	data, err := json.Marshal(line)
	if err != nil { // events and actions can always be encoded
		w.recordResult(err)
		return false
	}
	if len(w.buf)+len(data)+1 > w.maxBuffer {
		w.flush(false)
	}
	if len(w.buf)+len(data)+1 > w.maxBuffer {
		return false
	}
	w.buf = append(append(w.buf, data...), '\n')
	if len(w.buf) >= recordWriteSize {
		w.flush(false)
	}
	return true
}

// flush writes the buffer. After a failure it retries when recordRetryInterval has passed, or immediately if
// now is set.
func (w *recordWriter) flush(now bool) {
	if len(w.buf) == 0 || w.lastErr != nil && !now && time.Since(w.lastAttempt) < recordRetryInterval {
		return
	}
	n, err := w.out.Write(w.buf)
	w.buf = append(w.buf[:0], w.buf[n:]...)
	w.recordResult(err)
}

// recordResult stores the result of an attempt, and logs when it changes.
func (w *recordWriter) recordResult(err error) {
	switch {
	case err != nil && w.lastErr == nil:
		w.log.Error("writing the --record file failed, retrying", "err", err)
	case err == nil && w.lastErr != nil:
		w.log.Info("writing the --record file succeeded again")
	}
	w.lastErr, w.lastAttempt = err, time.Now()
}
