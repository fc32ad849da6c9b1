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

	"skyserve/internal/telemetry"
	"skyserve/internal/testkit"
)

// fakeStore is the common part of the emulated object stores: a bucket "models".
type fakeStore struct {
	mu                sync.Mutex
	objects           map[string][]byte
	requests          map[string]int // number of requests by range and path
	broken            func(requested string, times int) bool
	encoded           string // the Content-Encoding of all objects at Google
	firstTokenInvalid bool   // at Google: the first token is rejected
	noIdentity        bool   // the machine has no IAM role or service account
	tokens            int    // at Google: number of issued tokens
	tokenSeconds      string // at Google: lifetime of a token in seconds
}

// countAndBreak counts a request, and reports whether its response is to be cut off.
func (s *fakeStore) countAndBreak(r *http.Request) bool {
	requested := r.Header.Get("Range") + " " + r.URL.Path
	s.requests[requested]++
	return s.broken != nil && s.broken(requested, s.requests[requested])
}

// reset stops cutting off responses, and returns the earlier requests. A request that the fetcher
// cancelled may still be served at that moment.
func (s *fakeStore) reset() (requested map[string]int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	requested, s.requests, s.broken = s.requests, map[string]int{}, nil
	return requested
}

// writeHalf writes a response that is cut off.
func writeHalf(w http.ResponseWriter) {
	w.Header().Set("Content-Length", "1000")
	w.WriteHeader(http.StatusPartialContent)
	_, _ = w.Write([]byte("half"))
}

// keysBelow returns the sorted names of the objects below a prefix.
func (s *fakeStore) keysBelow(prefix string) []string {
	return slices.DeleteFunc(slices.Sorted(maps.Keys(s.objects)), func(key string) bool { return !strings.HasPrefix(key, prefix) })
}

// fakeStores start a bucket with a model, by scheme, and return a fetcher for it.
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

// shards are longer than one chunk, and not a multiple of it.
var shards = bytes.Repeat([]byte("0123456789abcdefg"), chunkSize/10)

func noon() time.Time { return time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC) }

func newStore() *fakeStore {
	return &fakeStore{requests: map[string]int{}, tokenSeconds: "3600", objects: map[string][]byte{
		"llama/config.json": []byte(`{"a": 1}`), "llama/": nil, "llama/empty": {}, "llama/part s/a+b?#%2F.bin": shards,
		"llama-2/config.json": []byte("another model"),
	}}
}

// Everything below a folder is downloaded, with retries of failed chunks, and nothing else. A
// second call downloads nothing.
func TestWeightsAreFetched(t *testing.T) {
	for scheme, serve := range fakeStores {
		t.Run(scheme, func(t *testing.T) {
			s, f := serve(t, "models")
			s.broken = func(_ string, times int) bool { return times < 3 }
			dir := t.TempDir()
			var mu sync.Mutex
			var reports []telemetry.ByteCount
			fetch := func() error {
				reports = nil
				return f.fetchAll(t.Context(), scheme+"://models/llama", dir, func(b telemetry.ByteCount) {
					mu.Lock()
					defer mu.Unlock()
					reports = append(reports, b)
				})
			}
			if err := fetch(); err != nil {
				t.Fatal(err)
			}
			if found, want := s.checkFiles(t, dir), []string{"config.json", "empty", "part s/a+b?#%2F.bin"}; !slices.Equal(found, want) {
				t.Errorf("fetched %q, want %q", found, want)
			}
			total := reports[0].Total
			if !slices.Contains(reports, telemetry.ByteCount{Total: total}) || total == 0 || !slices.Contains(reports, telemetry.ByteCount{Done: total, Total: total}) {
				t.Errorf("reports: %v", reports)
			}
			before := s.reset()
			err := fetch()
			if again := s.reset(); err != nil || len(again) > 1 || len(before) < 4 {
				t.Errorf("second call: %v, requests %v", err, again)
			}
		})
	}
}

// checkFiles returns the names of the files below a directory, after comparing them with the
// model's objects.
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
			t.Errorf("%s: %d bytes differ from the object: %v", rel, len(got), err)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	return found
}

// A second call after a failure downloads only missing files.
func TestFetchResumesAfterFailure(t *testing.T) {
	testkit.Slow(t)
	for scheme, serve := range fakeStores {
		s, f := serve(t, "models")
		s.broken = func(requested string, _ int) bool { return strings.Contains(requested, ".bin") }
		dir := t.TempDir()
		if err := f.fetchAll(t.Context(), scheme+"://models/llama", dir, func(telemetry.ByteCount) {}); err == nil {
			t.Fatalf("%s: no error", scheme)
		}
		s.reset()
		if err := f.fetchAll(t.Context(), scheme+"://models/llama", dir, func(telemetry.ByteCount) {}); err != nil || len(s.checkFiles(t, dir)) != 3 {
			t.Errorf("%s: %v", scheme, err)
		}
		for requested := range s.reset() {
			if strings.Contains(requested, "config") {
				t.Errorf("%s: downloaded %s again", scheme, requested)
			}
		}
	}
}

// The scheme of a folder selects the cloud of its bucket.
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

// Errors name the object and the cause, and permanent errors are not retried.
func TestFetchErrors(t *testing.T) {
	none := func(*fakeStore) {}
	escape := func(s *fakeStore) { s.objects = map[string][]byte{"llama/../../etc/passwd": []byte("x")} }
	breaks := func(s *fakeStore) {
		s.broken = func(requested string, _ int) bool { return strings.Contains(requested, "config") }
	}
	const api = "/storage/v1/b/"
	for want, tt := range map[string]struct {
		bucket, from string
		change       func(*fakeStore)
	}{
		"listing s3://others/llama: /others returned HTTP status 403: AccessDenied: Access Denied":          {"others", "s3://others/llama", none},
		"listing s3://models/qwen: no objects found":                                                        {"models", "s3://models/qwen", none},
		"downloading s3://models/llama/../../etc/passwd: the object's name must be a path below the prefix": {"models", "s3://models/llama", escape},
		"downloading s3://models/llama/config.json: unexpected EOF":                                         {"models", "s3://models/llama", breaks},

		"listing gs://others/llama: " + api + "others/o returned HTTP status 403: me@p.iam.gserviceaccount.com does not have storage.objects.list access to the Google Cloud Storage bucket. (" +
			"grant roles/storage.objectViewer on bucket others to me@p.iam.gserviceaccount.com)": {"others", "gs://others/llama", none},
		"listing gs://absent/llama: " + api + "absent/o returned HTTP status 404: The specified bucket does not exist.": {"absent", "gs://absent/llama", none},
		"listing gs://models/qwen: no objects found":                                                        {"models", "gs://models/qwen", none},
		"downloading gs://models/llama/../../etc/passwd: the object's name must be a path below the prefix": {"models", "gs://models/llama", escape},
		"downloading gs://models/llama/config.json: unexpected EOF":                                         {"models", "gs://models/llama", breaks},
		"listing gs://models/llama: llama/: the object must be stored without a Content-Encoding, got gzip": {"models", "gs://models/llama", func(s *fakeStore) { s.encoded = "gzip" }},
		"listing gs://models/llama: getting the machine's credentials: /computeMetadata/v1/instance/service-accounts/default/token returned HTTP status 404: the machine has no service account; set gcp.replica_account": {
			"models", "gs://models/llama", func(s *fakeStore) { s.noIdentity = true },
		},
		"listing s3://models/llama: getting the machine's credentials: /latest/meta-data/iam/security-credentials/ returned HTTP status 404: the machine has no IAM role; run 'skyserve up' to repair it": {
			"models", "s3://models/llama", func(s *fakeStore) { s.noIdentity = true },
		},
	} {
		s, f := fakeStores[tt.from[:2]](t, tt.bucket)
		tt.change(s)
		dir := t.TempDir()
		err := f.fetchAll(t.Context(), tt.from, dir, func(telemetry.ByteCount) {})
		if err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("got %v, want %s", err, want)
		}
		if _, err := os.Stat(filepath.Join(dir, "config.json")); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: an incomplete file exists", want)
		}
		for requested, times := range s.reset() {
			if times > 1 && !strings.Contains(want, "EOF") {
				t.Errorf("%s: %d requests for %s after a permanent error", want, times, requested)
			}
		}
	}
}
