package controller

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"skyserve/internal/service"
	"skyserve/internal/store"
	"skyserve/internal/telemetry"
)

// backupText is a backup with the format of the product, of a store with one key.
func backupText(t *testing.T) string {
	t.Helper()
	srv, err := store.Serve(t.Context(), store.Options{Dir: t.TempDir(), Listen: "127.0.0.1:0"})
	if err != nil {
		t.Fatal(err)
	}
	defer srv.Close()
	st, err := store.Connect(t.Context(), srv.URL(), "", store.ForService("chat"))
	if err == nil {
		_, err = st.Put(t.Context(), "key", []byte("1"))
	}
	var text strings.Builder
	if err == nil {
		_, err = st.WriteBackup(t.Context(), &text, "chat", "v1")
	}
	if err != nil {
		t.Fatal(err)
	}
	st.Close()
	return text.String()
}

// fakeSource writes a text as a backup, then fails with err.
type fakeSource struct {
	text string
	err  error
}

func (f *fakeSource) WriteBackup(_ context.Context, w io.Writer, service, version string) (telemetry.Backup, error) {
	_, err := io.WriteString(w, f.text)
	return telemetry.Backup{Service: service, Version: version}, errors.Join(err, f.err)
}

// The leader makes a backup whenever one is due, keeps the newest ones, and leaves other files alone. A backup that fails
// leaves no file; the alert tells about it once the newest one is too old.
func TestScheduledBackups(t *testing.T) {
	folder, source := t.TempDir(), &fakeSource{text: backupText(t)}
	w := newWorld()
	w.backupSource = source
	w.backupSpec = &service.StoreBackup{To: folder, Every: time.Hour, Keep: 2}
	w.setLease(w.lease)
	others := []string{"notes.txt", "chat-other-20261126T100000Z.backup", "chat-manual.backup"}
	for _, name := range others {
		if err := os.WriteFile(filepath.Join(folder, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	start := time.Date(2026, 11, 26, 10, 0, 0, 0, time.UTC)
	steps := []struct {
		after time.Duration
		fails error
		lost  bool // the lease
		want  string
		alert string
	}{
		{0, nil, false, "10:00", ""},
		{59 * time.Minute, nil, false, "10:00", ""},
		{time.Hour, nil, false, "10:00 11:00", ""},
		{2 * time.Hour, nil, false, "11:00 12:00", ""},
		{3 * time.Hour, errors.New("no space left"), false, "11:00 12:00", ""},
		{4 * time.Hour, errors.New("no space left"), false, "11:00 12:00", "the newest backup in FOLDER is 2h0m0s old; one is due every 1h0m0s: writing FOLDER/chat-20261126T140000Z.backup: no space left"},
		{4*time.Hour + time.Minute, nil, true, "11:00 12:00", "the newest backup in FOLDER is 2h1m0s old; one is due every 1h0m0s: lease lost"},
		{4*time.Hour + 2*time.Minute, nil, false, "12:00 14:02", ""},
	}
	for _, s := range steps {
		now := start.Add(s.after)
		source.err = s.fails
		var l lease = w.lease
		if s.lost {
			lost := &fakeLease{}
			lost.lose()
			l = lost
		}
		w.backUpIfDue(t.Context(), l, *w.backupSpec, now)
		var times []string
		names, err := backupsIn(t.Context(), directory(folder), "chat")
		for _, name := range names {
			at, _ := timeOfBackup(name, "chat")
			times = append(times, at.Format("15:04"))
		}
		if got := strings.Join(times, " "); err != nil || got != s.want {
			t.Errorf("after %s: got %s, %v, want %s", s.after, got, err, s.want)
		}
		alert := ""
		for _, a := range w.backupAlerts(now) {
			alert = strings.ReplaceAll(a.Message, folder, "FOLDER")
		}
		if !strings.Contains(alert, s.alert) || (alert == "") != (s.alert == "") {
			t.Errorf("after %s: alert %q, want %q", s.after, alert, s.alert)
		}
	}
	entries, err := os.ReadDir(folder)
	if err != nil || len(entries) != 2+len(others) {
		t.Errorf("got %v, %v", entries, err)
	}
	file, err := os.Open(filepath.Join(folder, backupName("chat", start.Add(2*time.Hour))))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if b, err := store.CheckBackup(file); err != nil || b.Service != "chat" {
		t.Errorf("got %+v, %v", b, err)
	}
}

// A folder that cannot be read for some minutes does not count as a folder without backups.
func TestUnreadableFolderKeepsNewestBackup(t *testing.T) {
	folder, away := filepath.Join(t.TempDir(), "backups"), filepath.Join(t.TempDir(), "away")
	if err := os.Mkdir(folder, 0o700); err != nil {
		t.Fatal(err)
	}
	w := newWorld()
	w.backupSource = &fakeSource{text: backupText(t)}
	w.backupSpec = &service.StoreBackup{To: folder, Every: time.Hour, Keep: 2}
	w.setLease(w.lease)
	start := time.Date(2026, 11, 26, 10, 0, 0, 0, time.UTC)
	check := func(after time.Duration, want string) {
		t.Helper()
		w.backUpIfDue(t.Context(), w.lease, *w.backupSpec, start.Add(after))
		alert := ""
		for _, a := range w.backupAlerts(start.Add(after)) {
			alert = strings.ReplaceAll(a.Message, w.backupSpec.To, "FOLDER")
		}
		if !strings.Contains(alert, want) || (alert == "") != (want == "") {
			t.Errorf("after %s: alert %q, want %q", after, alert, want)
		}
	}
	for i := range 4 {
		check(time.Duration(i)*time.Hour, "")
	}
	if err := os.Rename(folder, away); err != nil {
		t.Fatal(err)
	}
	check(3*time.Hour+30*time.Minute, "")
	check(5*time.Hour, "the newest backup in FOLDER is 2h0m0s old; one is due every 1h0m0s: store.backup.to: ")
	w.backupSpec.To = folder + "-other" // which was never read
	check(5*time.Hour, "there is no backup in FOLDER; one is due every 1h0m0s: store.backup.to: ")
}

// fakeBucket is a bucket in memory; err is the error of all calls.
type fakeBucket struct {
	objects map[string][]byte
	err     error
}

func (b *fakeBucket) PutPart(_ context.Context, name string, part []byte) error {
	if b.err == nil {
		b.objects[name] = slices.Clone(part)
	}
	return b.err
}

func (b *fakeBucket) GetPart(_ context.Context, name string) ([]byte, error) {
	part, found := b.objects[name]
	if !found {
		return nil, fs.ErrNotExist
	}
	return part, b.err
}

func (b *fakeBucket) DeletePart(_ context.Context, name string) error {
	delete(b.objects, name)
	return b.err
}

func (b *fakeBucket) PartNames(_ context.Context, prefix string) (names []string, err error) {
	for name := range b.objects {
		if strings.HasPrefix(name, prefix) {
			names = append(names, name)
		}
	}
	return names, b.err
}

// A backup that a crash interrupted leaves a temporary file. It is removed once a later backup is complete; that of a
// backup with a later time may still be written.
func TestInterruptedBackupIsRemoved(t *testing.T) {
	folder, source := t.TempDir(), &fakeSource{text: backupText(t)}
	start := time.Date(2026, 11, 26, 10, 0, 0, 0, time.UTC)
	crash := func(at time.Time) {
		name := backupName("chat", at)
		_, err := store.WriteBackupFile(filepath.Join(folder, name), func(w io.Writer) error {
			_, err := source.WriteBackup(t.Context(), w, "chat", "v1")
			files, failed := filepath.Glob(filepath.Join(folder, "."+name+".*"))
			if err = errors.Join(err, failed); err != nil || len(files) != 1 {
				t.Fatal(files, err)
			}
			return errors.Join(os.Link(files[0], files[0]+"0"), errors.New("crash")) // the link is what a crash leaves
		})
		if err == nil {
			t.Fatal("the backup is complete")
		}
	}
	crash(start)
	crash(start.Add(24 * time.Hour))
	w := newWorld()
	w.backupSource = source
	w.backupSpec = &service.StoreBackup{To: folder, Every: time.Hour, Keep: 2}
	w.setLease(w.lease)
	w.backUpIfDue(t.Context(), w.lease, *w.backupSpec, start.Add(time.Hour))
	entries, err := os.ReadDir(folder)
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	if err != nil || len(names) != 2 || !strings.HasPrefix(names[0], "."+backupName("chat", start.Add(24*time.Hour))) || names[1] != backupName("chat", start.Add(time.Hour)) {
		t.Errorf("got %q, %v", names, err)
	}
}

// Backups are written to a folder of a bucket as to one of this computer, and the oldest are removed with all their parts.
// Without access, an alert names the bucket, the reason and the permissions.
func TestScheduledBackupsInBucket(t *testing.T) {
	bucket := &fakeBucket{objects: map[string][]byte{"chat-notes": nil}}
	w := newWorld()
	w.backupSource = &fakeSource{text: backupText(t)}
	w.backupSpec = &service.StoreBackup{To: "s3://backups/daily", Every: time.Hour, Keep: 2}
	var opened string
	WithBuckets(func(_ context.Context, url string) (store.CloudBucket, error) { opened = url; return bucket, nil })(&w.options)
	w.setLease(w.lease)
	start := time.Date(2026, 11, 26, 10, 0, 0, 0, time.UTC)
	const part = ".0123456789abcdef.1"
	for i := range 3 {
		w.backUpIfDue(t.Context(), w.lease, *w.backupSpec, start.Add(time.Duration(i)*time.Hour))
		if i == 0 {
			bucket.objects[backupName("chat", start)+part] = nil                   // as of a large backup
			bucket.objects[backupName("chat", start.Add(-time.Hour))+part] = nil   // of one that was interrupted
			bucket.objects[backupName("chat", start.Add(24*time.Hour))+part] = nil // of one that another controller may be writing
		}
	}
	w.backUpIfDue(t.Context(), w.lease, *w.backupSpec, start.Add(3*time.Hour))
	got := slices.Sorted(maps.Keys(bucket.objects))
	if want := []string{"chat-20261126T120000Z.backup", "chat-20261126T130000Z.backup", "chat-20261127T100000Z.backup.0123456789abcdef.1", "chat-notes"}; !slices.Equal(got, want) || opened != "s3://backups/daily" {
		t.Errorf("got %q in %s, want %q", got, opened, want)
	}
	if b, err := store.CheckBackup(store.ReadBackupParts(t.Context(), bucket, got[0])); err != nil || b.Service != "chat" {
		t.Errorf("got %+v, %v", b, err)
	}
	bucket.err = errors.New("access denied")
	w.backUpIfDue(t.Context(), w.lease, *w.backupSpec, start.Add(5*time.Hour))
	alerts := w.backupAlerts(start.Add(5 * time.Hour))
	if len(alerts) != 1 || !strings.Contains(alerts[0].Message, "s3://backups/daily") || !strings.Contains(alerts[0].Message, "access denied") || !strings.Contains(alerts[0].NextStep, "create the bucket of s3://backups/daily and let") {
		t.Errorf("got %+v", alerts)
	}
}

// A folder that does not exist is an alert with the reason, and a standby raises none.
func TestBackupAlertsWithoutFolder(t *testing.T) {
	w := newWorld()
	w.backupSource = &fakeSource{}
	w.backupSpec = &service.StoreBackup{To: filepath.Join(t.TempDir(), "missing"), Every: time.Hour}
	w.setLease(w.lease)
	now := time.Now()
	w.backUpIfDue(t.Context(), w.lease, *w.backupSpec, now)
	if got := w.backupAlerts(now.Add(time.Hour)); len(got) != 0 {
		t.Errorf("after an hour: %v", got)
	}
	got := w.backupAlerts(now.Add(2 * time.Hour))
	if len(got) != 1 || !strings.Contains(got[0].Message, "there is no backup") || !strings.Contains(got[0].Message, "no such file") || !strings.Contains(got[0].NextStep, "create ") {
		t.Errorf("got %+v", got)
	}
	w.setLease(nil)
	if got := w.backupAlerts(now.Add(2 * time.Hour)); len(got) != 0 {
		t.Errorf("as a standby: %v", got)
	}
}

func TestTimeOfBackup(t *testing.T) {
	at := time.Date(2026, 11, 26, 18, 4, 5, 0, time.UTC)
	var names []string
	for name, want := range map[string]bool{
		backupName("chat", at): true, "chat-20261126T180405Z.backup.tmp": false, "chat-20261126.backup": false, backupName("chat-2", at): false, "chat-20261126T180405Z": false,
	} {
		if got, is := timeOfBackup(name, "chat"); is != want || is && !got.Equal(at) {
			names = append(names, fmt.Sprint(name, got, is))
		}
	}
	if slices.Sort(names); len(names) > 0 {
		t.Error(names)
	}
}
