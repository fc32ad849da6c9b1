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
	// maxRecordBytes bounds what is read of an object file.
	maxRecordBytes = 64 << 10
	// A process writes its record in well under readTries times readAgain.
	readTries = 10
	readAgain = 5 * time.Millisecond
)

// record is what a process writes into its object file.
type record struct {
	provision.Object
	PID int `json:"pid"`
}

// Objects reads every object of the service, sorted by id. An object that no
// process holds has Gone set. A file that cannot be read is an object as well:
// it has its id and says what is wrong.
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
		objects = append(objects, s.describe(id, rec, alive, err))
	}
	return objects, nil
}

// describe makes an object of what was found in its file.
func (s Service) describe(id string, rec record, alive bool, err error) provision.Object {
	o := rec.Object
	o.ID, o.Service = id, s.name
	if rec.PID != 0 && o.Handle == "" { // of a version before machines
		o.Handle = strconv.Itoa(rec.PID)
	}
	if rec.PID != 0 {
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
		o.Gone = "its object file is damaged"
	case !alive:
		o.Gone = "its process (pid " + strconv.Itoa(rec.PID) + ") is gone"
	}
	return o
}

// readObject reads an object file and tells whether a process holds it. The
// error may stand beside alive = true: a process lives, its record is not
// readable. That is looked at again, since it may be writing just now.
func readObject(path string) (rec record, alive bool, err error) {
	for range readTries {
		rec, alive, err = readObjectOnce(path)
		if !alive || err == nil {
			break
		}
		time.Sleep(readAgain)
	}
	return rec, alive, err
}

func readObjectOnce(path string) (rec record, alive bool, err error) {
	f, err := os.Open(path)
	if err != nil {
		return record{}, false, fmt.Errorf("reading object %s: %w", path, err)
	}
	defer f.Close()
	alive = locked(f)
	data, err := io.ReadAll(io.LimitReader(f, maxRecordBytes))
	if err == nil {
		err = json.Unmarshal(data, &rec)
	}
	if err == nil && rec.PID <= 0 {
		err = errors.New("no process id in it")
	}
	if err != nil {
		return record{}, alive, fmt.Errorf("reading object %s: %w", path, err)
	}
	return rec, alive, nil
}

// Running picks the objects of one kind that run, in the order of their
// addresses, which is the order in which they were added to the service.
func Running(objects []provision.Object, kind provision.Kind) []provision.Object {
	var running []provision.Object
	for _, o := range objects {
		if o.Kind == kind && o.Gone == "" {
			running = append(running, o)
		}
	}
	slices.SortFunc(running, func(a, b provision.Object) int {
		return cmp.Or(cmp.Compare(len(a.Address), len(b.Address)), cmp.Compare(a.Address, b.Address), cmp.Compare(a.ID, b.ID))
	})
	return running
}
