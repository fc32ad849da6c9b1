package agent

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"skyserve/internal/testkit"
)

// fakeStore is what the clouds' stores have in common: a bucket "models".
type fakeStore struct {
	mu                sync.Mutex
	objects           map[string][]byte
	requests          map[string]int // by range and path
	broken            func(asked string, times int) bool
	encoded           string // the Content-Encoding of all objects at Google
	firstTokenInvalid bool   // at Google: tokens hold from the second on only
	noAccount         bool   // at Google: the machine runs as nobody
	tokens            int    // at Google: how many were had
	tokenSeconds      string // at Google: how many seconds a token holds
}

// countAndBreak counts a request, and says whether its answer is to break off.
func (s *fakeStore) countAndBreak(r *http.Request) bool {
	asked := r.Header.Get("Range") + " " + r.URL.Path
	s.requests[asked]++
	return s.broken != nil && s.broken(asked, s.requests[asked])
}

// reset breaks no answers from now on, and returns what was asked for before. A request that the
// fetcher gave up may still be served at that moment.
func (s *fakeStore) reset() (asked map[string]int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	asked, s.requests, s.broken = s.requests, map[string]int{}, nil
	return asked
}

// writeHalf begins an answer that breaks off.
func writeHalf(w http.ResponseWriter) {
	w.Header().Set("Content-Length", "1000")
	w.WriteHeader(http.StatusPartialContent)
	_, _ = w.Write([]byte("half"))
}

// keysBelow are the sorted names of the objects below a prefix.
func (s *fakeStore) keysBelow(prefix string) []string {
	return slices.DeleteFunc(slices.Sorted(maps.Keys(s.objects)), func(key string) bool { return !strings.HasPrefix(key, prefix) })
}

// fakeStores serve a bucket with a model in it, by scheme, and are read from by a fetcher.
var fakeStores = map[string]func(t *testing.T, name string) (*fakeStore, fetcher){
	"s3": func(t *testing.T, name string) (*fakeStore, fetcher) {
		s := newStore()
		server := httptest.NewServer(s3Store{s})
		t.Cleanup(server.Close)
		return s, fetcher{bucket: &s3Bucket{name: name, metadata: server.URL, endpoint: server.URL, client: server.Client(), now: noon}}
	},
	"gs": func(t *testing.T, name string) (*fakeStore, fetcher) {
		s := newStore()
		server := httptest.NewServer(gcsStore{s})
		t.Cleanup(server.Close)
		return s, fetcher{bucket: &gcsBucket{name: name, metadata: server.URL, endpoint: server.URL, client: server.Client(), now: noon}}
	},
}

// shards are more than one request fetches, and no whole number of chunks.
var shards = bytes.Repeat([]byte("0123456789abcdefg"), chunkSize/10)

func noon() time.Time { return time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC) }

func newStore() *fakeStore {
	return &fakeStore{requests: map[string]int{}, tokenSeconds: "3600", objects: map[string][]byte{
		"llama/config.json": []byte(`{"a": 1}`), "llama/": nil, "llama/empty": {}, "llama/part s/a+b?#%2F.bin": shards,
		"llama-2/config.json": []byte("another model"),
	}}
}

// All of a folder comes, in whatever pieces and however often they break, and nothing
// beside it; what is there is not fetched twice.
func TestWeightsAreFetched(t *testing.T) {
	for scheme, serve := range fakeStores {
		t.Run(scheme, func(t *testing.T) {
			s, f := serve(t, "models")
			s.broken = func(_ string, times int) bool { return times < 3 }
			dir := t.TempDir()
			var mu sync.Mutex
			var told []string
			fetch := func() error {
				told = nil
				return f.fetchAll(t.Context(), scheme+"://models/llama", dir, func(how string) {
					mu.Lock()
					defer mu.Unlock()
					told = append(told, how)
				})
			}
			if err := fetch(); err != nil {
				t.Fatal(err)
			}
			if found, want := s.checkFiles(t, dir), []string{"config.json", "empty", "part s/a+b?#%2F.bin"}; !slices.Equal(found, want) {
				t.Errorf("fetched are %q, want %q", found, want)
			}
			if !slices.Contains(told, "0.0 of 0.1 GB") || told[len(told)-1] != "0.1 of 0.1 GB" {
				t.Errorf("told was %q", told)
			}
			before := s.reset()
			err := fetch()
			if again := s.reset(); err != nil || len(again) > 1 || len(before) < 4 {
				t.Errorf("again: %v, asked for %v", err, again)
			}
		})
	}
}

// checkFiles are the names of the files below a directory, which are to hold what the model's
// objects do.
func (s *fakeStore) checkFiles(t *testing.T, dir string) []string {
	t.Helper()
	var found []string
	err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		rel, _ := filepath.Rel(dir, path)
		found = append(found, rel)
		if got, err := os.ReadFile(path); err != nil || !bytes.Equal(got, s.objects["llama/"+rel]) {
			t.Errorf("%s has %d bytes that are others: %v", rel, len(got), err)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	return found
}

// What broke off goes on with the files that are not there yet.
func TestFetchResumesAfterFailure(t *testing.T) {
	testkit.Slow(t)
	for scheme, serve := range fakeStores {
		s, f := serve(t, "models")
		s.broken = func(asked string, _ int) bool { return strings.Contains(asked, ".bin") }
		dir := t.TempDir()
		if err := f.fetchAll(t.Context(), scheme+"://models/llama", dir, func(string) {}); err == nil {
			t.Fatalf("%s: nothing broke", scheme)
		}
		s.reset()
		if err := f.fetchAll(t.Context(), scheme+"://models/llama", dir, func(string) {}); err != nil || len(s.checkFiles(t, dir)) != 3 {
			t.Errorf("%s: %v", scheme, err)
		}
		for asked := range s.reset() {
			if strings.Contains(asked, "config") {
				t.Errorf("%s: asked again for %s", scheme, asked)
			}
		}
	}
}

// The scheme of a folder says whose bucket it is of.
func TestBucketForScheme(t *testing.T) {
	for from, want := range map[string]string{"s3://models/a/b": "*agent.s3Bucket models", "gs://models/a": "*agent.gcsBucket models", "gs://models": "none", "az://models/a": "none", "gs:///a": "none"} {
		got := "none"
		switch b, _ := newBucket(from, nil); b := b.(type) {
		case *s3Bucket:
			got = fmt.Sprintf("%T %s", b, b.name)
		case *gcsBucket:
			got = fmt.Sprintf("%T %s", b, b.name)
		}
		if got != want {
			t.Errorf("%s: got %s, want %s", from, got, want)
		}
	}
}

// What cannot be fetched says what, and why.
func TestFetchErrors(t *testing.T) {
	none := func(*fakeStore) {}
	escape := func(s *fakeStore) { s.objects = map[string][]byte{"llama/../../etc/passwd": []byte("x")} }
	breaks := func(s *fakeStore) {
		s.broken = func(asked string, _ int) bool { return strings.Contains(asked, "config") }
	}
	const api = "asking /storage/v1/b/"
	for want, tt := range map[string]struct {
		bucket, from string
		change       func(*fakeStore)
	}{
		"listing s3://others/llama: asking /others: 403: AccessDenied Access Denied":       {"others", "s3://others/llama", none},
		"listing s3://models/qwen: nothing is below it":                                    {"models", "s3://models/qwen", none},
		"fetching s3://models/llama/../../etc/passwd: its name leads out of the directory": {"models", "s3://models/llama", escape},
		"fetching s3://models/llama/config.json: unexpected EOF":                           {"models", "s3://models/llama", breaks},

		"listing gs://others/llama: " + api + "others/o: 403: me@p.iam.gserviceaccount.com does not have storage.objects.list access to the Google Cloud Storage bucket.: " +
			"the bucket others has to let me@p.iam.gserviceaccount.com read it: roles/storage.objectViewer": {"others", "gs://others/llama", none},
		"listing gs://absent/llama: " + api + "absent/o: 404: The specified bucket does not exist.": {"absent", "gs://absent/llama", none},
		"listing gs://models/qwen: nothing is below it":                                             {"models", "gs://models/qwen", none},
		"fetching gs://models/llama/../../etc/passwd: its name leads out of the directory":          {"models", "gs://models/llama", escape},
		"fetching gs://models/llama/config.json: unexpected EOF":                                    {"models", "gs://models/llama", breaks},
		"listing gs://models/llama: llama/: its Content-Encoding is gzip: want it stored without":   {"models", "gs://models/llama", func(s *fakeStore) { s.encoded = "gzip" }},
		"listing gs://models/llama: asking for the machine's credentials: asking /computeMetadata/v1/instance/service-accounts/default/token: 404: it runs as nobody: name an account in gcp.replica_account": {
			"models", "gs://models/llama", func(s *fakeStore) { s.noAccount = true },
		},
	} {
		s, f := fakeStores[tt.from[:2]](t, tt.bucket)
		tt.change(s)
		dir := t.TempDir()
		err := f.fetchAll(t.Context(), tt.from, dir, func(string) {})
		if err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("got %v, want %s", err, want)
		}
		if _, err := os.Stat(filepath.Join(dir, "config.json")); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: a part of a file counts as the whole", want)
		}
		for asked, times := range s.reset() {
			if times > 1 && !strings.Contains(want, "EOF") {
				t.Errorf("%s: asked %d times for %s, which was refused for good", want, times, asked)
			}
		}
	}
}
