package discover

import (
	"context"
	"fmt"
	"io"
	"os"

	"skyserve/internal/printable"
	"skyserve/internal/service"
)

// ReadFile reads a file of replicas: see ParseFile.
func ReadFile(path string, check func(url string) error) ([]service.ReplicaConfig, error) {
	replicas, _, err := readFile(path, check)
	return replicas, err
}

// readFile also returns the file that was read.
func readFile(path string, check func(url string) error) ([]service.ReplicaConfig, os.FileInfo, error) {
	if info, err := os.Stat(path); err == nil && !info.Mode().IsRegular() {
		return nil, nil, errAt(0, "must be a regular file") // opening a pipe would wait for its writer
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, nil, err
	}
	data, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil {
		return nil, nil, err
	}
	if len(data) > maxFile {
		return nil, info, errAt(0, "must have at most %d bytes", maxFile)
	}
	replicas, err := ParseFile(data, check)
	return replicas, info, err
}

// fileSource watches a file. A changed file is read once it has stayed the same for an interval, so that a
// program may write it in several steps.
type fileSource struct {
	path   string
	check  func(url string) error
	looked bool        // list was called before
	read   os.FileInfo // the version that was read last; nil = none, or the file was missing since
	seen   os.FileInfo // the version at the last look; nil = missing
}

func (s *fileSource) origin() string { return "file " + s.path }

// settings are empty: each entry of a file has its own.
func (s *fileSource) settings() service.ReplicaConfig { return service.ReplicaConfig{} }

// list returns the replicas of a changed file; changed is false if it is the same, or still changes.
func (s *fileSource) list(context.Context) (replicas []service.ReplicaConfig, changed bool, err error) {
	now, err := os.Stat(s.path)
	first := !s.looked
	s.looked = true
	if err != nil {
		s.read, s.seen = nil, nil
		return nil, true, err
	}
	settled := first || sameVersion(now, s.seen)
	s.seen = now
	if !settled || sameVersion(now, s.read) {
		return nil, false, nil
	}
	replicas, s.read, err = readFile(s.path, s.check)
	return replicas, true, err
}

// sameVersion reports whether a file was neither written nor replaced between two looks.
func sameVersion(a, b os.FileInfo) bool {
	return a != nil && b != nil && a.Size() == b.Size() && a.ModTime().Equal(b.ModTime()) && os.SameFile(a, b)
}

func (s *fileSource) problem(err error, have int) (message, nextStep string) {
	return fmt.Sprintf("reading the replicas in %s failed: %v; the last valid list with %s stays in effect", s.path, err, printable.Count(have, "entry")),
		fmt.Sprintf("correct %s; to remove all of its replicas, write []", s.path)
}
