package local

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
)

// Two builds have different hashes: a build ID, a size or an end differs. Without a build ID, every byte counts.
func TestBuildHashTellsBuildsApart(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	program, err := os.ReadFile(self)
	if err != nil {
		t.Fatal(err)
	}
	const script = "#!/bin/sh\n"
	large := func(changed int) []byte {
		text := append([]byte(script), make([]byte, 1<<20)...)
		text[changed]++
		return text
	}
	hashes := map[string]string{}
	for name, content := range map[string][]byte{
		"a program":                             program,
		"with another end":                      append(bytes.Clone(program), "another version"...),
		"without its end":                       program[:len(program)-1],
		"with another build ID":                 withOtherBuildID(t, program),
		"a file without a build ID":             large(len(script)),
		"one with another byte in the middle":   large(1 << 19),
		"one that is shorter than the two ends": []byte(script),
		"an empty file":                         {},
	} {
		file := filepath.Join(t.TempDir(), "program")
		if err := os.WriteFile(file, content, 0o600); err != nil {
			t.Fatal(err)
		}
		hash, err := buildHash(file)
		if err != nil || len(hash) != 12 {
			t.Fatalf("%s: got %q, %v", name, hash, err)
		}
		if same := hashes[hash]; same != "" {
			t.Errorf("%s and %s have the hash %s", name, same, hash)
		}
		hashes[hash] = name
	}
	if _, err := buildHash(filepath.Join(t.TempDir(), "missing")); err == nil {
		t.Error("a missing file has a hash")
	}
}

// withOtherBuildID returns a program with another byte in its build ID, like another build of the same size.
func withOtherBuildID(t *testing.T, program []byte) []byte {
	t.Helper()
	for _, marker := range buildIDMarkers {
		if i := bytes.Index(program[:edgeSize], marker); i >= 0 {
			other := bytes.Clone(program)
			other[i+len(marker)+1]++
			return other
		}
	}
	t.Fatal("the Go linker wrote no build ID into the first 64 KiB of this test: hashing it reads all of it")
	return nil
}
