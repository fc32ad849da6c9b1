package node

import (
	"bytes"
	"context"
	"encoding/xml"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// The signatures are those of the examples in S3's own reference: "Authenticating Requests:
// Using the Authorization Header".
func TestSignaturesOfS3(t *testing.T) {
	keys := awsKeys{AccessKeyID: "AKIAIOSFODNN7EXAMPLE", SecretAccessKey: "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"}
	for _, tt := range []struct{ path, rang, want string }{
		{"/test.txt", "bytes=0-9", "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41"},
		{"/?max-keys=2&prefix=J", "", "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7"},
	} {
		r := httptest.NewRequest(http.MethodGet, "https://examplebucket.s3.amazonaws.com"+tt.path, nil)
		if tt.rang != "" {
			r.Header.Set("Range", tt.rang)
		}
		keys.sign(r, "us-east-1", time.Date(2013, 5, 24, 0, 0, 0, 0, time.UTC))
		if got := r.Header.Get("Authorization"); !strings.HasSuffix(got, ",Signature="+tt.want) {
			t.Errorf("%s: got %s, want the signature %s", tt.path, got, tt.want)
		}
	}
}

// store is S3 and a machine's metadata: a bucket "models" in eu-west-1.
type store struct {
	mu      sync.Mutex
	objects map[string][]byte
	asked   map[string]int // by range and path
	broken  func(asked string, times int) bool
}

func (s *store) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	const mine = "/latest/meta-data/"
	switch r.URL.Path {
	case "/latest/api/token":
		fmt.Fprint(w, "token")
		return
	case mine + "iam/security-credentials/":
		fmt.Fprint(w, "skyserve-chat-replica\n")
		return
	case mine + "iam/security-credentials/skyserve-chat-replica":
		fmt.Fprint(w, `{"AccessKeyId":"ASIA","SecretAccessKey":"secret","Token":"session","Expiration":"2026-05-01T18:00:00Z"}`)
		return
	case mine + "placement/region":
		fmt.Fprint(w, "us-east-1")
		return
	}
	s.serveBucket(w, r)
}

func (s *store) serveBucket(w http.ResponseWriter, r *http.Request) {
	asked := r.Header.Get("Range") + " " + r.URL.Path
	s.asked[asked]++
	key, inside := strings.CutPrefix(r.URL.Path, "/models/")
	switch {
	case !strings.Contains(r.Header.Get("Authorization"), "/eu-west-1/s3/"):
		w.Header().Set("X-Amz-Bucket-Region", "eu-west-1")
		w.WriteHeader(http.StatusMovedPermanently)
	case r.Header.Get("X-Amz-Security-Token") != "session" || !inside && r.URL.Path != "/models":
		w.WriteHeader(http.StatusForbidden)
		fmt.Fprint(w, `<Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>`)
	case s.broken != nil && s.broken(asked, s.asked[asked]):
		w.Header().Set("Content-Length", "1000")
		_, _ = w.Write([]byte("half")) // and no more: the connection breaks
	case inside:
		http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(s.objects[key]))
	default:
		s.list(w, r)
	}
}

// list answers one object a page.
func (s *store) list(w http.ResponseWriter, r *http.Request) {
	var keys []string
	for key := range s.objects {
		if strings.HasPrefix(key, r.URL.Query().Get("prefix")) {
			keys = append(keys, key)
		}
	}
	slices.Sort(keys)
	type page struct {
		XMLName               xml.Name `xml:"ListBucketResult"`
		Contents              []stored
		IsTruncated           bool
		NextContinuationToken string `xml:",omitempty"`
	}
	var p page
	for i, key := range keys {
		if key <= r.URL.Query().Get("continuation-token") {
			continue
		}
		p.Contents = []stored{{key, int64(len(s.objects[key])), time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)}}
		p.IsTruncated, p.NextContinuationToken = i+1 < len(keys), key
		break
	}
	_ = xml.NewEncoder(w).Encode(p)
}

// serveStore is a store with a model in it, and who fetches from it.
func serveStore(t *testing.T) (*store, *bucket) {
	t.Helper()
	s := &store{asked: map[string]int{}, objects: map[string][]byte{
		"llama/config.json": []byte(`{"a": 1}`), "llama/": nil, "llama/empty": {}, "llama/part s/a+b.bin": bytes.Repeat([]byte("0123456789abcdef"), chunk/8),
		"llama-2/config.json": []byte("another model"),
	}}
	server := httptest.NewServer(s)
	t.Cleanup(server.Close)
	now := func() time.Time { return time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC) }
	return s, &bucket{metadata: server.URL, endpoint: server.URL, client: server.Client(), now: now}
}

// All of a folder comes, in whatever pieces and however often they break, and nothing
// beside it; what is there is not fetched twice.
func TestWeightsAreFetched(t *testing.T) {
	s, b := serveStore(t)
	s.broken = func(asked string, times int) bool { return strings.Contains(asked, "bytes=") && times < 3 }
	dir := t.TempDir()
	var mu sync.Mutex
	var told []string
	fetch := func() error {
		told = nil
		return b.fetchWeights(context.Background(), "s3://models/llama", dir, func(how string) {
			mu.Lock()
			defer mu.Unlock()
			told = append(told, how)
		})
	}
	if err := fetch(); err != nil {
		t.Fatal(err)
	}
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
	if want := []string{"config.json", "empty", "part s/a+b.bin"}; err != nil || !slices.Equal(found, want) {
		t.Errorf("fetched are %q, want %q: %v", found, want, err)
	}
	if !slices.Contains(told, "0.0 of 0.1 GB") || told[len(told)-1] != "0.1 of 0.1 GB" {
		t.Errorf("told was %q", told)
	}
	before := len(s.asked)
	s.asked = map[string]int{}
	if err := fetch(); err != nil || len(s.asked) > 1 || before < 4 {
		t.Errorf("again: %v, asked for %v", err, s.asked)
	}
}

// What cannot be fetched says what, and why.
func TestWeightsThatCannotBeFetched(t *testing.T) {
	for want, tt := range map[string]struct {
		from   string
		change func(*store)
	}{
		"listing s3://others/llama: asking /others: 403: AccessDenied Access Denied":       {"s3://others/llama", func(*store) {}},
		"listing s3://models/qwen: nothing is below it":                                    {"s3://models/qwen", func(*store) {}},
		"fetching s3://models/llama/../../etc/passwd: its name leads out of the directory": {"s3://models/llama", func(s *store) { s.objects = map[string][]byte{"llama/../../etc/passwd": []byte("x")} }},
		"fetching s3://models/llama/config.json: unexpected EOF":                           {"s3://models/llama", func(s *store) { s.broken = func(asked string, _ int) bool { return strings.Contains(asked, "config") } }},
	} {
		s, b := serveStore(t)
		tt.change(s)
		dir := t.TempDir()
		err := b.fetchWeights(context.Background(), tt.from, dir, func(string) {})
		if err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("got %v, want %s", err, want)
		}
		if _, err := os.Stat(filepath.Join(dir, "config.json")); err == nil {
			t.Errorf("%s: a part of a file counts as the whole", want)
		}
	}
}
