package store

import (
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

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
	text := bigBackup(t, externalPart+2<<20)
	const name = "chat-100%d.backup" // a name is not a format
	others := map[string][]byte{name + ".notes": nil, name + ".01": nil, "notes": nil}
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
	bucket.parts[name+".7"] = []byte("of an interrupted one")
	b, size, err := WriteBackupParts(t.Context(), bucket, name, write)
	if err != nil || b.Service != "chat" || size != int64(len(text)) {
		t.Fatalf("got %+v, %d, %v", b, size, err)
	}
	if got := slices.Concat(bucket.parts[name], bucket.parts[name+".1"]); !bytes.Equal(got, text) || bucket.parts[name+".7"] != nil {
		t.Errorf("the parts are not the backup: objects %s", names())
	}
	if got, err := io.ReadAll(ReadBackupParts(t.Context(), bucket, name)); err != nil || !bytes.Equal(got, text) {
		t.Errorf("read %d bytes, %v", len(got), err)
	}
	if _, _, err := WriteBackupParts(t.Context(), bucket, name, func(io.Writer) error { return errors.New("no balancer responds") }); err == nil {
		t.Error("a backup of a service that does not respond")
	}
	if _, err := CheckBackup(ReadBackupParts(t.Context(), bucket, name)); err != nil {
		t.Errorf("the earlier backup, after one that could not begin: %v", err)
	}
	delete(bucket.parts, name+".1")
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

// A bucket that rejects writes is the error of a backup.
func TestBackupPartsRejected(t *testing.T) {
	denied := errors.New("access denied")
	bucket := &memoryParts{parts: map[string][]byte{}, err: denied}
	text := bigBackup(t, 512<<10)
	if _, _, err := WriteBackupParts(context.Background(), bucket, "b", func(w io.Writer) error { _, err := w.Write(text); return err }); !errors.Is(err, denied) {
		t.Errorf("got %v", err)
	}
}
