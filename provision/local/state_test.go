package local

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
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
	var which *WhichServiceError
	if _, err := home.Find(""); !errors.As(err, &which) || !reflect.DeepEqual(which.Exist, []string{"chat", "talk"}) {
		t.Errorf("two exist: got %v", err)
	}
	for _, name := range []string{"", ".", "..", "a/b", `a\b`} {
		if _, err := home.Service(name); err == nil {
			t.Errorf("%q: want an error", name)
		}
	}
}

// exists tells whether a service has a directory.
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

func TestWriteFileIsPrivateAndWhole(t *testing.T) {
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
		t.Errorf("left beside it: %v, %v", entries, err)
	}
	if err := writeFile(dir, nil); err == nil {
		t.Error("want an error where a directory is in the way")
	}
}

func TestTokensAreKeptOnceSaved(t *testing.T) {
	svc := newService(t, "chat")
	a, err := svc.Tokens()
	if err != nil || len(a.Store) != 64 || len(a.Peer) != 64 || a.Store == a.Peer {
		t.Fatalf("got %+v, %v", a, err)
	}
	if exists(svc) {
		t.Error("reading them made the state directory")
	}
	l := &Layout{svc: svc, tokens: a}
	if err := l.Save(nil); err != nil {
		t.Fatal(err)
	}
	if b, err := svc.Tokens(); err != nil || a != b {
		t.Errorf("got %+v, %v, want the same again", b, err)
	}
}

func TestLockKeepsOthersOut(t *testing.T) {
	svc := newService(t, "chat")
	unlock, err := svc.Lock()
	if err != nil {
		t.Fatal(err)
	}
	var busy *BusyError
	if _, err := svc.Lock(); !errors.As(err, &busy) {
		t.Errorf("got %v", err)
	}
	if err := svc.Remove(); err != nil { // as down does, while it holds the lock
		t.Fatal(err)
	}
	again, err := svc.Lock() // of a directory made anew
	if err != nil {
		t.Fatal(err)
	}
	again()
	unlock()
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
		t.Error("removed although an object is left")
	}
	if err := os.Remove(svc.objectFile("us-0")); err != nil {
		t.Fatal(err)
	}
	if svc.RemoveUnused(); exists(svc) {
		t.Error("not removed although nothing was brought up")
	}
}

func TestExecutablesStayWhileTheyAreUsed(t *testing.T) {
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
	if err := home.Tidy(ctx); err != nil {
		t.Fatal(err)
	}
	if entries, err := os.ReadDir(filepath.Dir(path)); err != nil || len(entries) != 1 {
		t.Errorf("talk still uses it: got %v, %v", entries, err)
	}
	if err := talk.Remove(); err != nil {
		t.Fatal(err)
	}
	for range 2 { // once more is no error
		if err := home.Tidy(ctx); err != nil {
			t.Fatal(err)
		}
	}
	if entries, err := os.ReadDir(home.Dir()); err != nil || len(entries) != 0 {
		t.Errorf("left: %v, %v", entries, err)
	}
}

func TestSlotsStay(t *testing.T) {
	all := map[string]bool{}
	first := deal([]string{"us-0", "us-1", "eu-0"}, nil, all)
	if want := map[string]int{"us-0": 0, "us-1": 1, "eu-0": 2}; !reflect.DeepEqual(first, want) {
		t.Fatalf("got %v, want %v", first, want)
	}
	more := deal([]string{"us-0", "us-1", "us-2", "eu-0"}, first, all)
	if want := map[string]int{"us-0": 0, "us-1": 1, "us-2": 3, "eu-0": 2}; !reflect.DeepEqual(more, want) {
		t.Errorf("one more in the middle: got %v, want %v", more, want)
	}
	less := deal([]string{"us-0", "asia-0"}, more, map[string]bool{"us-1": true})
	if want := map[string]int{"us-0": 0, "us-1": 1, "asia-0": 2}; !reflect.DeepEqual(less, want) {
		t.Errorf("some gone, one of them still running: got %v, want %v", less, want)
	}
	broken := deal([]string{"a", "b"}, map[string]int{"a": 0, "b": 0, "c": -1}, map[string]bool{"c": true})
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
	mustWrite(t, svc.LogFile("us-0"), strings.Repeat("x", tailBytes)+"\nlast\n")
	if lines, err := svc.Tail("us-0", 9); err != nil || !reflect.DeepEqual(lines, []string{"last"}) {
		t.Errorf("a line too long: got %d lines, %v", len(lines), err)
	}
	if ids, err := svc.Logs(); err != nil || !reflect.DeepEqual(ids, []string{"us-0"}) {
		t.Errorf("got %q, %v", ids, err)
	}
}

func TestALongLogBeginsAnew(t *testing.T) {
	path := filepath.Join(t.TempDir(), "us-0.log")
	for _, size := range []int64{logBytes + 1, 0} {
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
	if info, err := os.Stat(path + ".1"); err != nil || info.Size() != logBytes+1 {
		t.Errorf("the old log: got %v, %v", info, err)
	}
}

func TestFollow(t *testing.T) {
	svc := newService(t, "chat")
	mustWrite(t, svc.LogFile("us-0"), "before\n")
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	lines := make(chan string, 10)
	ended := make(chan error, 1)
	f := follower{path: svc.LogFile("us-0"), line: func(s string) { lines <- s }}
	f.open(io.SeekEnd) // what was there before is not told
	appendTo(t, svc.LogFile("us-0"), "par")
	f.drain()
	appendTo(t, svc.LogFile("us-0"), "tial\nwhole\n")
	f.drain()
	f.close()
	if got := []string{<-lines, <-lines}; !reflect.DeepEqual(got, []string{"partial", "whole"}) {
		t.Errorf("got %q", got)
	}
	go func() { ended <- svc.Follow(ctx, "us-1", func(s string) { lines <- s; cancel() }) }()
	for got := ""; got == ""; { // a log that begins anew is told from its beginning, whenever Follow first looks
		mustWrite(t, svc.LogFile("us-1"), "of a log that begins later\n")
		select {
		case got = <-lines:
			if got != "of a log that begins later" {
				t.Errorf("got %q", got)
			}
		case <-time.After(10 * time.Millisecond):
		}
	}
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

func appendTo(t *testing.T, path, text string) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND, fileMode)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteString(text); err != nil {
		t.Fatal(err)
	}
}
