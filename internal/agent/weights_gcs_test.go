package agent

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"testing"
	"time"

	"skyserve/internal/telemetry"
	"skyserve/internal/testkit"
)

// gcsStore emulates Cloud Storage and the metadata server of a machine at Google. The machine's
// service account can read the bucket "models", but no other; "absent" does not exist.
type gcsStore struct{ *fakeStore }

func (s gcsStore) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	about, isMetadata := strings.CutPrefix(r.URL.Path, gcpAccountPath)
	switch {
	case !isMetadata:
		s.serveBucket(w, r)
	case s.noIdentity || r.Header.Get("Metadata-Flavor") != "Google":
		w.WriteHeader(http.StatusNotFound)
	case about == "email":
		fmt.Fprint(w, "me@p.iam.gserviceaccount.com")
	default:
		s.tokens++
		fmt.Fprintf(w, `{"access_token":"t%d","expires_in":%s,"token_type":"Bearer"}`, s.tokens, s.tokenSeconds)
	}
}

func (s gcsStore) serveBucket(w http.ResponseWriter, r *http.Request) {
	// an object's name is one path element, with any characters escaped
	name, inside := strings.CutPrefix(r.URL.EscapedPath(), "/storage/v1/b/models/o/")
	key, _ := url.PathUnescape(name)
	refuse := func(status int, message string) {
		w.WriteHeader(status)
		if inside {
			fmt.Fprint(w, message)
			return
		}
		_ = json.NewEncoder(w).Encode(map[string]any{"error": map[string]any{"code": status, "message": message}})
	}
	if s.firstTokenInvalid && r.Header.Get("Authorization") == "Bearer t1" || !strings.HasPrefix(r.Header.Get("Authorization"), "Bearer t") {
		refuse(http.StatusUnauthorized, "Invalid Credentials")
		return
	}
	broken := s.countAndBreak(r)
	switch {
	case strings.HasPrefix(r.URL.Path, "/storage/v1/b/absent/"):
		refuse(http.StatusNotFound, "The specified bucket does not exist.")
	case !inside && r.URL.Path != "/storage/v1/b/models/o":
		refuse(http.StatusForbidden, "me@p.iam.gserviceaccount.com does not have storage.objects.list access to the Google Cloud Storage bucket.")
	case broken && inside:
		writeHalf(w)
	case broken:
		refuse(http.StatusTooManyRequests, "The rate limit is exceeded.")
	case !inside:
		s.list(w, r)
	case r.URL.Query().Get("alt") != "media" || r.URL.Query().Get("generation") != "7" || strings.Contains(name, "/"):
		refuse(http.StatusNotFound, "No such object: "+key)
	default:
		http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(s.objects[key]))
	}
}

// list returns one object per page.
func (s gcsStore) list(w http.ResponseWriter, r *http.Request) {
	page := map[string]any{}
	keys := s.keysBelow(r.URL.Query().Get("prefix"))
	at, _ := strconv.Atoi(r.URL.Query().Get("pageToken")) // missing on the first page
	if at < len(keys) {
		page["items"] = []map[string]any{{
			"name": keys[at], "size": strconv.Itoa(len(s.objects[keys[at]])), "updated": "2026-01-01T00:00:00.123Z", "generation": "7", "contentEncoding": s.encoded,
		}}
	}
	if at+1 < len(keys) {
		page["nextPageToken"] = strconv.Itoa(at + 1)
	}
	_ = json.NewEncoder(w).Encode(page)
}

// A token is reused, and renewed before its expiry or after its rejection.
func TestGCPTokenRenewal(t *testing.T) {
	testkit.Slow(t)
	for name, tt := range map[string]struct {
		change func(*fakeStore)
		valid  func(tokens, requests int) bool
	}{
		"valid for an hour": {func(*fakeStore) {}, func(tokens, _ int) bool { return tokens == 1 }},
		"expires soon":      {func(s *fakeStore) { s.tokenSeconds = "299" }, func(tokens, requests int) bool { return tokens == requests }},
		"rejected early":    {func(s *fakeStore) { s.firstTokenInvalid = true }, func(tokens, _ int) bool { return tokens == 2 }},
	} {
		s, f := fakeStores["gs"](t, "models")
		tt.change(s)
		if err := f.fetchAll(t.Context(), "gs://models/llama", t.TempDir(), func(telemetry.ByteCount) {}); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		requests := 0
		for _, times := range s.reset() {
			requests += times
		}
		if !tt.valid(s.tokens, requests) {
			t.Errorf("%s: %d tokens for %d requests", name, s.tokens, requests)
		}
	}
}

// A token that Cloud Storage always rejects is renewed only once.
func TestRejectedGCPTokenIsRetriedOnce(t *testing.T) {
	s, f := fakeStores["gs"](t, "models")
	f.bucket.(*gcsBucket).client = &http.Client{Transport: withoutCredentials{}}
	err := f.fetchAll(t.Context(), "gs://models/llama", t.TempDir(), func(telemetry.ByteCount) {})
	if err == nil || !strings.Contains(err.Error(), "status 401: Invalid Credentials (grant roles/") || s.tokens != 2 {
		t.Errorf("got %v after %d tokens", err, s.tokens)
	}
}

// withoutCredentials is a transport that removes the credentials of requests.
type withoutCredentials struct{}

func (withoutCredentials) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Del("Authorization")
	return http.DefaultTransport.RoundTrip(r)
}

// An object that is replaced during the download is not mixed with its new version.
func TestReplacedObjectsAreNotMixed(t *testing.T) {
	_, f := fakeStores["gs"](t, "models")
	_, err := f.bucket.open(t.Context(), object{Key: "llama/config.json", Size: 8, Generation: "6"}, 0, 8)
	if err == nil || !isPermanent(err) || !strings.Contains(err.Error(), "status 404: No such object: llama/config.json") {
		t.Errorf("got %v", err)
	}
}
