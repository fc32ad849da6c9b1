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
	"strings"
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
	// FileAdmins has the admin URLs of a service whose balancers are in clouds, or are operated from another machine.
	FileAdmins = "admins.json"
)

// Service is the state of one service on this machine.
type Service struct {
	home Home
	name string
	dir  string
}

// Name returns the service's name.
func (s Service) Name() string { return s.name }

// Home returns the state directory that contains the service.
func (s Service) Home() Home { return s.home }

// Dir returns the directory of the service's state.
func (s Service) Dir() string { return s.dir }

// SpecFile returns the path of the stored service.yaml of the last `up`.
func (s Service) SpecFile() string { return filepath.Join(s.dir, fileSpec) }

// LogFile returns the path of the log of the object id.
func (s Service) LogFile(id string) string { return filepath.Join(s.dir, dirLogs, id+".log") }

func (s Service) configFile(name string) string { return filepath.Join(s.dir, name) }

func (s Service) objectDir() string { return filepath.Join(s.dir, dirObjects) }

func (s Service) objectFile(id string) string { return filepath.Join(s.objectDir(), id+".json") }

// BusyError reports that another command is changing the service.
type BusyError struct {
	Service string
	Holder  string // such as 'skyserve up' (process 71); empty if it is not known
}

// Error names the service and the command.
func (e *BusyError) Error() string {
	if e.Holder != "" {
		return fmt.Sprintf("%s is changing service %s", e.Holder, e.Service)
	}
	return "another skyserve command is changing service " + e.Service
}

// lockHolder describes this process to commands that wait for a lock.
func lockHolder(args []string, pid int) string {
	who := "another command"
	if len(args) > 1 && !strings.HasPrefix(args[1], "-") {
		who = "'skyserve " + args[1] + "'"
	}
	if who == "'skyserve node'" || who == "'skyserve controller'" {
		who = "the controller"
	}
	return fmt.Sprintf("%s (process %d)", who, pid)
}

// Lock prevents other commands from changing the service until unlock is called. If another command is
// already changing the service, the error is a *BusyError. Lock creates the service's directory.
func (s Service) Lock() (unlock func(), err error) {
	for {
		if err := os.MkdirAll(s.dir, dirMode); err != nil {
			return nil, &HomeError{s.home.dir, fmt.Errorf("locking the state of %s: %w", s.name, err)}
		}
		f, err := lockFile(filepath.Join(s.dir, FileLock))
		switch {
		case errors.Is(err, errLocked):
			return nil, &BusyError{Service: s.name, Holder: s.readHolder()}
		case errors.Is(err, fs.ErrNotExist): // the previous holder of the lock removed the service
			continue
		case err != nil:
			return nil, &HomeError{s.home.dir, fmt.Errorf("locking the state of %s: %w", s.name, err)}
		}
		if err := f.Truncate(0); err == nil {
			_, _ = f.WriteString(lockHolder(os.Args, os.Getpid())) // without it, a message is shorter
		}
		return func() { f.Close() }, nil
	}
}

// readHolder returns the description of the process that holds the lock.
func (s Service) readHolder() string {
	text, err := os.ReadFile(filepath.Join(s.dir, FileLock))
	if err != nil || len(text) > maxHolder {
		return ""
	}
	return string(text)
}

// maxHolder is the maximum length of the description of a process.
const maxHolder = 100

// lockTimeout is longer than an iteration of the controller in which machines do not respond.
const lockTimeout = 20 * time.Second

// lockNotice is longer than an iteration of the controller in which machines respond.
const lockNotice = time.Second

// LockWait is Lock for commands: it waits up to lockTimeout until another command releases the lock. If that takes longer
// than lockNotice, it calls waits once, unless waits is nil.
func (s Service) LockWait(ctx context.Context, waits func(*BusyError)) (unlock func(), err error) {
	began := time.Now()
	ctx, cancel := context.WithTimeout(ctx, lockTimeout)
	defer cancel()
	for {
		unlock, err := s.Lock()
		var busy *BusyError
		if !errors.As(err, &busy) || !sleep(ctx, pollInterval) {
			return unlock, err
		}
		if waits != nil && time.Since(began) >= lockNotice {
			waits(busy)
			waits = nil
		}
	}
}

// RemoveExcept deletes all files and directories of the service's directory except one. Call it like Remove.
func (s Service) RemoveExcept(kept string) error {
	entries, err := os.ReadDir(s.dir)
	for _, e := range entries {
		if err == nil && e.Name() != kept {
			err = os.RemoveAll(filepath.Join(s.dir, e.Name()))
		}
	}
	if err != nil {
		return fmt.Errorf("removing the state of %s: %w", s.name, err)
	}
	return nil
}

// Remove deletes the service's directory with its content. Call it with the lock held, when no object
// remains.
func (s Service) Remove() error {
	if err := os.RemoveAll(s.dir); err != nil {
		return fmt.Errorf("removing the state of %s: %w", s.name, err)
	}
	s.removeEmptyParents()
	return nil
}

// removeEmptyParents removes the parent directories of a service's directory if they are empty. A state directory that
// existed before this process stays.
func (s Service) removeEmptyParents() {
	_ = os.Remove(filepath.Dir(s.dir))
	if !s.home.existed {
		_ = os.Remove(s.home.dir)
	}
}

// RemoveUnused deletes the service's directory if the service was never deployed, after an `up` that failed
// early. It keeps the keys of an operator who was invited to a service that another machine deployed. Call it with
// the lock held.
func (s Service) RemoveUnused() {
	if objects, err := s.Objects(); err != nil || len(objects) > 0 {
		return
	}
	for _, used := range []string{s.SpecFile(), s.configFile(FileAdmins)} {
		if _, err := os.Stat(used); !errors.Is(err, fs.ErrNotExist) {
			return
		}
	}
	_ = os.RemoveAll(s.dir) // a remaining file is harmless
	s.removeEmptyParents()
}

// tokens are the secrets of a service that are stored in addition to its operator's keys.
type tokens struct {
	// Admin is the token of the balancers' admin APIs; empty restricts them to this machine.
	Admin string `json:"admin,omitempty"`
}

// EnvAdminToken is the environment variable with the token of the admin APIs.
const EnvAdminToken = "SKYSERVE_ADMIN_TOKEN"

// tokens reads the stored tokens; a damaged file counts as empty.
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

// AdminToken returns the token of the running balancers' admin APIs: the token of the last `up`, else that of
// the environment; empty if they require none.
func (s Service) AdminToken() (string, error) {
	t, err := s.tokens()
	return cmp.Or(t.Admin, os.Getenv(EnvAdminToken)), err
}

// NextAdminToken returns the token for the next `up`: the value of the environment variable if it is
// set, even if empty, else the stored one.
func (s Service) NextAdminToken() (string, error) {
	if token, isSet := os.LookupEnv(EnvAdminToken); isSet {
		return token, nil
	}
	t, err := s.tokens()
	return t.Admin, err
}

// StoreAdminToken stores NextAdminToken for other shells.
func (s Service) StoreAdminToken() error {
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

// writeFile replaces a file of the service's state durably and atomically. It creates parent
// directories; only the user can read them.
func writeFile(path string, data []byte) error {
	if err := atomicfile.MkdirAll(filepath.Dir(path), dirMode); err != nil {
		return fmt.Errorf("writing %s: %w", path, err)
	}
	return atomicfile.WriteFile(path, data, fileMode)
}

// StoreSpec stores the service.yaml of a service whose machines are in clouds. Call it with the lock held.
func (s Service) StoreSpec(text []byte) error { return writeFile(s.SpecFile(), text) }

// StoreValue stores a value about the service as JSON, in a file of that name.
func (s Service) StoreValue(name string, v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("storing %s of %s: %w", name, s.name, err)
	}
	return writeFile(s.configFile(name), data)
}

// LoadValue reads a value that StoreValue stored; v is unchanged where there is none.
func (s Service) LoadValue(name string, v any) error {
	data, err := os.ReadFile(s.configFile(name))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("reading %s: %w", s.configFile(name), err)
	}
	return atomicfile.DecodeJSON(s.configFile(name), data, v)
}

// ServiceAt returns the service with this directory.
func ServiceAt(dir string) Service {
	return Service{home: Home{dir: filepath.Dir(filepath.Dir(dir)), existed: true}, name: filepath.Base(dir), dir: dir}
}
