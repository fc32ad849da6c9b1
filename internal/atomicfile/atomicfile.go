// Package atomicfile replaces files atomically and durably: after a crash or a power failure
// a file has either its old or its new content, never a part of one. It writes every file that
// must survive a restart. It syncs the content before the rename, since the rename may reach
// the disk first. It syncs the directory after the rename, which changes an entry of it.
package atomicfile

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// system contains the operating system calls of this package, so that tests can make each fail.
type system struct {
	write  func(f *os.File, data []byte) (int, error)
	sync   func(f *os.File) error
	rename func(from, to string) error
}

var host = system{write: (*os.File).Write, sync: (*os.File).Sync, rename: os.Rename}

// WriteFile replaces the file at path with data. After an error the old file is unchanged,
// except when syncing its directory failed: then the file is replaced, and a power failure
// may restore the old one.
func WriteFile(path string, data []byte, mode fs.FileMode) error {
	return host.replace(path, mode, func(w io.Writer) error {
		_, err := w.Write(data)
		return err
	})
}

// Write is WriteFile for content that is too large for memory: fill writes it.
func Write(path string, mode fs.FileMode, fill func(io.Writer) error) error {
	return host.replace(path, mode, fill)
}

// Rename syncs a file that was written in another way, such as in parallel parts, and moves
// it within its file system.
func Rename(from, to string) error {
	if err := host.move(from, to); err != nil {
		return fmt.Errorf("renaming %s to %s: %w", from, to, err)
	}
	return nil
}

// MkdirAll creates a directory with its missing parents, and syncs the directories that got
// a new entry. An existing directory is not changed.
func MkdirAll(dir string, mode fs.FileMode) error {
	if info, err := os.Stat(dir); err == nil && info.IsDir() {
		return nil
	}
	above := filepath.Dir(dir)
	if above != dir {
		if err := MkdirAll(above, mode); err != nil {
			return err
		}
	}
	if err := os.MkdirAll(dir, mode); err != nil { // another process may be creating it too
		return err
	}
	return host.syncDir(above)
}

// writer writes through system.
type writer struct {
	s system
	f *os.File
}

func (w writer) Write(data []byte) (int, error) { return w.s.write(w.f, data) }

func (s system) replace(path string, mode fs.FileMode, fill func(io.Writer) error) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("writing %s: %w", path, err)
		}
	}()
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*") // with mode 0600
	if err != nil {
		return err
	}
	err = fill(writer{s, f})
	if err == nil && mode != 0o600 {
		err = f.Chmod(mode)
	}
	if err == nil {
		err = s.sync(f)
	}
	if closeErr := f.Close(); err == nil {
		err = closeErr
	}
	if err == nil {
		err = s.rename(f.Name(), path)
	}
	if err != nil {
		_ = os.Remove(f.Name()) // the first error is the one to report
		return withoutTemporary(err, f.Name())
	}
	return s.syncDir(filepath.Dir(path))
}

// withoutTemporary returns the cause of an error of a call on the temporary file: its name says nothing, and makes
// repeated errors look different.
func withoutTemporary(err error, name string) error {
	var at *fs.PathError
	if errors.As(err, &at) && at.Path == name {
		return at.Err
	}
	return err
}

func (s system) move(from, to string) error {
	f, err := os.Open(from)
	if err != nil {
		return err
	}
	err = errors.Join(s.sync(f), f.Close())
	if err == nil {
		err = s.rename(from, to)
	}
	if err == nil {
		err = s.syncDir(filepath.Dir(to))
	}
	return err
}

// syncDir makes the entries of a directory durable. Network file systems that do not
// support it return an error, which is ignored.
func (s system) syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	err = s.sync(d)
	if errors.Is(err, syscall.EINVAL) || errors.Is(err, errors.ErrUnsupported) {
		err = nil
	}
	if closeErr := d.Close(); err == nil {
		err = closeErr
	}
	return err
}
