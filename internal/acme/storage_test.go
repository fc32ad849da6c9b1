package acme

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"maps"
	"math/rand/v2"
	"path"
	"slices"
	"strings"
	"testing"
	"time"

	"skyserve/internal/store"
	"skyserve/internal/testkit"
)

func storageOf(t *testing.T, s *store.Store, secret string) *storage {
	t.Helper()
	st, err := newStorage(s, "lb-us-0", secret)
	if err != nil {
		t.Fatal(err)
	}
	return st
}

// The storage behaves like a map whose directories are prefixes of keys. Each write is synced to disk,
// so the test runs only one history of a few hundred steps.
func TestStorageBehavesLikeMap(t *testing.T) {
	testkit.Slow(t)
	t.Parallel()
	connect, _ := shared(t, t.TempDir())
	st, ctx := storageOf(t, connect("a"), testSecret), t.Context()
	keys := []string{"a", "a/b.crt", "a/b/c", "a/b/d@x.org/e", "ab", "*.x/y z", "users/ä"}
	places := append([]string{"", "a/b", "a/b/d@x.org", "users", "none"}, keys...)
	random := rand.New(rand.NewPCG(1, 2))
	twin := map[string]string{}
	for step := range 120 {
		key, place := keys[random.IntN(len(keys))], places[random.IntN(len(places))]
		switch random.IntN(8) {
		case 0:
			if err := st.Delete(ctx, place); err != nil {
				t.Fatal(err)
			}
			maps.DeleteFunc(twin, func(k, _ string) bool { return k == place || strings.HasPrefix(k, keysOf(place)) })
		case 1, 2:
			value := strings.Repeat("v", step)
			if err := st.Store(ctx, key, []byte(value)); err != nil {
				t.Fatal(err)
			}
			twin[key] = value
		default:
			lookLikeTwin(t, st, twin, place, step%2 == 0)
		}
	}
}

func lookLikeTwin(t *testing.T, st *storage, twin map[string]string, key string, recursive bool) {
	t.Helper()
	ctx := t.Context()
	want, has := twin[key]
	got, err := st.Load(ctx, key)
	if has != (err == nil) || string(got) != want || !has && !errors.Is(err, fs.ErrNotExist) {
		t.Fatalf("%q has the value %q, %v; want %q", key, got, err, want)
	}
	inside := map[string]bool{}
	for k := range twin {
		if rest, in := strings.CutPrefix(k, keysOf(key)); in && recursive {
			inside[k] = true
		} else if first, _, _ := strings.Cut(rest, "/"); in {
			inside[path.Join(key, first)] = true
		}
	}
	if exists := has || len(inside) > 0; st.Exists(ctx, key) != exists {
		t.Fatalf("%q exists: want %v", key, exists)
	}
	list, err := st.List(ctx, key, recursive)
	slices.Sort(list)
	if want := slices.Sorted(maps.Keys(inside)); !slices.Equal(list, want) || (err == nil) != (len(want) > 0) {
		t.Fatalf("%q lists %q, %v; want %q", key, list, err, want)
	}
	info, err := st.Stat(ctx, key)
	if err == nil && (info.IsTerminal != has || has && info.Size != int64(len(want))) {
		t.Fatalf("%q is %+v", key, info)
	}
}

// The key of a certificate cannot be read or replaced in the store without the secret.
func TestStoredValuesAreEncrypted(t *testing.T) {
	t.Parallel()
	connect, _ := shared(t, t.TempDir())
	s := connect("a")
	ctx := t.Context()
	st, stranger := storageOf(t, s, testSecret), storageOf(t, connect("b"), "another secret")
	const key, value = "certificates/x.key", "-----BEGIN PRIVATE KEY-----"
	if err := st.Store(ctx, key, []byte(value)); err != nil {
		t.Fatal(err)
	}
	raw, _, err := s.Get(ctx, valuePrefix+encode(key))
	if err != nil || bytes.Contains(raw, []byte("PRIVATE")) {
		t.Errorf("the store holds %q, %v", raw, err)
	}
	if got, err := stranger.Load(ctx, key); !errors.Is(err, fs.ErrNotExist) || stranger.Exists(ctx, key) {
		t.Errorf("with another secret, Load returned %q, %v", got, err)
	}
	if err := stranger.Store(ctx, "certificates/y.key", []byte(value)); err != nil {
		t.Fatal(err)
	}
	if _, err := st.Load(ctx, "certificates/y.key"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a value with another secret was accepted: %v", err)
	}
	moved, err := s.Put(ctx, valuePrefix+encode("certificates/z.key"), raw)
	if _, err2 := st.Load(ctx, "certificates/z.key"); err != nil || !errors.Is(err2, fs.ErrNotExist) {
		t.Errorf("a value copied to another key (%d, %v) was accepted: %v", moved, err, err2)
	}
	if _, err := newStorage(s, "lb", ""); err == nil {
		t.Error("an empty secret was accepted")
	}
}

// A lock has one holder. Another process acquires it when it is released or its holder has failed.
func TestLockHasOneHolder(t *testing.T) {
	t.Parallel()
	connect, _ := shared(t, t.TempDir())
	a, b := storageOf(t, connect("a"), testSecret), storageOf(t, connect("b"), testSecret)
	const name = "issue_cert_chat.example.com"
	if err := a.Lock(t.Context(), name); err != nil {
		t.Fatal(err)
	}
	if err := b.Lock(t.Context(), "another"); err != nil {
		t.Fatal(err)
	}
	short, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := b.Lock(short, name); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("a second holder: %v", err)
	}
	got := make(chan error)
	go func() { got <- b.Lock(t.Context(), name) }()
	if err := a.Unlock(t.Context(), name); err != nil {
		t.Fatal(err)
	}
	if err := <-got; err != nil {
		t.Fatal(err)
	}
	if err := a.Unlock(t.Context(), name); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Unlock of a lock that is not held returned %v", err)
	}
	for _, n := range []string{name, "another"} {
		if err := b.Unlock(t.Context(), n); err != nil {
			t.Error(err)
		}
	}
}
