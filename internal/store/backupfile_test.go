package store

import (
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"skyserve/internal/telemetry"
)

// bigBackup is a backup of a store with values that do not compress.
func bigBackup(t *testing.T, size int) []byte {
	t.Helper()
	st := connect(t, serve(t, t.TempDir()), ForService("chat"))
	random := rand.New(rand.NewPCG(1, 2))
	for i := range size / (512 << 10) {
		value := make([]byte, 512<<10)
		for j := range value {
			value[j] = byte(random.Uint32())
		}
		put(t, st, "k."+string(rune('a'+i)), string(value))
	}
	var text bytes.Buffer
	if _, err := st.WriteBackup(t.Context(), &text, "chat", "v1"); err != nil {
		t.Fatal(err)
	}
	return text.Bytes()
}

// A backup in a bucket is complete and checked, or does not exist; its parts joined are the file. Other objects stay.
func TestBackupParts(t *testing.T) {
	text := bigBackup(t, cloudPartSize+2<<20)
	const name = "chat-100%d.backup" // a name is not a format
	others := map[string][]byte{name + ".notes": nil, name + ".1": nil, name + ".0123456789ABCDEF.1": nil, "notes": nil}
	bucket := &memoryParts{parts: maps.Clone(others)}
	names := func() string { return strings.Join(slices.Sorted(maps.Keys(bucket.parts)), " ") }
	without := names()
	write := func(w io.Writer) error { _, err := w.Write(text); return err }

	damaged := bytes.Clone(text)
	damaged[len(damaged)-100] ^= 1
	for what, write := range map[string]func(io.Writer) error{
		"fails":     func(w io.Writer) error { return errors.Join(write(w), errors.New("no leader")) },
		"damaged":   func(w io.Writer) error { _, err := w.Write(damaged); return err },
		"truncated": func(w io.Writer) error { _, err := w.Write(text[:len(text)/2]); return err },
	} {
		if _, _, err := WriteBackupParts(t.Context(), bucket, name, write); err == nil || names() != without {
			t.Errorf("%s: got %v, objects %s", what, err, names())
		}
	}
	interrupted := backupPartName(name, "0123456789abcdef", 7)
	bucket.parts[interrupted] = []byte("of an interrupted one")
	b, size, err := WriteBackupParts(t.Context(), bucket, name, write)
	if err != nil || b.Service != "chat" || size != int64(len(text)) {
		t.Fatalf("got %+v, %d, %v", b, size, err)
	}
	second := backupPartName(name, partsID(bucket.parts[name]), 1)
	if got := slices.Concat(bucket.parts[name], bucket.parts[second]); !bytes.Equal(got, text) || len(bucket.parts) != len(others)+2 {
		t.Errorf("the parts are not the backup: objects %s", names())
	}
	if got, err := io.ReadAll(ReadBackupParts(t.Context(), bucket, name)); err != nil || !bytes.Equal(got, text) {
		t.Errorf("read %d bytes, %v", len(got), err)
	}
	delete(bucket.parts, second)
	if _, err := CheckBackup(ReadBackupParts(t.Context(), bucket, name)); !errors.As(err, new(*telemetry.BackupError)) {
		t.Errorf("without its last part: %v", err)
	}
	if err := RemoveBackupParts(t.Context(), bucket, name); err != nil || names() != without {
		t.Errorf("got %v, objects %s, want %s", err, names(), without)
	}
	if _, err := io.ReadAll(ReadBackupParts(t.Context(), bucket, name)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a missing backup: %v", err)
	}
}

// A backup that fails, at any time, keeps the earlier one of its name, and leaves no parts of its own unless the write of
// its first part fails: that may have been written.
func TestFailedBackupKeepsTheEarlierOne(t *testing.T) {
	t.Parallel()
	text, later := bigBackup(t, cloudPartSize+2<<20), bigBackup(t, cloudPartSize+2<<20)
	const name = "chat.backup"
	bucket := &memoryParts{parts: map[string][]byte{}}
	whole := func(w io.Writer) error { _, err := w.Write(text); return err }
	if _, _, err := WriteBackupParts(t.Context(), bucket, name, whole); err != nil {
		t.Fatal(err)
	}
	before := maps.Clone(bucket.parts)
	failed := errors.New("no leader")
	for _, size := range []int{0, 1, cloudPartSize, cloudPartSize + 1, 2*cloudPartSize + 1, 5 * cloudPartSize} {
		_, _, err := WriteBackupParts(t.Context(), bucket, name, func(w io.Writer) error {
			_, err := w.Write(append(bytes.Clone(later), make([]byte, 5*cloudPartSize)...)[:size])
			return errors.Join(err, failed)
		})
		if !errors.Is(err, failed) || !maps.EqualFunc(bucket.parts, before, bytes.Equal) {
			t.Errorf("failed after %d bytes: %v, objects %q, want %q", size, err, slices.Sorted(maps.Keys(bucket.parts)), slices.Sorted(maps.Keys(before)))
		}
	}
	for puts, err := range map[int]error{0: failed, 1: failed, 2: nil} {
		bucket.parts, bucket.puts = maps.Clone(before), &puts
		bucket.putErr = failed
		_, _, got := WriteBackupParts(t.Context(), bucket, name, func(w io.Writer) error { _, err := w.Write(later); return err })
		bucket.puts = nil
		if read, readErr := io.ReadAll(ReadBackupParts(t.Context(), bucket, name)); !errors.Is(got, err) || readErr != nil || bytes.Equal(read, text) == (err == nil) {
			t.Errorf("after %d written objects: %v, then %d bytes read (%v)", puts, got, len(read), readErr)
		}
	}
	if _, _, err := WriteBackupParts(t.Context(), bucket, name, whole); err != nil || !maps.EqualFunc(bucket.parts, before, bytes.Equal) {
		t.Errorf("the next backup: %v, objects %q", err, slices.Sorted(maps.Keys(bucket.parts)))
	}
}

// A backup in a bucket that cannot be listed is complete: only the parts of earlier ones may remain.
func TestBackupWithoutListingIsComplete(t *testing.T) {
	t.Parallel()
	denied := errors.New("access denied")
	bucket := &memoryParts{parts: map[string][]byte{}, listErr: denied}
	text := bigBackup(t, 512<<10)
	b, size, err := WriteBackupParts(t.Context(), bucket, "b", func(w io.Writer) error { _, err := w.Write(text); return err })
	if !errors.As(err, new(*LeftoverPartsError)) || !errors.Is(err, denied) || b.Service != "chat" || size != int64(len(text)) {
		t.Errorf("got %+v, %d, %v", b, size, err)
	}
	if read, err := io.ReadAll(ReadBackupParts(t.Context(), bucket, "b")); err != nil || !bytes.Equal(read, text) {
		t.Errorf("read %d bytes, %v", len(read), err)
	}
	_, _, err = WriteBackupParts(t.Context(), bucket, "b", func(io.Writer) error { return errors.New("no leader") })
	if err == nil || errors.As(err, new(*LeftoverPartsError)) {
		t.Errorf("a failed one: %v", err)
	}
}

// A bucket that rejects writes is the error of a backup.
func TestBackupPartsRejected(t *testing.T) {
	denied := errors.New("access denied")
	bucket := &memoryParts{parts: map[string][]byte{}, err: denied}
	text := bigBackup(t, 512<<10)
	if _, _, err := WriteBackupParts(context.Background(), bucket, "b", func(w io.Writer) error { _, err := w.Write(text); return err }); !errors.Is(err, denied) {
		t.Errorf("got %v", err)
	}
}

// What killed processes left of backups to a file is removed after a complete one; files that may still be written, and
// those of other backups, stay.
func TestAbandonedBackupIsRemoved(t *testing.T) {
	dir, text := t.TempDir(), bigBackup(t, 512<<10)
	file := filepath.Join(dir, "chat.backup")
	for name, age := range map[string]time.Duration{
		".chat.backup.111": 2 * time.Hour, ".chat.backup.222": time.Minute, ".other.backup.333": 2 * time.Hour,
		".chat.backup.new": 2 * time.Hour, "chat.backup.444": 2 * time.Hour,
	} {
		at := time.Now().Add(-age)
		if err := errors.Join(os.WriteFile(filepath.Join(dir, name), nil, 0o600), os.Chtimes(filepath.Join(dir, name), at, at)); err != nil {
			t.Fatal(err)
		}
	}
	list := func() string {
		entries, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, e := range entries {
			names = append(names, e.Name())
		}
		return strings.Join(names, " ")
	}
	before := list()
	if _, err := WriteBackupFile(file, func(io.Writer) error { return errors.New("no leader") }); err == nil || list() != before {
		t.Errorf("after a failed backup: %s, %v", list(), err)
	}
	if _, err := WriteBackupFile(file, func(w io.Writer) error { _, err := w.Write(text); return err }); err != nil {
		t.Fatal(err)
	}
	if got, want := list(), ".chat.backup.222 .chat.backup.new .other.backup.333 chat.backup chat.backup.444"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}
