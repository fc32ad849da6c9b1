package local

import (
	"context"
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
)

func TestOpenHome(t *testing.T) {
	tests := []struct{ home, state, user, want string }{
		{"/h", "/s", "/u", "/h"},
		{"", "/s", "/u", "/s/skyserve"},
		{"", "", "/u", "/u/.local/state/skyserve"},
	}
	for _, tt := range tests {
		t.Setenv(envHome, tt.home)
		t.Setenv("XDG_STATE_HOME", tt.state)
		t.Setenv("HOME", tt.user)
		if h, err := OpenHome(); err != nil || h.Dir() != tt.want {
			t.Errorf("got %s, %v, want %s", h.Dir(), err, tt.want)
		}
	}
}

func TestFind(t *testing.T) {
	chat := newService(t, "chat")
	home := chat.Home()
	var none *NoServiceError
	if _, err := home.Find(""); !errors.As(err, &none) {
		t.Errorf("nothing exists: got %v", err)
	}
	mustWrite(t, chat.SpecFile(), "name: chat")
	if s, err := home.Find(""); err != nil || s.Name() != "chat" {
		t.Errorf("the only one: got %q, %v", s.Name(), err)
	}
	if _, err := home.Find("talk"); !errors.As(err, &none) || !strings.Contains(err.Error(), "chat") {
		t.Errorf("an unknown name: got %v, want what exists", err)
	}
	mustWrite(t, beside(t, chat, "talk").SpecFile(), "name: talk")
	var which *SeveralServicesError
	if _, err := home.Find(""); !errors.As(err, &which) || !reflect.DeepEqual(which.Exist, []string{"chat", "talk"}) {
		t.Errorf("two exist: got %v", err)
	}
	for _, name := range []string{"", ".", "..", "a/b", `a\b`} {
		if _, err := home.Service(name); err == nil {
			t.Errorf("%q: want an error", name)
		}
	}
}

// Where no service is found, the error names a state directory that was chosen and does not exist: it may be misspelled.
func TestFindNamesMissingHome(t *testing.T) {
	dir := t.TempDir()
	missing := filepath.Join(dir, "nowhere")
	for name, tt := range map[string]struct{ home, state, service, want string }{
		"missing":         {missing, dir, "", "no service is running on this machine: the directory " + missing + ", which SKYSERVE_HOME selects, does not exist"},
		"missing, named":  {missing, dir, "chat", `service "chat" not found on this machine; no services exist here: the directory ` + missing + `, which SKYSERVE_HOME selects, does not exist`},
		"empty directory": {dir, dir, "", "no service is running on this machine"},
		"not set":         {"", missing, "", "no service is running on this machine"},
	} {
		t.Setenv(envHome, tt.home)
		t.Setenv("XDG_STATE_HOME", tt.state)
		h, err := OpenHome()
		if err == nil {
			_, err = h.Find(tt.service)
		}
		if err == nil || err.Error() != tt.want {
			t.Errorf("%s: got %v, want %s", name, err, tt.want)
		}
	}
}

// exists reports whether a service has a directory.
func exists(svc Service) bool {
	_, err := os.Stat(svc.Dir())
	return err == nil
}

func mustWrite(t *testing.T, path, text string) {
	t.Helper()
	if err := writeFile(path, []byte(text)); err != nil {
		t.Fatal(err)
	}
}

func TestWriteFileIsPrivateAndAtomic(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a", "b")
	path := filepath.Join(dir, "f")
	mustWrite(t, path, "one")
	mustWrite(t, path, "two")
	data, err := os.ReadFile(path)
	info, statErr := os.Stat(path)
	if err != nil || statErr != nil || string(data) != "two" || info.Mode().Perm() != fileMode {
		t.Errorf("got %q, %v, %v", data, info.Mode(), err)
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 1 {
		t.Errorf("the other service: %v, %v", entries, err)
	}
	if err := writeFile(dir, nil); err == nil {
		t.Error("want an error where a directory is in the way")
	}
}

// The token of the admin APIs is stored for other shells. A token in the environment replaces it, even an
// empty one.
func TestAdminToken(t *testing.T) {
	svc := newService(t, "chat")
	for _, tt := range []struct{ set, want string }{{"unset", ""}, {"one", "one"}, {"unset", "one"}, {"", ""}, {"unset", ""}} {
		t.Setenv(EnvAdminToken, tt.set)
		if tt.set == "unset" {
			os.Unsetenv(EnvAdminToken)
		}
		next, err := svc.NextAdminToken()
		if err != nil || next != tt.want {
			t.Fatalf("%q is set: got %q, %v", tt.set, next, err)
		}
		if err := svc.StoreAdminToken(); err != nil {
			t.Fatal(err)
		}
		if got, err := svc.AdminToken(); got != tt.want || err != nil {
			t.Errorf("%q is set: got %q, %v", tt.set, got, err)
		}
	}
}

func TestLockIsExclusive(t *testing.T) {
	svc := newService(t, "chat")
	unlock, err := svc.Lock()
	if err != nil {
		t.Fatal(err)
	}
	var busy *BusyError
	if _, err := svc.Lock(); !errors.As(err, &busy) || err.Error() != lockHolder(os.Args, os.Getpid())+" is changing service chat" {
		t.Errorf("got %v", err)
	}
	if err := svc.Remove(); err != nil { // like down, with the lock held
		t.Fatal(err)
	}
	again, err := svc.Lock() // of the recreated directory
	if err != nil {
		t.Fatal(err)
	}
	again()
	unlock()
}

// A command that waits for another one says so once, after a second, and ends after lockTimeout.
func TestLockWaitNamesTheHolder(t *testing.T) {
	svc := newService(t, "chat")
	unlock, err := svc.Lock()
	if err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		began, notices := time.Now(), []time.Duration{}
		_, err := svc.LockWait(t.Context(), func(busy *BusyError) {
			if !strings.Contains(busy.Error(), " is changing service chat") {
				t.Errorf("got %v", busy)
			}
			notices = append(notices, time.Since(began).Round(time.Second))
		})
		if !slices.Equal(notices, []time.Duration{time.Second}) || time.Since(began).Round(time.Second) != lockTimeout || err == nil {
			t.Errorf("notices after %v, ended after %v: %v", notices, time.Since(began), err)
		}
		unlock()
		again, err := svc.LockWait(t.Context(), func(*BusyError) { t.Error("did not have to wait") })
		if err != nil {
			t.Fatal(err)
		}
		again()
	})
}

// A command that cannot lock a service names what holds the lock.
func TestLockHolder(t *testing.T) {
	for want, args := range map[string][]string{
		"'skyserve up' (process 7)":   {"skyserve", "up", "service.yaml"},
		"the controller (process 7)":  {"/usr/bin/skyserve", "node", "--config", "x"},
		"another command (process 7)": {"skyserve", "--yes"},
	} {
		if got := lockHolder(args, 7); got != want {
			t.Errorf("%q: got %q, want %q", args, got, want)
		}
	}
	if got := (&BusyError{Service: "chat"}).Error(); got != "another skyserve command is changing service chat" {
		t.Errorf("unknown holder: %q", got)
	}
}

func TestRemoveUnused(t *testing.T) {
	svc := newService(t, "chat")
	unlock, err := svc.Lock()
	if err != nil {
		t.Fatal(err)
	}
	defer unlock()
	mustWrite(t, svc.objectFile("us-0"), "{")
	if svc.RemoveUnused(); !exists(svc) {
		t.Error("removed although an object remains")
	}
	if err := os.Remove(svc.objectFile("us-0")); err != nil {
		t.Fatal(err)
	}
	mustWrite(t, svc.configFile(FileAdmins), "[]")
	if svc.RemoveUnused(); !exists(svc) {
		t.Error("removed although it has the keys of an invited operator")
	}
	if err := os.Remove(svc.configFile(FileAdmins)); err != nil {
		t.Fatal(err)
	}
	if svc.RemoveUnused(); exists(svc) {
		t.Error("not removed although nothing was brought up")
	}
}

// A state directory that existed before is not removed, also if nothing else is in it.
func TestRemoveUnusedKeepsExistingHome(t *testing.T) {
	existing := t.TempDir()
	for _, dir := range []string{existing, filepath.Join(t.TempDir(), "new")} {
		t.Setenv(envHome, dir)
		home, err := OpenHome()
		if err != nil {
			t.Fatal(err)
		}
		svc, err := home.Service("chat")
		if err != nil {
			t.Fatal(err)
		}
		unlock, err := svc.Lock()
		if err != nil {
			t.Fatal(err)
		}
		svc.RemoveUnused()
		unlock()
		if _, err := os.Stat(filepath.Join(dir, dirServices)); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s has a directory of services: %v", dir, err)
		}
		if _, err := os.Stat(dir); (err == nil) != (dir == existing) {
			t.Errorf("%s: %v", dir, err)
		}
	}
}

func TestCleanUpKeepsUsedBinaries(t *testing.T) {
	ctx := context.Background()
	chat := newService(t, "chat")
	talk, home := beside(t, chat, "talk"), chat.Home()
	path, build, err := chat.Install(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if again, _, err := talk.Install(ctx); err != nil || again != path {
		t.Errorf("got %s, %v, want the same %s", again, err, path)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != binaryMode || !strings.HasSuffix(path, build) {
		t.Errorf("got %v, %v", info, err)
	}
	mustWrite(t, filepath.Join(home.Dir(), dirBin, ".copy.123"), "half a copy")
	if err := chat.Remove(); err != nil {
		t.Fatal(err)
	}
	if err := home.CleanUp(ctx); err != nil {
		t.Fatal(err)
	}
	if entries, err := os.ReadDir(filepath.Dir(path)); err != nil || len(entries) != 1 {
		t.Errorf("talk still uses it: got %v, %v", entries, err)
	}
	if err := talk.Remove(); err != nil {
		t.Fatal(err)
	}
	for range 2 { // a second call is not an error
		if err := home.CleanUp(ctx); err != nil {
			t.Fatal(err)
		}
	}
	if entries, err := os.ReadDir(home.Dir()); err != nil || len(entries) != 0 {
		t.Errorf("remaining: %v, %v", entries, err)
	}
}

func TestSlotsStay(t *testing.T) {
	all := map[string]bool{}
	first := assignFreeSlots([]string{"us-0", "us-1", "eu-0"}, nil, all)
	if want := map[string]int{"us-0": 0, "us-1": 1, "eu-0": 2}; !reflect.DeepEqual(first, want) {
		t.Fatalf("got %v, want %v", first, want)
	}
	more := assignFreeSlots([]string{"us-0", "us-1", "us-2", "eu-0"}, first, all)
	if want := map[string]int{"us-0": 0, "us-1": 1, "us-2": 3, "eu-0": 2}; !reflect.DeepEqual(more, want) {
		t.Errorf("one more in the middle: got %v, want %v", more, want)
	}
	less := assignFreeSlots([]string{"us-0", "asia-0"}, more, map[string]bool{"us-1": true})
	if want := map[string]int{"us-0": 0, "us-1": 1, "asia-0": 2}; !reflect.DeepEqual(less, want) {
		t.Errorf("some exited, one still running: got %v, want %v", less, want)
	}
	broken := assignFreeSlots([]string{"a", "b"}, map[string]int{"a": 0, "b": 0, "c": -1}, map[string]bool{"c": true})
	if want := map[string]int{"a": 0, "b": 1}; !reflect.DeepEqual(broken, want) {
		t.Errorf("a damaged file: got %v, want %v", broken, want)
	}
}

func TestTail(t *testing.T) {
	svc := newService(t, "chat")
	if lines, err := svc.Tail("us-0", 5); err != nil || lines != nil {
		t.Errorf("no log: got %q, %v", lines, err)
	}
	mustWrite(t, svc.LogFile("us-0"), "one\ntwo\nthree\n")
	for n, want := range map[int][]string{0: nil, 2: {"two", "three"}, 9: {"one", "two", "three"}} {
		if lines, err := svc.Tail("us-0", n); err != nil || !reflect.DeepEqual(lines, want) {
			t.Errorf("%d: got %q, %v, want %q", n, lines, err, want)
		}
	}
	if lines, err := tailFrom(svc.LogFile("us-0"), 4, 9); err != nil || !reflect.DeepEqual(lines, []string{"two", "three"}) {
		t.Errorf("from the second line on: got %q, %v", lines, err)
	}
	mustWrite(t, svc.LogFile("us-0"), strings.Repeat("x", maxTailBytes)+"\nlast\n")
	if lines, err := svc.Tail("us-0", 9); err != nil || !reflect.DeepEqual(lines, []string{"last"}) {
		t.Errorf("a line too long: got %d lines, %v", len(lines), err)
	}
	if ids, err := svc.Logs(); err != nil || !reflect.DeepEqual(ids, []string{"us-0"}) {
		t.Errorf("got %q, %v", ids, err)
	}
}

func TestLongLogIsRotated(t *testing.T) {
	path := filepath.Join(t.TempDir(), "us-0.log")
	for _, size := range []int64{maxLogBytes + 1, 0} {
		f, err := openLog(path)
		if err != nil {
			t.Fatal(err)
		}
		if f.size() != 0 {
			t.Errorf("begins with %d bytes", f.size())
		}
		if err := f.Truncate(size); err != nil {
			t.Fatal(err)
		}
		f.Close()
	}
	if info, err := os.Stat(path + ".1"); err != nil || info.Size() != maxLogBytes+1 {
		t.Errorf("the old log: got %v, %v", info, err)
	}
}
