package admin

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"skyserve/internal/telemetry"
)

var errUnavailable = errors.New("store unavailable")

// fakeBackup is a store of the service chat with a backup that fails after a number of bytes.
type fakeBackup struct {
	written  string
	err      error
	restored string
	forced   bool
}

func (f *fakeBackup) WriteBackup(_ context.Context, w io.Writer, service, _ string) (telemetry.Backup, error) {
	if f.written != "" {
		_, _ = io.WriteString(w, f.written)
	}
	return telemetry.Backup{Service: service}, f.err
}

func (f *fakeBackup) RestoreBackup(_ context.Context, r io.Reader, service string, force bool) (telemetry.Backup, error) {
	data, err := io.ReadAll(r)
	f.restored, f.forced = string(data), force
	return telemetry.Backup{Service: service, Streams: []string{}, Messages: 3}, errors.Join(err, f.err)
}

// A client of a failing store receives an error or a broken connection, and never a short backup as a whole one.
func TestBackupResponses(t *testing.T) {
	newer := &telemetry.NewerStoreError{Backup: time.Unix(1, 0), Newest: time.Unix(2, 0)}
	for name, c := range map[string]struct {
		store     *fakeBackup
		backup    string // its error
		restore   string
		status    int
		conflicts bool
	}{
		"healthy":          {&fakeBackup{written: "file"}, "", "", 0, false},
		"no store":         {nil, "404: this balancer has no store", "404: this balancer has no store", 404, false},
		"store is down":    {&fakeBackup{err: errUnavailable}, "503: store unavailable", "503: store unavailable", 503, false},
		"fails in between": {&fakeBackup{written: "fi", err: errUnavailable}, "the balancer ended it early (unexpected EOF); 'skyserve logs' shows the reason", "503: store unavailable", 503, false},
		"newer data":       {&fakeBackup{written: "file", err: newer}, "reading the backup", "409: the store of the running service existed before the backup of", 409, true},
		"another restore":  {&fakeBackup{written: "file", err: fmt.Errorf("restoring the store: %w", telemetry.ErrRestoreRunning)}, "reading the backup", "423: another restore into this store is running", 423, false},
		"another service":  {&fakeBackup{written: "file", err: &telemetry.BackupError{Problem: "it is a backup of the service x"}}, "reading the backup", "400: it is a backup of the service x", 400, false},
	} {
		t.Run(name, func(t *testing.T) {
			srv := httptest.NewServer(api(&balancer{}, func(o *Options) {
				if c.store != nil {
					o.Backup = c.store
				}
			}))
			defer srv.Close()
			client := telemetry.NewClient(srv.URL, nil)
			var file strings.Builder
			failed := func(err error, want string) {
				t.Helper()
				if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
					t.Errorf("got %v, want %q", err, want)
				}
			}
			backupErr := client.Backup(t.Context(), &file)
			if failed(backupErr, c.backup); backupErr == nil && file.String() != "file" {
				t.Errorf("received %q", file.String())
			}
			b, err := client.Restore(t.Context(), strings.NewReader("a backup"), true)
			failed(err, c.restore)
			if none := c.store == nil; errors.Is(backupErr, telemetry.ErrNoStore) != none || errors.Is(err, telemetry.ErrNoStore) != none {
				t.Errorf("ErrNoStore: got %v and %v", backupErr, err)
			}
			var status *telemetry.StatusError
			if errors.Is(err, telemetry.ErrConflict) != c.conflicts || errors.As(err, &status) && status.Status != c.status {
				t.Errorf("got %v", err)
			}
			if err == nil && (b.Messages != 3 || b.Service != "chat" || c.store.restored != "a backup" || !c.store.forced) {
				t.Errorf("restored %+v, %+v", b, c.store)
			}
			if status, body := call(api(&balancer{}, func(o *Options) { o.Token = "t" }), http.MethodGet, "/v1/store/backup", ""); status != http.StatusUnauthorized {
				t.Errorf("without a token: %d %s", status, body)
			}
		})
	}
}
