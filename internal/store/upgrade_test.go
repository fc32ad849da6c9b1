package store

import (
	"archive/tar"
	"compress/gzip"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"skyserve/internal/telemetry"
)

// earlierStore extracts testdata/earlier.tar.gz, the directory of a store that commit 735bbd76 wrote: one key, the
// lease of the controller and one point.
func earlierStore(t *testing.T) string {
	t.Helper()
	f, err := os.Open(filepath.Join("testdata", "earlier.tar.gz"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for r := tar.NewReader(z); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return dir
		}
		if err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(dir, filepath.FromSlash(h.Name))
		if h.FileInfo().IsDir() {
			if err := os.MkdirAll(path, 0o700); err != nil {
				t.Fatal(err)
			}
			continue
		}
		data, err := io.ReadAll(r)
		if err == nil {
			err = os.WriteFile(path, data, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// A store of an earlier version keeps its keys, history and fencing tokens, and accepts writes.
func TestStoreOfEarlierVersionOpens(t *testing.T) {
	dir := earlierStore(t)
	for range 2 { // the second time, this version has written it
		srv, err := Serve(t.Context(), Options{Dir: dir, Listen: "127.0.0.1:0", Token: "secret"})
		if err != nil {
			t.Fatal(err)
		}
		s, err := Connect(t.Context(), srv.URL(), "secret", ForService("chat"))
		if err != nil {
			t.Fatal(err)
		}
		value, _, err := s.Get(t.Context(), "desired.replicas.us-0")
		if err != nil || string(value) != `{"id":"us-0"}` {
			t.Errorf("key: %q, %v", value, err)
		}
		var points []telemetry.Point
		err = s.ReadPoints(t.Context(), 0, func(p telemetry.Point) error { points = append(points, p); return nil })
		if err != nil || len(points) != 1 || points[0].PromptTokens != 1000 || points[0].Model != "llama" {
			t.Errorf("history: %+v, %v", points, err)
		}
		revision, err := s.Put(t.Context(), "desired.replicas.us-1", []byte("{}"))
		if err != nil || revision < 3 {
			t.Errorf("a write has revision %d, and the earlier version's lease had 2: %v", revision, err)
		}
		s.Close()
		srv.Close()
	}
}

// A controller of this version becomes leader after the lease of the earlier version, with a higher token.
func TestLeaseOfEarlierVersionEnds(t *testing.T) {
	srv, err := Serve(t.Context(), Options{Dir: earlierStore(t), Listen: "127.0.0.1:0", Token: "secret"})
	if err != nil {
		t.Fatal(err)
	}
	defer srv.Close()
	s, err := Connect(t.Context(), srv.URL(), "secret", ForService("chat"))
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if _, _, err := s.Get(ctx, "lease.controller"); err != nil {
		t.Fatal(err)
	}
	if err := s.Delete(ctx, "lease.controller"); err != nil { // as after its TTL, for which a test does not wait
		t.Fatal(err)
	}
	lease, err := s.Acquire(ctx, "controller", "machine-b", 15*time.Second)
	if err != nil || lease.Token() <= 2 {
		t.Errorf("lease: %v, %v", lease, err)
	}
}

// A store of a later version is neither started nor backed up, and nothing in it changes.
func TestStoreOfLaterVersionIsRefused(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{"2\n", "has format 2, this version knows formats up to 1: a later version of skyserve wrote it; install that version again"},
		{"x", "FORMAT: must be a format number of 1 or more, got \"x\""},
		{"", "must be a format number of 1 or more, got \"\""},
		{"-1", "must be a format number"},
	} {
		dir := earlierStore(t)
		path := filepath.Join(dir, formatFile)
		if err := os.WriteFile(path, []byte(c.text), 0o600); err != nil {
			t.Fatal(err)
		}
		srv, err := Serve(t.Context(), Options{Dir: dir, Listen: "127.0.0.1:0", Token: "secret"})
		if err == nil {
			srv.Close()
		}
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q: %v, want %q", c.text, err, c.want)
		}
		if err := BackupDir(t.Context(), dir, io.Discard, "chat", "v1"); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("backing up %q: %v, want %q", c.text, err, c.want)
		}
		if text, _ := os.ReadFile(path); string(text) != c.text {
			t.Errorf("%q became %q", c.text, text)
		}
	}
}
