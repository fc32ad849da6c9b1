package deploy_test

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"skyserve/internal/agent"
	"skyserve/internal/controller"
	"skyserve/internal/controller/deploy"
	"skyserve/internal/identity"
	"skyserve/internal/service"
	"skyserve/provision"
)

// testStore is the records of one service in the store.
type testStore struct {
	values map[string]string
	tokens map[string]int
	term   int
	down   bool
}

// nextTerm returns the records of a new leader.
func (s *testStore) nextTerm() controller.Records {
	if s.values == nil {
		s.values, s.tokens = map[string]string{}, map[string]int{}
	}
	s.term++
	return testRecords{s, s.term}
}

type testRecords struct {
	*testStore
	token int
}

var (
	errSuperseded = errors.New("a later leader has written")
	errDown       = errors.New("the store does not respond")
)

// read decodes a record.
func (s *testStore) read(t *testing.T, name string, value any) {
	t.Helper()
	if err := json.Unmarshal([]byte(s.values[name]), value); err != nil {
		t.Fatal(err)
	}
}

func (r testRecords) Load(_ context.Context, name string, value any) (bool, error) {
	switch {
	case r.down:
		return false, errDown
	case r.tokens[name] > r.token:
		return false, errSuperseded
	}
	r.tokens[name] = r.token
	if text := r.values[name]; text != "" {
		if json.Unmarshal([]byte(text), value) != nil {
			return false, controller.ErrDamagedRecord
		}
		return true, nil
	}
	return false, nil
}

func (r testRecords) Read(_ context.Context, name string, value any) error {
	if r.down {
		return errDown
	}
	if text := r.values[name]; text != "" && json.Unmarshal([]byte(text), value) != nil {
		return controller.ErrDamagedRecord
	}
	return nil
}

func (r testRecords) Store(_ context.Context, name string, value any) error {
	switch {
	case r.down:
		return errDown
	case r.tokens[name] > r.token:
		return errSuperseded
	}
	text, err := json.Marshal(value)
	r.values[name], r.tokens[name] = string(text), r.token
	return err
}

// standby returns a reconciler on another machine: with its own copy of the bundle, and leading.
func (u *boundedWorld) standby(t *testing.T) *deploy.Reconciler {
	t.Helper()
	dir := t.TempDir()
	if err := os.CopyFS(dir, os.DirFS(u.dir)); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"launches.json", "leaving.json"} {
		if err := os.Remove(filepath.Join(dir, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			t.Fatal(err)
		}
	}
	for _, name := range []string{identity.FileController, identity.FileDelegated} {
		if err := os.Chmod(filepath.Join(dir, name), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	rc := u.started()
	rc.Dir = dir
	return rc
}

// A standby on another machine continues with the leader's backoffs, its launches of the last hour, its
// failures and its decisions.
func TestStandbyHasTheLeadersRecords(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u, rc := newBoundedWorld(t)
		u.reconcileFor(t, rc, time.Minute, always)
		u.status = func(o provision.Object, s *agent.Status) {
			if o.ID == "us-east-1-2" {
				s.Phase, s.Reason = agent.PhaseFailed, "engine: container exited"
			}
		}
		if launched, err := rc.Apply(t.Context(), scaleOut(1), always); len(launched) != 1 || err != nil {
			t.Fatalf("launched %q: %v", launched, err)
		}
		u.reconcileEvery(t, rc, 30*time.Second, 31*time.Minute) // it is given up
		drain := controller.CapacityChange{Drain: []controller.ReplicaDrain{{ID: "us-east-1-1", Donation: service.Donation{Since: time.Now(), Until: time.Now()}}}}
		if _, err := rc.Apply(t.Context(), drain, always); err != nil {
			t.Fatal(err)
		}
		before, err := rc.Current()
		if err != nil || len(before.Launches.Backoffs) == 0 || len(before.Launches.Failures) == 0 || before.Launches.LastHour == 0 {
			t.Fatalf("the leader: %+v, %v", before.Launches, err)
		}

		next := u.standby(t)
		launches := len(u.launches)
		u.reconcileEvery(t, next, 5*time.Second, 5*time.Second)
		after, err := next.Current()
		if err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(after.Launches, before.Launches) {
			t.Errorf("the standby: %+v, the leader: %+v", after.Launches, before.Launches)
		}
		if len(u.launches) != launches {
			t.Errorf("the standby launched %d machines within the backoff", len(u.launches)-launches)
		}
		i := slices.IndexFunc(after.Replicas, func(r controller.CurrentReplica) bool { return r.ID == "us-east-1-1" })
		if i < 0 || after.Replicas[i].Donation == nil {
			t.Errorf("the drain was forgotten: %+v", after.Replicas)
		}

		// The old leader was only stopped, and resumes.
		if _, err := rc.Apply(t.Context(), controller.CapacityChange{Reclaim: []string{"us-east-1-1"}}, always); !errors.Is(err, errSuperseded) {
			t.Errorf("the superseded leader's decision: %v", err)
		}
	})
}

// Files of an earlier version are imported once and removed.
func TestFilesOfEarlierVersionAreImported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u, _ := newBoundedWorld(t)
		write := func(name, text string) {
			if err := os.WriteFile(filepath.Join(u.dir, name), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		since, _ := json.Marshal(time.Now())
		failure := `{"launches":[],"seen":{},"failures":[{"at":` + string(since) + `,"replica":"us-east-1-9","model":"llama","region":"aws/us-east-1","reason":"WHY","log":[]}]}`
		write("launches.json", strings.Replace(failure, "WHY", "not ready within 30m0s", 1))
		write("leaving.json", `{"drained":["us-east-1-0"],"donated":[]}`)
		rc := u.started()
		u.store.down = true
		u.reconcileFor(t, rc, 10*time.Second, always)
		if _, err := rc.Current(); err == nil {
			t.Error("it observed while its records were unknown")
		}
		u.store.down = false
		u.reconcileFor(t, rc, 10*time.Second, always)
		current, err := rc.Current()
		if err != nil || len(current.Launches.Failures) != 1 {
			t.Errorf("%+v, %v", current.Launches, err)
		}
		if !slices.ContainsFunc(current.Replicas, func(r controller.CurrentReplica) bool { return r.ID == "us-east-1-0" && r.Drained }) {
			t.Errorf("the decision was not imported: %+v", current.Replicas)
		}
		for _, name := range []string{"launches.json", "leaving.json"} {
			if _, err := os.Stat(filepath.Join(u.dir, name)); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("%s: %v", name, err)
			}
		}

		write("launches.json", strings.Replace(failure, "WHY", "older than the store", 1))
		rc = u.started()
		u.reconcileFor(t, rc, 10*time.Second, always)
		if current, err = rc.Current(); err != nil || len(current.Launches.Failures) != 1 || strings.Contains(current.Launches.Failures[0].Reason, "older") {
			t.Errorf("after a second import: %+v, %v", current.Launches, err)
		}
	})
}

// A damaged record is replaced: it must not stop replacements.
func TestDamagedRecordsAreReplaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u, _ := newBoundedWorld(t)
		for _, name := range []string{"launches", "decisions", "spot"} {
			u.store.values[name] = `{"seen": 7, "drained": "all", "pools": {}}`
		}
		u.ChangeObject("us-east-1-0", nil)
		u.reconcileFor(t, u.started(), time.Minute, always)
		if got := u.replicas(); len(got) != 2 {
			t.Errorf("%q run, want two", got)
		}
		if text := u.store.values["launches"]; !strings.Contains(text, `"seen":{"`) {
			t.Errorf("stored %s", text)
		}
	})
}
