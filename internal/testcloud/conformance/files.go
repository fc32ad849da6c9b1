package conformance

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"slices"
	"strings"
	"testing"
)

// Files stores parts of files in a folder of a bucket: store.CloudBucket.
type Files interface {
	PutPart(ctx context.Context, name string, part []byte) error
	GetPart(ctx context.Context, name string) ([]byte, error)
	DeletePart(ctx context.Context, name string) error
	PartNames(ctx context.Context, prefix string) ([]string, error)
}

// RunFiles tests files in an empty folder of a bucket that contains other objects. stored returns the names of all
// objects in the bucket, and folder is the folder's name there, with a slash at the end.
func RunFiles(t *testing.T, f Files, folder string, stored func() []string) {
	t.Helper()
	ctx := t.Context()
	put := func(name string, part []byte) {
		t.Helper()
		if err := f.PutPart(ctx, name, part); err != nil {
			t.Fatal(err)
		}
		if got, err := f.GetPart(ctx, name); err != nil || !bytes.Equal(got, part) {
			t.Errorf("%s: %d bytes, %v; want %d bytes", name, len(got), err, len(part))
		}
	}
	put("file-1.0", bytes.Repeat([]byte("0123456789abcdef"), 1<<19))
	put("file-1.1", []byte("end"))
	put("file-1.2", []byte{})
	put("file-1.1", []byte("replaced"))
	put("file-2.0", []byte("x"))
	if names, err := f.PartNames(ctx, "file-1."); err != nil || !slices.Equal(names, []string{"file-1.0", "file-1.1", "file-1.2"}) {
		t.Errorf("%q, %v", names, err)
	}
	if all, err := f.PartNames(ctx, ""); err != nil || len(all) != 4 {
		t.Errorf("files of others are listed: %q, %v", all, err)
	}
	for range 2 { // a missing part is not an error
		if err := f.DeletePart(ctx, "file-1.0"); err != nil {
			t.Error(err)
		}
	}
	if _, err := f.GetPart(ctx, "file-1.0"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a deleted part: %v", err)
	}
	if objects := stored(); !slices.Contains(objects, folder+"file-2.0") {
		t.Errorf("no %sfile-2.0 in %q", folder, objects)
	}
}

// RunMissingFiles tests files in a bucket that does not exist; address is its URL.
func RunMissingFiles(t *testing.T, f Files, address string) {
	t.Helper()
	err := f.PutPart(t.Context(), "file-1.0", []byte("x"))
	if want := address + "file-1.0"; err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("a part in a bucket that does not exist: %v, want an error with %s", err, want)
	}
}
