package local

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"skyserve/provision"
)

const (
	// maxRecordBytes is the maximum number of bytes that are read from an object file.
	maxRecordBytes = 64 << 10
	// A process writes its record in much less time than maxReadAttempts times readRetryInterval.
	maxReadAttempts   = 10
	readRetryInterval = 5 * time.Millisecond
)

// record is the content of a process's object file.
type record struct {
	provision.Object
	PID int `json:"pid"`
}

// Objects reads every object of the service, sorted by id. An object that no process holds has a
// TerminatedReason. An unreadable file is also an object, with its id and a description of the problem.
func (s Service) Objects() ([]provision.Object, error) {
	entries, err := os.ReadDir(s.objectDir())
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("listing the objects of %s: %w", s.name, err)
	}
	var objects []provision.Object
	for _, e := range entries {
		id, isObject := strings.CutSuffix(e.Name(), ".json")
		if !isObject || strings.HasPrefix(id, ".") {
			continue
		}
		rec, alive, err := readObject(s.objectFile(id))
		if errors.Is(err, fs.ErrNotExist) {
			continue // removed since the directory was read
		}
		objects = append(objects, s.objectFromRecord(id, rec, alive, err))
	}
	return objects, nil
}

// objectFromRecord converts the content of an object file to an object.
func (s Service) objectFromRecord(id string, rec record, alive bool, err error) provision.Object {
	o := rec.Object
	o.ID, o.Service = id, s.name
	if rec.PID != 0 && o.Handle == "" { // an earlier version without machines wrote it
		o.Handle = strconv.Itoa(rec.PID)
	}
	if rec.PID != 0 && alive { // another process may have the number of one that has ended
		o.Labels = maps.Clone(o.Labels)
		if o.Labels == nil {
			o.Labels = map[string]string{}
		}
		o.Labels["pid"] = strconv.Itoa(rec.PID)
	}
	switch {
	case alive && err != nil:
		o.Labels = map[string]string{"problem": err.Error()}
	case err != nil:
		o.TerminatedReason = "object file is damaged"
	case !alive:
		o.TerminatedReason = "process exited (pid " + strconv.Itoa(rec.PID) + ")"
	}
	return o
}

// readObject reads an object file and reports whether a process holds it. If alive is true, an error means
// that the process runs but its record is unreadable. readObject retries first, because the process may be
// writing the record.
func readObject(path string) (rec record, alive bool, err error) {
	for range maxReadAttempts {
		rec, alive, err = readObjectOnce(path)
		if !alive || err == nil {
			break
		}
		time.Sleep(readRetryInterval)
	}
	return rec, alive, err
}

func readObjectOnce(path string) (rec record, alive bool, err error) {
	f, err := os.Open(path)
	if err != nil {
		return record{}, false, fmt.Errorf("reading the object file %s: %w", path, err)
	}
	defer f.Close()
	alive = isLocked(f)
	data, err := io.ReadAll(io.LimitReader(f, maxRecordBytes))
	if err == nil {
		err = json.Unmarshal(data, &rec)
	}
	if err == nil && rec.PID <= 0 {
		err = errors.New("pid is required")
	}
	if err != nil {
		return record{}, alive, fmt.Errorf("reading the object file %s: %w", path, err)
	}
	return rec, alive, nil
}

// RunningObjects returns the running objects of one kind, sorted by address, that is, by port.
func RunningObjects(objects []provision.Object, kind provision.ObjectKind) []provision.Object {
	var running []provision.Object
	for _, o := range objects {
		if o.Kind == kind && o.TerminatedReason == "" {
			running = append(running, o)
		}
	}
	slices.SortFunc(running, func(a, b provision.Object) int {
		return cmp.Or(cmp.Compare(len(a.Address), len(b.Address)), cmp.Compare(a.Address, b.Address), cmp.Compare(a.ID, b.ID))
	})
	return running
}
