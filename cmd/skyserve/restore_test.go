package main

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"skyserve/internal/store"
)

// Where a restore is rejected, the command tells whether something was changed, and what to do.
func TestRejectedRestores(t *testing.T) {
	server, err := store.Serve(t.Context(), store.Options{Dir: t.TempDir(), Listen: "127.0.0.1:0"})
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	st, err := store.Connect(t.Context(), server.URL(), "", store.ForService("chat"))
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	if _, err := st.Put(t.Context(), "key", []byte("1")); err != nil {
		t.Fatal(err)
	}
	var backup bytes.Buffer
	if _, err := st.WriteBackup(t.Context(), &backup, "chat", "v1"); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "chat.backup")
	if err := os.WriteFile(file, backup.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	for status, hint := range map[int]string{
		http.StatusConflict:           "nothing was changed; --force discards everything stored since the backup, or completes an interrupted restore",
		http.StatusLocked:             "nothing was changed; wait until the other restore has ended",
		http.StatusServiceUnavailable: "the store may be incomplete: run the command again",
	} {
		srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Method == http.MethodPost {
				_, _ = io.Copy(io.Discard, r.Body)
				http.Error(w, `{"error":{"message":"the reason"}}`, status)
			}
		}))
		err := runRestore(t.Context(), &restoreOptions{name: "chat", file: file, admins: []string{srv.URL}, output: outputFlags{output: "text"}}, io.Discard)
		srv.Close()
		var coded *exitError
		if !errors.As(err, &coded) || coded.hint != hint || !strings.HasPrefix(err.Error(), "restoring chat: the reason") {
			t.Errorf("%d: got %v, %+v", status, err, coded)
		}
	}
}
