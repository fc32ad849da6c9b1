package local

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Names in the state directory.
const (
	envHome     = "SKYSERVE_HOME"
	dirServices = "services"
	dirBin      = "bin"
	// FileLock is the lock in the directory of a service, and in the state directory.
	FileLock = "lock"

	dirMode  = 0o700
	fileMode = 0o600
)

// Home is the state directory of this user. It contains the services on this machine, and the binaries that
// they run.
type Home struct {
	dir     string
	existed bool // before this process; then it may be the user's own directory, and stays when it is empty
}

// OpenHome returns the state directory: $SKYSERVE_HOME, else skyserve in the XDG state directory. It
// creates nothing.
func OpenHome() (Home, error) {
	dir := os.Getenv(envHome)
	if dir == "" {
		state := os.Getenv("XDG_STATE_HOME")
		if state == "" {
			user, err := os.UserHomeDir()
			if err != nil {
				return Home{}, fmt.Errorf("finding the state directory: %w; set %s", err, envHome)
			}
			state = filepath.Join(user, ".local", "state")
		}
		dir = filepath.Join(state, "skyserve")
	}
	abs, err := filepath.Abs(dir)
	if err != nil {
		return Home{}, fmt.Errorf("finding the state directory %s: %w", dir, err)
	}
	_, err = os.Stat(abs)
	return Home{dir: abs, existed: !errors.Is(err, fs.ErrNotExist)}, nil
}

// Dir returns the path of the state directory.
func (h Home) Dir() string { return h.dir }

// Services lists the names of the services with state on this machine, sorted.
func (h Home) Services() ([]string, error) {
	entries, err := os.ReadDir(filepath.Join(h.dir, dirServices))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, &HomeError{h.dir, fmt.Errorf("listing services: %w", err)}
	}
	var names []string
	for _, e := range entries {
		if e.IsDir() {
			names = append(names, e.Name())
		}
	}
	slices.Sort(names)
	return names, nil
}

// Service returns the state of the named service. It creates nothing, and the service need not exist. A
// name that is not a plain file name is an error.
func (h Home) Service(name string) (Service, error) {
	if name == "" || name == "." || name == ".." || strings.ContainsAny(name, `/\`) {
		return Service{}, fmt.Errorf("invalid service name %q", name)
	}
	return Service{home: h, name: name, dir: filepath.Join(h.dir, dirServices, name)}, nil
}

// Find returns the named service or, when name is empty, the only one that exists. Errors are
// *NoServiceError and *SeveralServicesError.
func (h Home) Find(name string) (Service, error) {
	names, err := h.Services()
	if err != nil {
		return Service{}, err
	}
	switch {
	case name != "" && slices.Contains(names, name):
		return h.Service(name)
	case name != "" || len(names) == 0:
		return Service{}, &NoServiceError{Name: name, Exist: names, MissingHome: h.missing()}
	case len(names) > 1:
		return Service{}, &SeveralServicesError{Exist: names}
	}
	return h.Service(names[0])
}

// missing returns the state directory if SKYSERVE_HOME selects it and it does not exist; else empty.
func (h Home) missing() string {
	if _, err := os.Stat(h.dir); os.Getenv(envHome) != "" && errors.Is(err, fs.ErrNotExist) {
		return h.dir
	}
	return ""
}

// HomeError reports that the state directory Dir cannot be used.
type HomeError struct {
	Dir string
	Err error
}

// Error returns the cause.
func (e *HomeError) Error() string { return e.Err.Error() }

// Unwrap returns the cause.
func (e *HomeError) Unwrap() error { return e.Err }

// Hint returns how to select another state directory.
func (e *HomeError) Hint() string {
	return fmt.Sprintf("the state directory is %s: set %s to a directory that you can read and write", e.Dir, envHome)
}

// NoServiceError reports that a service does not exist on this machine.
type NoServiceError struct {
	Name  string   // empty when any service would match
	Exist []string // the existing services
	// MissingHome is the directory that SKYSERVE_HOME selects, if it does not exist; else empty.
	MissingHome string
}

// Error names the missing service and the existing ones.
func (e *NoServiceError) Error() string {
	cause := ""
	if e.MissingHome != "" {
		cause = fmt.Sprintf(": the directory %s, which %s selects, does not exist", e.MissingHome, envHome)
	}
	switch {
	case e.Name == "":
		return "no service is running on this machine" + cause
	case len(e.Exist) == 0:
		return fmt.Sprintf("service %q not found on this machine; no services exist here%s", e.Name, cause)
	}
	return fmt.Sprintf("service %q not found on this machine; existing services: %s", e.Name, strings.Join(e.Exist, ", "))
}

// SeveralServicesError reports an empty name where several services exist.
type SeveralServicesError struct{ Exist []string }

// Error lists the services.
func (e *SeveralServicesError) Error() string {
	return "several services exist on this machine; select one of " + strings.Join(e.Exist, ", ")
}
