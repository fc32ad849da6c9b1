package discover

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"syscall"
	"testing"
	"time"

	"skyserve/internal/service"
)

// looks lists a source twice: a changed file must be the same at two looks.
func looks(t *testing.T, s source) (replicas []service.ReplicaConfig, changed bool, err error) {
	t.Helper()
	if _, changed, err := s.list(t.Context()); changed && err == nil {
		t.Error("a change took effect at the first look")
	}
	return s.list(t.Context())
}

func urls(replicas []service.ReplicaConfig) (all []string) {
	for _, r := range replicas {
		all = append(all, r.URL)
	}
	return all
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// replaceFile replaces a file as careful programs do.
func replaceFile(t *testing.T, path, text string) {
	t.Helper()
	write(t, path+".new", text)
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
}

// A changed file is read once it is complete. A broken, empty or missing file is reported once and changes
// nothing; the repaired file is read again.
func TestWatchedFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "replicas")
	write(t, path, "http://a:1\n")
	s := &fileSource{path: path, check: checkHTTP}
	if got, changed, err := s.list(t.Context()); err != nil || !changed || !reflect.DeepEqual(urls(got), []string{"http://a:1"}) {
		t.Fatalf("at the start: %v, %v, %v", got, changed, err)
	}
	if _, changed, _ := looks(t, s); changed {
		t.Error("an unchanged file was read again")
	}
	for _, c := range []struct {
		name   string
		change func()
		want   []string
		wrong  string
	}{
		{"replaced", func() { replaceFile(t, path, "http://a:1\nhttp://b:1\n") }, []string{"http://a:1", "http://b:1"}, ""},
		{"written in place", func() { write(t, path, "http://b:1\n") }, []string{"http://b:1"}, ""},
		{"emptied", func() { write(t, path, "") }, nil, "contains no replica"},
		{"broken", func() { write(t, path, "http://b:1\n\nhttp:/") }, nil, "line 3"},
		{"repaired", func() { write(t, path, "http://c:1\n") }, []string{"http://c:1"}, ""},
		{"of the same size", func() { replaceFile(t, path, "http://d:1\n") }, []string{"http://d:1"}, ""},
		{"empty on purpose", func() { write(t, path, "[]\n") }, nil, ""},
		{"too large", func() { write(t, path, strings.Repeat("#\n", maxFile/2+1)) }, nil, "must have at most"},
	} {
		c.change()
		got, changed, err := looks(t, s)
		if !changed || (err == nil) != (c.wrong == "") || err != nil && !strings.Contains(err.Error(), c.wrong) || !reflect.DeepEqual(urls(got), c.want) {
			t.Errorf("%s: got %v, %v, %v; want %v %s", c.name, urls(got), changed, err, c.want, c.wrong)
		}
		if _, changed, _ := s.list(t.Context()); changed {
			t.Errorf("%s: read again", c.name)
		}
	}
}

// A file that keeps changing is not read.
func TestGrowingFileIsNotRead(t *testing.T) {
	path := filepath.Join(t.TempDir(), "replicas")
	write(t, path, "http://a:1\n")
	s := &fileSource{path: path, check: checkHTTP}
	_, _, _ = s.list(t.Context())
	text := ""
	for range 5 {
		text += "http://b" + strings.Repeat("x", len(text)) + ":1\n"
		write(t, path, text)
		if got, changed, err := s.list(t.Context()); changed {
			t.Fatalf("read %v, %v", got, err)
		}
	}
}

// A file that disappears and returns unchanged is read again, which ends the problem.
func TestMissingFileReturns(t *testing.T) {
	path := filepath.Join(t.TempDir(), "replicas")
	s := &fileSource{path: path, check: checkHTTP}
	for range 2 {
		if _, changed, err := s.list(t.Context()); !changed || !os.IsNotExist(err) {
			t.Fatalf("missing: %v, %v", changed, err)
		}
	}
	write(t, path, "http://a:1\n")
	if got, changed, err := looks(t, s); !changed || err != nil || len(got) != 1 {
		t.Fatalf("it appears: %v, %v, %v", got, changed, err)
	}
	if err := os.Rename(path, path+".old"); err != nil {
		t.Fatal(err)
	}
	if _, changed, err := s.list(t.Context()); !changed || err == nil {
		t.Fatalf("it disappears: %v, %v", changed, err)
	}
	if err := os.Rename(path+".old", path); err != nil {
		t.Fatal(err)
	}
	if got, changed, err := looks(t, s); !changed || err != nil || len(got) != 1 {
		t.Errorf("it returns: %v, %v, %v", got, changed, err)
	}
}

// What is not a file is rejected, and a pipe without a writer does not block.
func TestOnlyFilesAreRead(t *testing.T) {
	pipe := filepath.Join(t.TempDir(), "pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{pipe, t.TempDir()} {
		if _, changed, err := looks(t, &fileSource{path: path, check: checkHTTP}); !changed || err == nil || err.Error() != "must be a regular file" {
			t.Errorf("%s: %v, %v", path, changed, err)
		}
	}
}

// A version differs in any of size, time and identity.
func TestSameVersion(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	write(t, path, "a")
	at := time.Unix(1e9, 0)
	stat := func() os.FileInfo {
		if err := os.Chtimes(path, at, at); err != nil {
			t.Fatal(err)
		}
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		return info
	}
	first := stat()
	if !sameVersion(first, stat()) || sameVersion(first, nil) || sameVersion(nil, nil) {
		t.Error("the same file differs")
	}
	replaceFile(t, path, "b")
	if sameVersion(first, stat()) {
		t.Error("a replaced file with the same size and time is the same")
	}
}
