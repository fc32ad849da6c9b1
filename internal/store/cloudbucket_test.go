package store

import (
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
)

// memoryParts is a bucket in memory.
type memoryParts struct {
	mu    sync.Mutex
	parts map[string][]byte
	err   error // of every write
	// puts is the number of writes after which they fail with putErr; nil = they succeed.
	puts   *int
	putErr error
	// listErr is the error of every listing.
	listErr error
}

func (m *memoryParts) PutPart(_ context.Context, name string, part []byte) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.puts != nil {
		if *m.puts--; *m.puts < 0 {
			return m.putErr
		}
	}
	if m.err == nil {
		m.parts[name] = bytes.Clone(part)
	}
	return m.err
}

func (m *memoryParts) GetPart(_ context.Context, name string) ([]byte, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	part, found := m.parts[name]
	if !found {
		return nil, fs.ErrNotExist
	}
	return part, nil
}

func (m *memoryParts) DeletePart(_ context.Context, name string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.parts, name)
	return nil
}

func (m *memoryParts) PartNames(_ context.Context, prefix string) (names []string, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, name := range slices.Sorted(maps.Keys(m.parts)) {
		if strings.HasPrefix(name, prefix) {
			names = append(names, name)
		}
	}
	return names, m.listErr
}

// Sweeping removes the parts of orphans only; a failed write leaves nothing behind.
func TestPartsAreSwept(t *testing.T) {
	m := &memoryParts{parts: map[string][]byte{}}
	st := connect(t, serve(t, t.TempDir()), FilesIn(m))
	for _, name := range []string{"file-a", "file-ab", "batch_b.result-c"} {
		if _, err := st.WriteObject(t.Context(), name, io.LimitReader(zeros{}, cloudPartSize+1)); err != nil {
			t.Fatal(err)
		}
	}
	var seen []string
	err := st.SweepObjects(t.Context(), 0, func(names []string) ([]string, error) { seen = names; return []string{"file-a"}, nil })
	if err != nil || !slices.Equal(seen, []string{"batch_b.result-c", "file-a", "file-ab"}) {
		t.Fatalf("%q, %v", seen, err)
	}
	if left, _ := m.PartNames(t.Context(), ""); !slices.Equal(left, []string{"batch_b.result-c.0", "batch_b.result-c.1", "file-ab.0", "file-ab.1"}) {
		t.Errorf("%q", left)
	}
	m.err = errors.New("the bucket is full")
	if _, err := st.WriteObject(t.Context(), "file-d", strings.NewReader("x")); !errors.Is(err, m.err) {
		t.Errorf("writing to a full bucket: %v", err)
	}
}

// zeros is a reader of zeros.
type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }
