package local

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"skyserve/internal/atomicfile"
)

// Names in the directory of a service.
const (
	dirObjects = "objects"
	dirLogs    = "logs"
	fileSpec   = "service.yaml"
	fileTokens = "tokens.json"
	fileSlots  = "slots.json"
)

// Service is the state of one service on this machine.
type Service struct {
	home Home
	name string
	dir  string
}

// Name is the service's name.
func (s Service) Name() string { return s.name }

// Home is the state directory that the service is in.
func (s Service) Home() Home { return s.home }

// Dir is the directory that holds the service's state.
func (s Service) Dir() string { return s.dir }

// SpecFile is where the service.yaml that the service was brought up with is kept.
func (s Service) SpecFile() string { return filepath.Join(s.dir, fileSpec) }

// LogFile is where the object id writes what it has to say.
func (s Service) LogFile(id string) string { return filepath.Join(s.dir, dirLogs, id+".log") }

func (s Service) configFile(name string) string { return filepath.Join(s.dir, name) }

func (s Service) objectDir() string { return filepath.Join(s.dir, dirObjects) }

func (s Service) objectFile(id string) string { return filepath.Join(s.objectDir(), id+".json") }

// BusyError is a service that another command is changing.
type BusyError struct{ Service string }

// Error says which.
func (e *BusyError) Error() string {
	return "another skyserve command is changing the service " + e.Service + " at this moment"
}

// Lock keeps other commands from changing the service, until unlock is called;
// *BusyError when one does. It makes the service's directory.
func (s Service) Lock() (unlock func(), err error) {
	for {
		if err := os.MkdirAll(s.dir, dirMode); err != nil {
			return nil, fmt.Errorf("locking the state of %s: %w", s.name, err)
		}
		f, err := lockFile(filepath.Join(s.dir, fileLock))
		switch {
		case errors.Is(err, errLocked):
			return nil, &BusyError{Service: s.name}
		case errors.Is(err, fs.ErrNotExist): // whoever had the lock removed the service
			continue
		case err != nil:
			return nil, fmt.Errorf("locking the state of %s: %w", s.name, err)
		}
		return func() { f.Close() }, nil
	}
}

// lockTimeout outlasts what the controller does to a few replicas.
const lockTimeout = 5 * time.Second

// LockSoon is Lock for commands, which wait a moment for whoever has the lock.
func (s Service) LockSoon(ctx context.Context) (unlock func(), err error) {
	ctx, cancel := context.WithTimeout(ctx, lockTimeout)
	defer cancel()
	for {
		unlock, err := s.Lock()
		var busy *BusyError
		if !errors.As(err, &busy) || !pause(ctx, pollEvery) {
			return unlock, err
		}
	}
}

// Remove removes the service's directory with all that it holds. Call it while
// holding the lock, when no object is left.
func (s Service) Remove() error {
	if err := os.RemoveAll(s.dir); err != nil {
		return fmt.Errorf("removing the state of %s: %w", s.name, err)
	}
	s.tidy()
	return nil
}

// tidy removes the directories around a service's; they go only when nothing else is in them.
func (s Service) tidy() {
	_ = os.Remove(filepath.Dir(s.dir))
	_ = os.Remove(s.home.dir)
}

// RemoveUnused removes the service's directory when nothing was ever brought up
// in it: what a failure before the first process leaves. Call it while holding
// the lock.
func (s Service) RemoveUnused() {
	objects, err := s.Objects()
	if _, missing := os.Stat(s.SpecFile()); err == nil && len(objects) == 0 && errors.Is(missing, fs.ErrNotExist) {
		_ = os.RemoveAll(s.dir) // what stays is harmless
		s.tidy()
	}
}

// tokens are the secrets of a service that are kept here beside its operator's keys.
type tokens struct {
	// Admin opens the balancers' admin APIs; empty leaves them to this machine.
	Admin string `json:"admin,omitempty"`
}

// EnvAdminToken names the environment variable with the token of the admin APIs.
const EnvAdminToken = "SKYSERVE_ADMIN_TOKEN"

// tokens reads what is kept; a damaged file is as good as none.
func (s Service) tokens() (t tokens, err error) {
	data, err := os.ReadFile(s.configFile(fileTokens))
	if errors.Is(err, fs.ErrNotExist) {
		return t, nil
	}
	if err != nil {
		return t, fmt.Errorf("reading the tokens of %s: %w", s.name, err)
	}
	_ = json.Unmarshal(data, &t)
	return t, nil
}

// AdminToken opens the admin APIs of the balancers that run: the one that they
// were brought up with, else that of the environment; empty where they ask for none.
func (s Service) AdminToken() (string, error) {
	t, err := s.tokens()
	return cmp.Or(t.Admin, os.Getenv(EnvAdminToken)), err
}

// NextAdminToken is the token that is to open the admin APIs: that of the environment where it is
// set there, if only to nothing, else the one that was kept.
func (s Service) NextAdminToken() (string, error) {
	if token, isSet := os.LookupEnv(EnvAdminToken); isSet {
		return token, nil
	}
	t, err := s.tokens()
	return t.Admin, err
}

// KeepAdminToken keeps that token for other shells.
func (s Service) KeepAdminToken() error {
	t, err := s.tokens()
	if err == nil {
		t.Admin, err = s.NextAdminToken()
	}
	var text []byte
	if err == nil {
		text, err = json.Marshal(t)
	}
	if err == nil {
		err = writeFile(s.configFile(fileTokens), text)
	}
	return err
}

// writeFile replaces a file of the service's state durably, whole or not at all.
// Directories on the way are made; all of it is the user's alone.
func writeFile(path string, data []byte) error {
	if err := atomicfile.MkdirAll(filepath.Dir(path), dirMode); err != nil {
		return fmt.Errorf("writing %s: %w", path, err)
	}
	return atomicfile.WriteFile(path, data, fileMode)
}

// Keep keeps the service.yaml of a service whose machines are elsewhere. Call it while
// holding the lock.
func (s Service) Keep(text []byte) error { return writeFile(s.SpecFile(), text) }

// TakeNote keeps something about the service as JSON, under a name of its own.
func (s Service) TakeNote(name string, v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("keeping %s of %s: %w", name, s.name, err)
	}
	return writeFile(s.configFile(name), data)
}

// Note reads what TakeNote kept; v stays as it is where there is nothing.
func (s Service) Note(name string, v any) error {
	data, err := os.ReadFile(s.configFile(name))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil {
		err = json.Unmarshal(data, v)
	}
	if err != nil {
		return fmt.Errorf("reading %s: %w", s.configFile(name), err)
	}
	return nil
}

// ServiceAt is the service whose directory this is.
func ServiceAt(dir string) Service {
	return Service{home: Home{filepath.Dir(filepath.Dir(dir))}, name: filepath.Base(dir), dir: dir}
}
