package proxy

import (
	"encoding/json"
	"io"
	"log/slog"
	"time"
)

// Bounds of a recordWriter.
const (
	recordChunk = 64 << 10    // written at once while lines keep coming
	recordHeld  = 1 << 20     // kept in memory while the file takes nothing
	recordRetry = time.Second // between attempts at a file that takes nothing
)

// recordWriter writes lines of JSON to a file that may be full for a while. What it could
// not write it writes later, from the very byte on, so that no line is ever torn by
// another; what exceeds its memory it refuses.
type recordWriter struct {
	to     io.Writer
	log    *slog.Logger
	held   int // the most that buf may hold
	buf    []byte
	failed error // why the last attempt failed; nil when it did not
	tried  time.Time
}

func newRecordWriter(to io.Writer, log *slog.Logger) *recordWriter {
	return &recordWriter{to: to, log: log, held: recordHeld}
}

// add takes a line; false where there is no room for it.
func (w *recordWriter) add(line any) bool {
	data, err := json.Marshal(line)
	if err != nil { // events and actions always can be
		w.note(err)
		return false
	}
	if len(w.buf)+len(data)+1 > w.held {
		w.flush(false)
	}
	if len(w.buf)+len(data)+1 > w.held {
		return false
	}
	w.buf = append(append(w.buf, data...), '\n')
	if len(w.buf) >= recordChunk {
		w.flush(false)
	}
	return true
}

// flush writes what is held. After a failure it tries again when recordRetry has passed, or
// at once where now says so.
func (w *recordWriter) flush(now bool) {
	if len(w.buf) == 0 || w.failed != nil && !now && time.Since(w.tried) < recordRetry {
		return
	}
	n, err := w.to.Write(w.buf)
	w.buf = append(w.buf[:0], w.buf[n:]...)
	w.note(err)
}

// note keeps how an attempt ended, and logs when that changes.
func (w *recordWriter) note(err error) {
	switch {
	case err != nil && w.failed == nil:
		w.log.Error("the record cannot be written, trying on", "err", err)
	case err == nil && w.failed != nil:
		w.log.Info("the record is written again")
	}
	w.failed, w.tried = err, time.Now()
}
