package local

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"skyserve/internal/testkit"
	"skyserve/provision"
)

// newService returns a service in its own state directory.
func newService(t *testing.T, name string) Service {
	t.Helper()
	t.Setenv(envHome, t.TempDir())
	t.Setenv("GORACE", "atexit_sleep_ms=0") // otherwise a process with the race detector takes a second to end
	home, err := OpenHome()
	if err != nil {
		t.Fatal(err)
	}
	return beside(t, Service{home: home}, name)
}

// beside returns another service in the state directory of svc.
func beside(t *testing.T, svc Service, name string) Service {
	t.Helper()
	other, err := svc.home.Service(name)
	if err != nil {
		t.Fatal(err)
	}
	return other
}

// fakeRecord is a record that `up` passes to a process.
func fakeRecord(t *testing.T, o provision.Object) string {
	t.Helper()
	text, err := json.Marshal(record{Object: o})
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// holdObject makes this process an object, whose file is checked every millisecond.
func holdObject(t *testing.T, svc Service, o provision.Object, lost func()) (release func()) {
	t.Helper()
	return holding(t, svc, o, lost).Release
}

// holding is holdObject and returns the hold.
func holding(t *testing.T, svc Service, o provision.Object, lost func()) *ObjectHold {
	t.Helper()
	if err := os.MkdirAll(svc.objectDir(), dirMode); err != nil {
		t.Fatal(err)
	}
	h, err := holdFile(svc.objectFile(o.ID), fakeRecord(t, o), time.Millisecond, lost)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// only returns the single object of a service.
func only(t *testing.T, svc Service) provision.Object {
	t.Helper()
	objects, err := svc.Objects()
	if err != nil || len(objects) != 1 {
		t.Fatalf("got %+v, %v, want one object", objects, err)
	}
	return objects[0]
}

func TestObjectIsGoneAfterRelease(t *testing.T) {
	testkit.Slow(t)
	svc := newService(t, "chat")
	release := holdObject(t, svc, provision.Object{ID: "us-0", Kind: provision.KindReplica, SpecHash: "s"}, nil)
	if o := only(t, svc); o.TerminatedReason != "" || o.SpecHash != "s" || o.Service != "chat" || o.Handle == "" || o.Started.IsZero() || o.Labels["pid"] != strconv.Itoa(os.Getpid()) {
		t.Errorf("held: got %+v", o)
	}
	if _, err := holdFile(svc.objectFile("us-0"), fakeRecord(t, provision.Object{ID: "us-0"}), time.Second, nil); err == nil || !strings.Contains(err.Error(), "another process has locked it") {
		t.Errorf("a second copy: got %v", err)
	}
	release()
	release() // a second call has no effect
	if o := only(t, svc); !strings.Contains(o.TerminatedReason, "process exited") || o.SpecHash != "s" || o.Labels["pid"] != "" {
		t.Errorf("released: got %+v", o)
	}
}

func TestRemovedObjectFileIsDetected(t *testing.T) {
	svc := newService(t, "chat")
	lost := make(chan struct{})
	release := holdObject(t, svc, provision.Object{ID: "us-0"}, func() { close(lost) })
	defer release()
	if err := os.RemoveAll(svc.Dir()); err != nil {
		t.Fatal(err)
	}
	<-lost
}

func TestDamagedObjectFileIsRepaired(t *testing.T) {
	svc := newService(t, "chat")
	release := holdObject(t, svc, provision.Object{ID: "us-0", SpecHash: "s"}, nil)
	defer release()
	for _, damage := range []string{"", "{", "{}", strings.Repeat("x", 9000)} {
		if err := os.WriteFile(svc.objectFile("us-0"), []byte(damage), fileMode); err != nil {
			t.Fatal(err)
		}
		for only(t, svc).SpecHash != "s" {
			time.Sleep(time.Millisecond)
		}
	}
}

func TestFilesWithoutProcess(t *testing.T) {
	svc := newService(t, "chat")
	for name, text := range map[string]string{"a.json": "{", "b.json": `{"id":"other"}`, ".tmp.json": "{}", "readme": ""} {
		if err := writeFile(filepath.Join(svc.objectDir(), name), []byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	objects, err := svc.Objects()
	if err != nil || len(objects) != 2 {
		t.Fatalf("got %+v, %v", objects, err)
	}
	for i, id := range []string{"a", "b"} {
		if o := objects[i]; o.ID != id || !strings.Contains(o.TerminatedReason, "damaged") {
			t.Errorf("got %+v, want %s, damaged", o, id)
		}
	}
}

func TestHoldRequiresRecord(t *testing.T) {
	t.Setenv(EnvObject, "x")
	t.Setenv(envRecord, "{")
	if _, err := HoldObject(filepath.Join(t.TempDir(), "x.json")); err == nil || !strings.Contains(err.Error(), envRecord) {
		t.Errorf("got %v", err)
	}
	if os.Getenv(EnvObject) != "" || os.Getenv(envRecord) != "" {
		t.Error("a child would believe to be the object")
	}
}

func TestRunningObjectsAreSortedByAddress(t *testing.T) {
	objects := []provision.Object{
		{ID: "a", Kind: provision.KindBalancer, Address: "http://127.0.0.1:10001"},
		{ID: "b", Kind: provision.KindBalancer, Address: "http://127.0.0.1:9002"},
		{ID: "c", Kind: provision.KindBalancer, Address: "http://127.0.0.1:9001", TerminatedReason: "killed"},
		{ID: "d", Kind: provision.KindReplica, Address: "http://127.0.0.1:9003"},
	}
	got := RunningObjects(objects, provision.KindBalancer)
	if len(got) != 2 || got[0].ID != "b" || got[1].ID != "a" {
		t.Errorf("got %+v", got)
	}
}
