package store

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"skyserve/internal/telemetry"
	"skyserve/internal/testkit"
)

// backedUp returns a store of the service chat with data of every kind.
func backedUp(t *testing.T, st *Store) {
	t.Helper()
	put(t, st, "desired.x", "1")
	put(t, st, "desired.x", "2")
	// A cluster may elect another leader while its machine is busy.
	testkit.Eventually(t, "points, a batch and a file are written", func() bool {
		err := st.AppendPoints(t.Context(), []telemetry.Point{{Minute: 1, Balancer: "b", Requests: 3}, {Minute: 2, Balancer: "b", Requests: 4}})
		_, batchErr := st.BatchRecords().Put(t.Context(), "batch.1", []byte("job"))
		_, fileErr := st.WriteObject(t.Context(), "file", strings.NewReader(strings.Repeat("line\n", 100_000)))
		return errors.Join(err, batchErr, fileErr) == nil
	})
}

// contents returns the data of backedUp.
func contents(t *testing.T, st *Store) (all []string) {
	t.Helper()
	value, revision, err := read(t, st, "desired.x")
	all = append(all, fmt.Sprintf("desired.x=%s@%d %v", value, revision, err))
	err = st.ReadPoints(t.Context(), 0, func(p telemetry.Point) error {
		all = append(all, fmt.Sprintf("minute %d: %d", p.Minute, p.Requests))
		return nil
	})
	job, _, jobErr := st.BatchRecords().Get(t.Context(), "batch.1")
	return append(all, fmt.Sprintf("%v batch.1=%s %v", err, job, jobErr))
}

// backup returns a backup of a service.
func backup(t *testing.T, st *Store, service string) []byte {
	t.Helper()
	var file bytes.Buffer
	b, err := st.WriteBackup(t.Context(), &file, service, "v1.2.3")
	if err != nil {
		t.Fatal(err)
	}
	checked, err := CheckBackup(bytes.NewReader(file.Bytes()))
	if err != nil || checked.Service != service || checked.Version != "v1.2.3" || !checked.At.Equal(b.At) || !slices.Equal(checked.Streams, b.Streams) {
		t.Fatalf("checked %+v, %v; want %+v", checked, err, b)
	}
	return file.Bytes()
}

// awaitRemovals waits until a server has removed the directories of deleted streams, which NATS renames and then removes
// in the background. A stream that is deleted twice before that keeps its messages, and its restore fails with the
// error 10062.
func awaitRemovals(t *testing.T, dir string) {
	t.Helper()
	testkit.Eventually(t, "the directories of deleted streams are removed", func() bool {
		left, err := filepath.Glob(filepath.Join(dir, "jetstream", "*", "streams", ".*"))
		return err == nil && len(left) == 0
	})
}

// chatStore connects to a server as the service chat.
func chatStore(t *testing.T, srv *Server) *Store {
	t.Helper()
	st := must[*Store](t)(Connect(t.Context(), srv.URL(), "secret", ForService("chat")))
	t.Cleanup(st.Close)
	return st
}

// A store that has no data of the service yet, such as a cluster that is starting, must not yield a backup that
// looks like one.
func TestBackupWithoutDataIsRefused(t *testing.T) {
	st := chatStore(t, serve(t, t.TempDir()))
	var file bytes.Buffer
	if _, err := st.WriteBackup(t.Context(), &file, "chat", "v1.2.3"); err == nil || !strings.Contains(err.Error(), "no data of the service chat") || file.Len() > 0 {
		t.Errorf("an empty store: %d bytes, error %v", file.Len(), err)
	}
}

// A backup contains everything of its service and nothing of another one, and is restored into a new store, which
// continues with its revisions.
func TestBackupIsRestoredIntoNewStore(t *testing.T) {
	testkit.Slow(t)
	t.Parallel()
	srv := serve(t, t.TempDir())
	st := chatStore(t, srv)
	backedUp(t, st)
	other := must[*Store](t)(Connect(t.Context(), srv.URL(), "secret", ForService("chat2")))
	t.Cleanup(other.Close)
	must[uint64](t)(other.Put(t.Context(), "desired.x", []byte("of chat2")))
	file, want := backup(t, st, "chat"), contents(t, st)
	if d, err := openBackup(bytes.NewReader(file)); err != nil || len(d.Streams) != 4 || strings.Contains(fmt.Sprint(d.Streams), "chat2") {
		t.Errorf("%+v, %v", d, err)
	}

	next := chatStore(t, serve(t, t.TempDir()))
	must[uint64](t)(next.Put(t.Context(), "desired.new", nil)) // the new service has begun
	watched, end := context.WithCancel(t.Context())
	defer end()
	changes := next.Watch(watched, "desired.")
	<-changes
	b, err := next.RestoreBackup(t.Context(), bytes.NewReader(file), "chat", false)
	if err != nil || b.Service != "chat" || b.Messages == 0 || b.Bytes == 0 {
		t.Fatalf("%+v, %v", b, err)
	}
	if got := contents(t, next); !slices.Equal(got, want) {
		t.Errorf("restored %q, want %q", got, want)
	}
	_, last, _ := read(t, st, "desired.x")
	if revision := put(t, next, "desired.x", "3"); revision <= last {
		t.Errorf("revision %d after %d", revision, last)
	}
	testkit.Eventually(t, "a watch of before sees writes of after", func() bool {
		c := <-changes
		return c.Key == "desired.x" && string(c.Value) == "3"
	})
}

// A restore right after the start of a service waits until the balancer has reached the store.
func TestRestoreWaitsForConnection(t *testing.T) {
	testkit.Slow(t)
	t.Parallel()
	st := chatStore(t, serve(t, t.TempDir()))
	backedUp(t, st)
	file, want := backup(t, st, "chat"), contents(t, st)
	addr := testkit.FreeAddr()
	next := must[*Store](t)(Connect(t.Context(), "nats://"+addr, "secret", Lazy(), ForService("chat")))
	t.Cleanup(next.Close)
	restored := make(chan error)
	go func() {
		_, err := next.RestoreBackup(t.Context(), bytes.NewReader(file), "chat", false)
		restored <- err
	}()
	srv := must[*Server](t)(Serve(t.Context(), Options{Dir: t.TempDir(), Listen: addr, Token: "secret"}))
	t.Cleanup(srv.Close)
	if err := <-restored; err != nil {
		t.Fatal(err)
	}
	if got := contents(t, next); !slices.Equal(got, want) {
		t.Errorf("restored %q, want %q", got, want)
	}
}

// The running store that a backup came from is only replaced with force, and by the backup of its own service.
func TestRestoreKeepsNewerDataUnlessForced(t *testing.T) {
	testkit.Slow(t)
	t.Parallel()
	st := chatStore(t, serve(t, t.TempDir()))
	backedUp(t, st)
	file, want := backup(t, st, "chat"), contents(t, st)
	must[uint64](t)(st.Put(t.Context(), "desired.x", []byte("written later")))
	restore := func(file []byte, service string, force bool) error {
		_, err := st.RestoreBackup(t.Context(), bytes.NewReader(file), service, force)
		return err
	}
	var newer *telemetry.NewerStoreError
	if err := restore(file, "chat", false); !errors.As(err, &newer) || !strings.Contains(err.Error(), "discards everything stored since the backup") {
		t.Errorf("got %v", err)
	}
	var bad *telemetry.BackupError
	if err := restore(file, "other", true); !errors.As(err, &bad) || bad.Problem != "it is a backup of the service chat, not of other" {
		t.Errorf("got %v", err)
	}
	if v, _, err := read(t, st, "desired.x"); err != nil || string(v) != "written later" {
		t.Errorf("got %q, %v", v, err)
	}
	if err := restore(file, "chat", true); err != nil {
		t.Fatal(err)
	}
	if got := contents(t, st); !slices.Equal(got, want) {
		t.Errorf("restored %q, want %q", got, want)
	}
}

// A restore that fails after it began is not that of a rejected backup, which changes nothing.
func TestDamageDuringRestoreIsNotRejection(t *testing.T) {
	testkit.Slow(t)
	t.Parallel()
	st := chatStore(t, serve(t, t.TempDir()))
	put(t, st, "desired.x", "1")
	file := backup(t, st, "chat")
	_, err := st.RestoreBackup(t.Context(), bytes.NewReader(file[:len(file)-20]), "chat", true)
	if err == nil || errors.As(err, new(*telemetry.BackupError)) || !strings.Contains(err.Error(), "truncated") {
		t.Errorf("got %v", err)
	}
}

// unzip returns the content of a gzip file; nil if it is damaged.
func unzip(file []byte) []byte {
	z, err := gzip.NewReader(bytes.NewReader(file))
	if err != nil {
		return nil
	}
	text, err := io.ReadAll(z)
	if err != nil {
		return nil
	}
	return text
}

// A backup with any one damaged byte, or truncated at any byte, is rejected.
func TestDamagedBackups(t *testing.T) {
	testkit.Slow(t)
	t.Parallel()
	st := chatStore(t, serve(t, t.TempDir()))
	put(t, st, "desired.x", "1")
	file := backup(t, st, "chat")
	check := func(what string, file []byte, problem string) {
		t.Helper()
		var bad *telemetry.BackupError
		if _, err := CheckBackup(bytes.NewReader(file)); !errors.As(err, &bad) || !strings.Contains(bad.Problem, problem) {
			t.Errorf("%s: %v", what, err)
		}
	}
	for n := range len(file) {
		check(fmt.Sprintf("%d of %d bytes", n, len(file)), file[:n], "truncated")
	}
	for i := 10; i < len(file); i++ { // the bytes before are the header of gzip, with a time and a system
		wrong := slices.Clone(file)
		wrong[i] ^= 0x10
		if !bytes.Equal(unzip(wrong), unzip(file)) { // some bits of a compressed file have no meaning
			check(fmt.Sprintf("byte %d changed", i), wrong, "")
		}
	}
	check("text", []byte("name: chat\n"), "it is not a backup")
	check("a short text", []byte("hello\n"), "it is empty, truncated, or not a backup")
	check("more", append(slices.Clone(file), file...), "something follows its end")

	zip := func(text string) []byte {
		var b bytes.Buffer
		z := gzip.NewWriter(&b)
		_, _ = io.WriteString(z, text)
		z.Close()
		return b.Bytes()
	}
	check("a later format", zip(`{"format":2,"service":"chat","version":"v9.0.0","streams":[]}`+"\n"), "skyserve v9.0.0 made it in format 2; this version reads formats up to 1: upgrade skyserve")
	check("another JSON", zip(`{"name":"chat"}`+"\n"), "it is not a backup")
	check("a stream that is missing", zip(`{"format":1,"service":"chat","streams":["KV_skyserve_chat_state"]}`+"\n"+`{"end":true}`+"\n"), "stream KV_skyserve_chat_state is missing")
	foreign := zip(`{"format":1,"service":"chat","streams":["KV_skyserve_chat2_state"]}` + "\n")
	if _, err := st.RestoreBackup(t.Context(), bytes.NewReader(foreign), "chat", true); err == nil || !strings.Contains(err.Error(), "does not belong to the service chat") {
		t.Errorf("a stream of another service: %v", err)
	}
	if v, _, err := read(t, st, "desired.x"); err != nil || string(v) != "1" {
		t.Errorf("got %q, %v", v, err)
	}
}

// A backup that cannot be read, for example from a bucket without a connection, is not reported as a damaged one.
func TestUnreadableBackups(t *testing.T) {
	testkit.Slow(t)
	t.Parallel()
	dir := t.TempDir()
	st := chatStore(t, serve(t, dir))
	put(t, st, "desired.x", "1")
	file := backup(t, st, "chat")
	for _, cause := range []error{
		errors.New("connection reset"),
		&url.Error{Op: "Get", URL: "https://bucket", Err: io.EOF}, // a response without a body
		io.ErrUnexpectedEOF,                                       // a response that is shorter than its length
	} {
		for _, n := range []int{0, 5, len(file) / 2, len(file)} {
			unreadable := func() io.Reader {
				return io.MultiReader(bytes.NewReader(file[:n]), iotest.ErrReader(cause))
			}
			_, checked := CheckBackup(unreadable())
			awaitRemovals(t, dir)
			_, restored := st.RestoreBackup(t.Context(), unreadable(), "chat", true)
			for operation, err := range map[string]error{"checking": checked, "restoring": restored} {
				if err == nil || errors.As(err, new(*telemetry.BackupError)) || !errors.As(err, new(*ReadError)) || !strings.Contains(err.Error(), cause.Error()) {
					t.Errorf("%s after %d of %d bytes: got %v, want %v", operation, n, len(file), err, cause)
				}
			}
		}
	}
}

// A backup of a single store is restored into a cluster, and replicated. Its members check their health meanwhile: NATS
// marks the end of a restore without a lock.
func TestBackupIsRestoredIntoCluster(t *testing.T) {
	testkit.Slow(t)
	t.Parallel()
	single := chatStore(t, serve(t, t.TempDir()))
	backedUp(t, single)
	file, want := backup(t, single, "chat"), contents(t, single)
	c := newTestCluster(t, "a", "b", "c")
	c.checkEvery = 10 * time.Millisecond
	c.start(c.nodes...)
	c.waitReplicated()
	st := c.client("a")
	put(t, st, "desired.new", "1")
	force := false
	testkit.Eventually(t, "it is restored", func() bool { // it has to be repeated after an error, such as of a slow election
		_, err := st.RestoreBackup(t.Context(), bytes.NewReader(file), "chat", force)
		if force = err != nil; force {
			t.Log(err)
		}
		return err == nil
	})
	testkit.Eventually(t, "its data is read", func() bool { return slices.Equal(contents(t, st), want) })
	c.waitReplicated()
	if again := backup(t, st, "chat"); len(again) < len(file)/2 {
		t.Errorf("the backup of the cluster has %d bytes, that of the single store %d", len(again), len(file))
	}
}

// FuzzBackup checks that no input makes CheckBackup panic, and that an input without the end of a backup is an error.
func FuzzBackup(f *testing.F) {
	var good bytes.Buffer
	z := gzip.NewWriter(&good)
	_, _ = io.WriteString(z, `{"format":1,"service":"chat","streams":["S"]}`+"\n"+`{"config":{"name":"S"}}`+"\n"+`{"chunk":1}`+"\nx"+`{"stream":"S","sha256":"2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881"}`+"\n"+`{"end":true}`+"\n")
	z.Close()
	if _, err := CheckBackup(bytes.NewReader(good.Bytes())); err != nil {
		f.Fatal(err)
	}
	f.Add(good.Bytes())
	f.Fuzz(func(t *testing.T, data []byte) {
		b, err := CheckBackup(bytes.NewReader(data))
		if err == nil && (b.Format != 1 || b.Service == "" || b.At.After(time.Now().AddDate(1000, 0, 0))) {
			t.Errorf("accepted %+v", b)
		}
	})
}

// The error about the directory of a running store is about the backup: nothing starts.
func TestBackupDirOfRunningStore(t *testing.T) {
	dir := t.TempDir()
	put(t, chatStore(t, serve(t, dir)), "desired.x", "1")
	err := BackupDir(t.Context(), dir, io.Discard, "chat", "v1")
	if err == nil || !strings.HasPrefix(err.Error(), "locking directory "+dir+": ") || !strings.HasSuffix(err.Error(), "; stop any other store that uses it") {
		t.Errorf("got %v", err)
	}
}

// Two of three members are lost with their disks: the data is backed up from the third one's, and restored into a new
// store.
func TestBackupOfLastDisk(t *testing.T) {
	testkit.Slow(t)
	t.Parallel()
	c := newTestCluster(t, "a", "b", "c")
	c.start(c.nodes...)
	c.waitReplicated()
	st := c.client("a")
	backedUp(t, st)
	put(t, st, "desired.y", "last")
	c.waitReplicated()
	want := contents(t, st)
	survivor := map[string]string{"a": "b", "b": "c", "c": "a"}[c.leader()] // it leads nothing
	dir := c.options(survivor).Dir
	var file bytes.Buffer
	if err := BackupDir(t.Context(), dir, &file, "chat", "v1"); err == nil || !strings.Contains(err.Error(), "stop any other store that uses it") {
		t.Errorf("while it runs: %v", err)
	}
	for _, s := range c.servers {
		s.Close()
	}
	file.Reset()
	if err := BackupDir(t.Context(), dir, &file, "chat", "v1"); err != nil {
		t.Fatal(err)
	}
	next := chatStore(t, serve(t, t.TempDir()))
	if _, err := next.RestoreBackup(t.Context(), bytes.NewReader(file.Bytes()), "chat", false); err != nil {
		t.Fatal(err)
	}
	if got := contents(t, next); !slices.Equal(got, want) {
		t.Errorf("restored %q, want %q", got, want)
	}
	if v, _, err := read(t, next, "desired.y"); err != nil || string(v) != "last" {
		t.Errorf("got %q, %v", v, err)
	}
	if left, err := filepath.Glob(filepath.Join(dir, "backup.*")); err != nil || len(left) > 0 {
		t.Errorf("it leaves %q, %v", left, err)
	}
	if err := BackupDir(t.Context(), dir, io.Discard, "other", "v1"); err == nil || !strings.Contains(err.Error(), "has no data of the service other") {
		t.Errorf("another service: %v", err)
	}
	if err := BackupDir(t.Context(), t.TempDir(), io.Discard, "chat", "v1"); err == nil || !strings.Contains(err.Error(), "is not the directory of a store") {
		t.Errorf("an empty directory: %v", err)
	}
}
