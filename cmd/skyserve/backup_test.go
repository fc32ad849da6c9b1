package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"

	"skyserve/internal/store"
	"skyserve/internal/telemetry"
	"skyserve/provision"
)

// The hint of a failed restore says whether the store was changed.
func TestRestoreErrorsSayWhatChanged(t *testing.T) {
	for _, c := range []struct {
		status int
		want   string
	}{
		{400, "nothing was changed"},
		{401, "nothing was changed; for an http URL, set SKYSERVE_ADMIN_TOKEN to the token of the admin API; for https, run 'skyserve connect'"},
		{404, "nothing was changed"},
		{409, "nothing was changed; --force discards"},
		{423, "nothing was changed; wait until"},
		{500, "the store may be incomplete: run the command again"},
		{503, "the store may be incomplete: run the command again"},
	} {
		err := restoreError("chat", nil, fmt.Errorf("trying: %w", &telemetry.StatusError{Status: c.status, Message: "because"}))
		var coded *exitError
		if !errors.As(err, &coded) || coded.code != exitFailed || err.Error() != "restoring chat: because" || !strings.HasPrefix(coded.hint, c.want) {
			t.Errorf("status %d: got %#v", c.status, err)
		}
	}
	var coded *exitError
	if err := restoreError("chat", nil, io.ErrUnexpectedEOF); !errors.As(err, &coded) || !strings.HasPrefix(coded.hint, "'skyserve status'") {
		t.Errorf("without a response: got %#v", err)
	}
}

// leakyFile is a backup file in a bucket whose credentials may write but not list.
type leakyFile struct {
	backupFile
	writes int
}

func (f *leakyFile) write(context.Context, func(io.Writer) error) (telemetry.Backup, int64, error) {
	f.writes++
	return telemetry.Backup{Service: "chat"}, 7, &store.LeftoverPartsError{Err: errors.New("access denied")}
}

// A complete backup is a success, and is not written again from other balancers, where parts of earlier ones remain.
func TestBackupIsCompleteWithLeftovers(t *testing.T) {
	var errOut strings.Builder
	f, source := &leakyFile{}, func(io.Writer) error { return nil }
	b, size, err := writeBackup(t.Context(), f, []func(io.Writer) error{source, source, source}, &errOut)
	if err != nil || b.Service != "chat" || size != 7 || f.writes != 1 || !strings.HasPrefix(errOut.String(), "warning: the backup is complete") || !strings.Contains(errOut.String(), "access denied") {
		t.Errorf("got %+v, %d, %v after %d writes, %q", b, size, err, f.writes, errOut.String())
	}
}

// A failed backup of a stopped store does not send to the status of the service.
func TestBackupOfStoppedStoreHasNoStatus(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "jetstream", "note"), "not a store")
	file := filepath.Join(t.TempDir(), "chat.backup")
	_, stderr, code := runCommand(t.Context(), "backup", file, "--service", "chat", "--dir", dir)
	if code != exitFailed || !strings.Contains(stderr, "hint: nothing was written\n") {
		t.Errorf("exit code %d: %s", code, stderr)
	}
}

// A backup or restore whose --admin does not respond leads to the addresses of balancers: the status of the service
// does not concern another address.
func TestBackupWithUnreachableAdmin(t *testing.T) {
	t.Setenv("SKYSERVE_HOME", t.TempDir())
	client := httptest.NewServer(http.NotFoundHandler()) // as a balancer's address for clients
	t.Cleanup(client.Close)
	for _, admin := range []string{"http://127.0.0.1:1", client.URL} {
		file := filepath.Join(t.TempDir(), "chat.backup")
		_, stderr, code := runCommand(t.Context(), "backup", file, "--service", "chat", "--admin", admin)
		if code != exitFailed || !strings.Contains(stderr, "hint: nothing was written; --admin takes the address of a balancer for operators") {
			t.Errorf("--admin %s: exit code %d: %s", admin, code, stderr)
		}
	}
	_, stderr, code := runCommand(t.Context(), "backup", filepath.Join(t.TempDir(), "missing", "chat.backup"), "--service", "chat", "--admin", "http://127.0.0.1:1")
	if code == 0 || strings.Contains(stderr, "--admin takes") {
		t.Errorf("a folder that does not exist: exit code %d: %s", code, stderr)
	}
	var coded *exitError
	if err := restoreError("chat", []string{"http://127.0.0.1:1"}, &net.OpError{Op: "dial", Err: io.EOF}); !errors.As(err, &coded) || !strings.HasPrefix(coded.hint, "--admin takes") {
		t.Errorf("restore: got %#v", err)
	}
}

// A bucket whose cloud accepts no credentials is reported with the next step.
func TestRestoreReportsMissingCredentials(t *testing.T) {
	for _, name := range []string{"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE", "AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "AWS_CONTAINER_CREDENTIALS_FULL_URI"} {
		t.Setenv(name, "")
	}
	t.Setenv("AWS_EC2_METADATA_DISABLED", "true")
	t.Setenv("AWS_REGION", "us-east-1")
	t.Setenv("HOME", t.TempDir())
	t.Setenv("SKYSERVE_HOME", t.TempDir())
	var out, errOut bytes.Buffer
	code := execute(t.Context(), []string{"restore", "s3://bucket/chat.backup", "--service", "chat"}, &out, &errOut)
	if code != exitCredentials || !strings.Contains(errOut.String(), "no valid credentials") || !strings.Contains(errOut.String(), "hint: set AWS_ACCESS_KEY_ID") {
		t.Errorf("exit code %d, want %d, printed\n%s", code, exitCredentials, &errOut)
	}
}

// rejectingFile is a backup file in a bucket whose cloud rejects the credentials.
type rejectingFile struct{ backupFile }

func (rejectingFile) write(context.Context, func(io.Writer) error) (b telemetry.Backup, size int64, err error) {
	return b, 0, &provision.CredentialsError{Cloud: "aws", Err: errors.New("none"), Hint: "log in"}
}

// Rejected credentials are reported once, however many balancers could be asked for the backup.
func TestBackupReportsRejectedCredentialsOnce(t *testing.T) {
	source := func(io.Writer) error { return nil }
	_, _, err := writeBackup(t.Context(), rejectingFile{}, []func(io.Writer) error{source, source, source}, io.Discard)
	var coded *exitError
	if !errors.As(withCredentialsHint(err), &coded) || coded.code != exitCredentials || coded.hint != "log in" || strings.Count(coded.Error(), "no valid credentials") != 1 {
		t.Errorf("got %v, %+v", err, coded)
	}
}

// A balancer that does not respond delays a backup by a second: another one is asked for it.
func TestBackupPassesHungBalancer(t *testing.T) {
	t.Setenv("SKYSERVE_HOME", t.TempDir())
	hung := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/healthz" {
			t.Errorf("requested %s of a balancer that does not respond", r.URL.Path)
		}
		<-r.Context().Done()
	}))
	defer hung.Close()
	asked := make(chan string, 1)
	other := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/healthz" {
			asked <- r.URL.Path
			<-r.Context().Done()
		}
	}))
	defer other.Close()
	admins := []string{"--admin", hung.URL, "--admin", other.URL}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan string, 1)
	go func() {
		_, stderr, _ := runCommand(ctx, append([]string{"backup", filepath.Join(t.TempDir(), "chat.backup"), "--service", "chat"}, admins...)...)
		ended <- stderr
	}()
	select {
	case <-asked:
		cancel()
		<-ended
	case stderr := <-ended:
		t.Errorf("ended before the other balancer was asked: %s", stderr)
	}
}
