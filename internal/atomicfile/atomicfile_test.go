package atomicfile

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// recorder is a system that records its calls, and in which one call fails.
type recorder struct {
	dir   string
	calls []string
	fail  int // the number of the call that fails, from 0; negative = none
	with  error
}

func (r *recorder) note(format string, args ...any) error {
	r.calls = append(r.calls, fmt.Sprintf(format, args...))
	if len(r.calls)-1 == r.fail {
		return r.with
	}
	return nil
}

// name is a path relative to the test's directory; temporary files are called temp.
func (r *recorder) name(path string) string {
	rel, _ := filepath.Rel(r.dir, path)
	if strings.HasPrefix(filepath.Base(rel), ".f.") {
		rel = filepath.Join(filepath.Dir(rel), "temp")
	}
	return rel
}

func (r *recorder) system() system {
	return system{
		write: func(f *os.File, data []byte) (int, error) {
			if err := r.note("write %s", r.name(f.Name())); err != nil {
				n, _ := f.Write(data[:len(data)/2]) // on a full disk, a part of the data is written
				return n, &fs.PathError{Op: "write", Path: f.Name(), Err: err}
			}
			return f.Write(data)
		},
		sync: func(f *os.File) error { return r.note("sync %s", r.name(f.Name())) },
		rename: func(from, to string) error {
			if err := r.note("rename %s %s", r.name(from), r.name(to)); err != nil {
				return err
			}
			return os.Rename(from, to)
		},
	}
}

func write(text string) func(io.Writer) error {
	return func(w io.Writer) error {
		_, err := io.WriteString(w, text)
		return err
	}
}

func TestSyncOrder(t *testing.T) {
	r := &recorder{dir: t.TempDir(), fail: -1}
	path := filepath.Join(r.dir, "f")
	if err := r.system().replace(path, 0o640, write("new")); err != nil {
		t.Fatal(err)
	}
	if want := []string{"write temp", "sync temp", "rename temp f", "sync ."}; !slices.Equal(r.calls, want) {
		t.Errorf("WriteFile called %q, want %q", r.calls, want)
	}
	if info, err := os.Stat(path); err != nil || info.Mode() != 0o640 {
		t.Errorf("mode: got %v %v, want 0640", info, err)
	}
	r.calls = nil
	if err := r.system().move(path, filepath.Join(r.dir, "g")); err != nil {
		t.Fatal(err)
	}
	if want := []string{"sync f", "rename f g", "sync ."}; !slices.Equal(r.calls, want) {
		t.Errorf("Rename called %q, want %q", r.calls, want)
	}
}

// After a failure of any call, the file has its old or its new content, no temporary file remains, and
// the error is returned.
func TestFailureKeepsOldOrNewFile(t *testing.T) {
	for _, cause := range []error{syscall.ENOSPC, syscall.EIO, syscall.EROFS} {
		for fail := range 4 {
			r := &recorder{dir: t.TempDir(), fail: fail, with: cause}
			path := filepath.Join(r.dir, "f")
			if err := os.WriteFile(path, []byte("old"), 0o600); err != nil {
				t.Fatal(err)
			}
			err := r.system().replace(path, 0o600, write("new"))
			if !errors.Is(err, cause) || !strings.Contains(err.Error(), path) || fail == 0 && err.Error() != "writing "+path+": "+cause.Error() {
				t.Errorf("%v at %q: got %v, want an error with the file and the cause, without a temporary name", cause, r.calls, err)
			}
			want := "old"
			if fail == 3 { // the directory: the rename has happened
				want = "new"
			}
			if text, err := os.ReadFile(path); err != nil || string(text) != want {
				t.Errorf("%v at %q: the file contains %q %v, want %q", cause, r.calls, text, err, want)
			}
			if files, _ := os.ReadDir(r.dir); len(files) != 1 {
				t.Errorf("%v at %q: %d files remain, want 1", cause, r.calls, len(files))
			}
		}
	}
}

func TestUnsupportedDirectorySyncIsIgnored(t *testing.T) {
	r := &recorder{dir: t.TempDir(), fail: 3, with: syscall.EINVAL}
	if err := r.system().replace(filepath.Join(r.dir, "f"), 0o600, write("new")); err != nil {
		t.Error(err)
	}
}

func TestMkdirAllSyncsNewDirectories(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a", "b")
	for range 2 {
		if err := MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	path := filepath.Join(dir, "f")
	if err := WriteFile(path, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := MkdirAll(path, 0o700); err == nil {
		t.Error("a file was accepted as a directory")
	}
	if err := WriteFile(filepath.Join(path, "f"), nil, 0o600); err == nil {
		t.Error("a file below a file was written")
	}
}
