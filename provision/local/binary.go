package local

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"skyserve/internal/atomicfile"
)

const (
	fileBuild    = "build" // in a service's directory: the executable it was last brought up with
	binaryPrefix = "skyserve-"
	binaryMode   = 0o700
	// homeTimeout bounds the wait for the lock of the state directory, which
	// is held for as long as copying an executable takes.
	homeTimeout = 30 * time.Second
)

// Executable is the running program: its path and the hash of its content.
func Executable() (path, build string, err error) {
	if path, err = os.Executable(); err != nil {
		return "", "", fmt.Errorf("finding this program's executable: %w", err)
	}
	f, err := os.Open(path)
	if err != nil {
		return "", "", fmt.Errorf("reading this program's executable: %w", err)
	}
	defer f.Close()
	sum := sha256.New()
	if _, err := io.Copy(sum, f); err != nil {
		return "", "", fmt.Errorf("reading this program's executable %s: %w", path, err)
	}
	return path, hex.EncodeToString(sum.Sum(nil)[:6]), nil
}

// Install copies the running program into the state directory, where it stays
// for as long as a service uses it (`go run` deletes its own when it ends), and
// returns the copy.
func (s Service) Install(ctx context.Context) (path, build string, err error) {
	self, build, err := Executable()
	if err != nil {
		return "", "", err
	}
	lock, err := lockWait(ctx, s.home.lockPath(), homeTimeout)
	if err != nil {
		return "", "", fmt.Errorf("installing the executable in %s: %w", s.home.dir, err)
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
		return "", "", fmt.Errorf("installing the executable %s: %w", path, err)
	}
	return path, build, nil
}

func (h Home) lockPath() string { return filepath.Join(h.dir, fileLock) }

// copyExecutable makes a copy that appears whole or not at all.
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

// Tidy removes the executables that no service uses any more, and what is left
// of the state directory when no service is.
func (h Home) Tidy(ctx context.Context) error {
	if _, err := os.Stat(h.dir); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	lock, err := lockWait(ctx, h.lockPath(), homeTimeout)
	if err != nil {
		return fmt.Errorf("tidying %s: %w", h.dir, err)
	}
	defer lock.Close()
	used, err := h.buildsInUse()
	if err != nil {
		return err
	}
	entries, err := os.ReadDir(filepath.Join(h.dir, dirBin))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("tidying %s: %w", h.dir, err)
	}
	for _, e := range entries {
		if build, _ := strings.CutPrefix(e.Name(), binaryPrefix); !used[build] {
			if err := os.Remove(filepath.Join(h.dir, dirBin, e.Name())); err != nil {
				return fmt.Errorf("tidying %s: %w", h.dir, err)
			}
		}
	}
	if len(used) == 0 {
		_ = os.Remove(filepath.Join(h.dir, dirBin)) // these two stay where somebody put something into them
		_ = os.Remove(filepath.Join(h.dir, dirServices))
		return os.Remove(h.lockPath())
	}
	return nil
}

// buildsInUse are the hashes of the executables that processes run or that an
// `up` of this moment is about to run.
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
			if o.Gone == "" {
				used[o.Build] = true
			}
		}
	}
	return used, nil
}
