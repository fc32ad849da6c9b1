package admin

import (
	"context"
	"errors"
	"io"
	"net/http"
	"time"

	"skyserve/internal/telemetry"
)

// partTimeout is the timeout of one part of a backup: the store syncs a whole stream before it sends the first.
const partTimeout = time.Minute

// BackupStore backs up and restores the data in the store of a service.
type BackupStore interface {
	// WriteBackup writes a backup of a service's data.
	WriteBackup(ctx context.Context, w io.Writer, service, version string) (telemetry.Backup, error)
	// RestoreBackup replaces a service's data with a backup.
	RestoreBackup(ctx context.Context, r io.Reader, service string, force bool) (telemetry.Backup, error)
}

// errNoBackup is the error of a balancer without a store.
const errNoBackup = "this balancer has no store: set store_url in its configuration or --store, or run the service with 'skyserve up'"

// serveBackup responds with a backup of the store. After the first part, a failure closes the connection; clients
// detect a truncated backup by its missing end.
func (a *API) serveBackup(w http.ResponseWriter, r *http.Request) {
	if a.opts.Backup == nil {
		writeNoStore(w, errNoBackup)
		return
	}
	out := &backupWriter{w: w, ctl: http.NewResponseController(w)}
	if _, err := a.opts.Backup.WriteBackup(r.Context(), out, a.opts.Self.Service, a.opts.Version); err != nil {
		if out.begun {
			a.opts.Logger.Warn("a backup was not completed", "err", err)
			panic(http.ErrAbortHandler)
		}
		writeError(w, http.StatusServiceUnavailable, err.Error())
	}
}

// backupWriter is a response, with a new deadline for each part.
type backupWriter struct {
	w     http.ResponseWriter
	ctl   *http.ResponseController
	begun bool
}

func (b *backupWriter) Write(p []byte) (int, error) {
	_ = b.ctl.SetWriteDeadline(deadlineAfter(partTimeout))
	first := !b.begun
	if b.begun = true; first {
		b.w.Header().Set("Content-Type", "application/gzip")
		b.w.Header().Set("Cache-Control", "no-store")
	}
	n, err := b.w.Write(p)
	if err == nil && first { // the client waits for the response's header for seconds only
		err = b.ctl.Flush()
	}
	return n, err
}

// serveRestore replaces the data of the store with the backup in the request's body. It responds with 400 for a backup
// that cannot be restored, with 409 for one that would discard newer data, unless force is true, and with 423 while
// another restore runs.
func (a *API) serveRestore(w http.ResponseWriter, r *http.Request) {
	if a.opts.Backup == nil {
		writeNoStore(w, errNoBackup)
		return
	}
	ctl := http.NewResponseController(w)
	_ = ctl.SetWriteDeadline(time.Time{}) // set when the response is written
	in := &bodyReader{r: r.Body, ctl: ctl}
	b, err := a.opts.Backup.RestoreBackup(r.Context(), in, a.opts.Self.Service, r.URL.Query().Get("force") == "true")
	_ = ctl.SetWriteDeadline(deadlineAfter(writeTimeout))
	switch {
	case errors.As(err, new(*telemetry.NewerStoreError)):
		writeError(w, http.StatusConflict, err.Error())
	case errors.As(err, new(*telemetry.BackupError)):
		writeError(w, http.StatusBadRequest, err.Error())
	case errors.Is(err, telemetry.ErrRestoreRunning):
		writeError(w, http.StatusLocked, telemetry.ErrRestoreRunning.Error())
	case err != nil:
		writeError(w, http.StatusServiceUnavailable, err.Error())
	default:
		a.opts.Logger.Info("the store was restored from a backup", "made at", b.At, "by", b.Version, "messages", b.Messages)
		writeJSON(w, http.StatusOK, b)
	}
}

// bodyReader is a request's body, with a new deadline for each part.
type bodyReader struct {
	r   io.Reader
	ctl *http.ResponseController
}

func (b *bodyReader) Read(p []byte) (int, error) {
	_ = b.ctl.SetReadDeadline(deadlineAfter(partTimeout))
	return b.r.Read(p)
}
