package local

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"skyserve/internal/atomicfile"
	"skyserve/provision"
)

const (
	fileBuild    = "build" // in a service's directory: the hash of the binary of its last `up`
	binaryPrefix = "skyserve-"
	binaryMode   = 0o700
	// edgeSize is the length of the two ends of a binary that identify it. The build ID of a Go binary lies within the
	// first 32 KiB, where 'go tool buildid' expects it too.
	edgeSize = 64 << 10
	// homeTimeout is the maximum wait for the lock of the state directory. A process holds it while it
	// copies a binary.
	homeTimeout = 30 * time.Second
)

// buildIDMarkers precede the build ID in a Go binary: an ELF note (name size, length, type, name), and the start of the
// code in every other format.
var buildIDMarkers = [][]byte{[]byte("\x04\x00\x00\x00Go\x00\x00"), []byte("\xff Go build ID: \"")}

// Executable returns the path of the running binary and the hash that identifies its build.
func Executable() (path, build string, err error) {
	if path, err = os.Executable(); err != nil {
		return "", "", fmt.Errorf("finding the skyserve binary: %w", err)
	}
	if build, err = buildHash(path); err != nil {
		return "", "", fmt.Errorf("reading the skyserve binary: %w", err)
	}
	return path, build, nil
}

// buildHash returns a hash that identifies the build of a binary. It covers the size and both ends of a file that contains
// a build ID, which the Go linker derives from everything that it links: hashing all of a large binary would take longer
// than the rest of a short command. It covers the whole of any other file.
func buildHash(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return "", err
	}
	sum, size := sha256.New(), info.Size()
	head := make([]byte, min(size, edgeSize))
	if _, err := io.ReadFull(f, head); err != nil {
		return "", fmt.Errorf("%s: %w", path, err)
	}
	rest := io.Reader(f)
	if slices.ContainsFunc(buildIDMarkers, func(m []byte) bool { return bytes.Contains(head, m) }) {
		fmt.Fprintf(sum, "%d bytes\n", size)
		rest = io.NewSectionReader(f, max(edgeSize, size-edgeSize), edgeSize)
	}
	sum.Write(head)
	if _, err := io.Copy(sum, rest); err != nil {
		return "", fmt.Errorf("%s: %w", path, err)
	}
	return hex.EncodeToString(sum.Sum(nil)[:6]), nil
}

// Install copies the running binary into the state directory and returns the copy, which stays there while a
// service uses it. The original may be deleted: `go run` deletes its binary at exit.
func (s Service) Install(ctx context.Context) (path, build string, err error) {
	self, build, err := Executable()
	if err != nil {
		return "", "", err
	}
	lock, err := lockWait(ctx, s.home.lockPath(), homeTimeout)
	if err != nil {
		return "", "", fmt.Errorf("installing the skyserve binary in %s: %w", s.home.dir, err)
	}
	defer lock.Close()
	if err := writeFile(s.configFile(fileBuild), []byte(build)); err != nil {
		return "", "", err
	}
	path = filepath.Join(s.home.dir, dirBin, binaryPrefix+build)
	if _, err := os.Stat(path); err == nil {
		return path, build, nil
	}
	if err := copyExecutable(self, path); err != nil {
		return "", "", fmt.Errorf("installing the skyserve binary %s: %w", path, err)
	}
	return path, build, nil
}

// programFor returns the binary of a machine: this one, which it installs if that has not been done, or the installed one
// that w.BuildHash names, with which a machine returns to an earlier version.
func (p *Provider) programFor(ctx context.Context, w provision.Desired) (program, error) {
	p.installing.Lock()
	defer p.installing.Unlock()
	if p.exe == "" {
		exe, build, err := p.svc.Install(ctx)
		if err != nil {
			return program{}, err
		}
		*p.program = program{exe, build}
	}
	if w.BuildHash == "" || w.BuildHash == p.build {
		return *p.program, nil
	}
	earlier := program{filepath.Join(p.svc.home.dir, dirBin, binaryPrefix+w.BuildHash), w.BuildHash}
	if _, err := os.Stat(earlier.exe); err != nil {
		return earlier, fmt.Errorf("starting %s with the earlier binary: %w", w.ID, err)
	}
	return earlier, nil
}

func (h Home) lockPath() string { return filepath.Join(h.dir, FileLock) }

// copyExecutable copies a file atomically.
func copyExecutable(from, to string) error {
	if err := atomicfile.MkdirAll(filepath.Dir(to), dirMode); err != nil {
		return err
	}
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	return atomicfile.Write(to, binaryMode, func(out io.Writer) error {
		_, err := io.Copy(out, in)
		return err
	})
}

// CleanUp removes the binaries that no service uses. When no service remains, it removes the rest of the
// state directory.
func (h Home) CleanUp(ctx context.Context) error {
	if _, err := os.Stat(h.dir); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	lock, err := lockWait(ctx, h.lockPath(), homeTimeout)
	if err != nil {
		return fmt.Errorf("cleaning up %s: %w", h.dir, err)
	}
	defer lock.Close()
	used, err := h.buildsInUse()
	if err != nil {
		return err
	}
	entries, err := os.ReadDir(filepath.Join(h.dir, dirBin))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("cleaning up %s: %w", h.dir, err)
	}
	for _, e := range entries {
		if build, _ := strings.CutPrefix(e.Name(), binaryPrefix); !used[build] {
			if err := os.Remove(filepath.Join(h.dir, dirBin, e.Name())); err != nil {
				return fmt.Errorf("cleaning up %s: %w", h.dir, err)
			}
		}
	}
	if len(used) == 0 {
		_ = os.Remove(filepath.Join(h.dir, dirBin)) // the directories stay if they contain other files
		_ = os.Remove(filepath.Join(h.dir, dirServices))
		return os.Remove(h.lockPath())
	}
	return nil
}

// buildsInUse returns the hashes of the binaries that processes run, or that an `up` in progress is about to
// run.
func (h Home) buildsInUse() (map[string]bool, error) {
	names, err := h.Services()
	if err != nil {
		return nil, err
	}
	used := map[string]bool{}
	for _, name := range names {
		svc, err := h.Service(name)
		if err != nil {
			return nil, err
		}
		if build, err := os.ReadFile(svc.configFile(fileBuild)); err == nil {
			used[string(build)] = true
		}
		objects, err := svc.Objects()
		if err != nil {
			return nil, err
		}
		for _, o := range objects {
			if o.TerminatedReason == "" {
				used[o.BuildHash] = true
			}
		}
	}
	return used, nil
}
