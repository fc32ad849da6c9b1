package agent

import (
	"bytes"
	"encoding/xml"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

// The signatures are those of the examples in S3's own reference: "Authenticating Requests: Using
// the Authorization Header".
func TestS3Signatures(t *testing.T) {
	keys := awsCredentials{AccessKeyID: "AKIAIOSFODNN7EXAMPLE", SecretAccessKey: "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"}
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

// s3Store emulates S3 and the metadata server of a machine at AWS. Its bucket is in eu-west-1.
type s3Store struct{ *fakeStore }

func (s s3Store) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	const metadataPath = "/latest/meta-data/"
	switch r.URL.Path {
	case "/latest/api/token":
		fmt.Fprint(w, "token")
		return
	case metadataPath + "iam/security-credentials/":
		if s.noIdentity {
			http.NotFound(w, r)
			return
		}
		fmt.Fprint(w, "skyserve-chat-replica\n")
		return
	case metadataPath + "iam/security-credentials/skyserve-chat-replica":
		fmt.Fprint(w, `{"AccessKeyId":"ASIA","SecretAccessKey":"secret","Token":"session","Expiration":"2026-05-01T18:00:00Z"}`)
		return
	case metadataPath + "placement/region":
		fmt.Fprint(w, "us-east-1")
		return
	}
	s.serveBucket(w, r)
}

func (s s3Store) serveBucket(w http.ResponseWriter, r *http.Request) {
	if !strings.Contains(r.Header.Get("Authorization"), "/eu-west-1/s3/") {
		w.Header().Set("X-Amz-Bucket-Region", "eu-west-1")
		w.WriteHeader(http.StatusMovedPermanently)
		return
	}
	broken := s.countAndBreak(r)
	key, inside := strings.CutPrefix(r.URL.Path, "/models/")
	switch {
	case r.Header.Get("X-Amz-Security-Token") != "session" || !inside && r.URL.Path != "/models":
		w.WriteHeader(http.StatusForbidden)
		fmt.Fprint(w, `<Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>`)
	case broken:
		writeHalf(w)
	case inside:
		http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(s.objects[key]))
	default:
		s.list(w, r)
	}
}

// list returns one object per page.
func (s s3Store) list(w http.ResponseWriter, r *http.Request) {
	type page struct {
		XMLName               xml.Name `xml:"ListBucketResult"`
		Contents              []object
		IsTruncated           bool
		NextContinuationToken string `xml:",omitempty"`
	}
	var p page
	keys := s.keysBelow(r.URL.Query().Get("prefix"))
	for i, key := range keys {
		if key <= r.URL.Query().Get("continuation-token") {
			continue
		}
		p.Contents = []object{{Key: key, Size: int64(len(s.objects[key])), LastModified: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)}}
		p.IsTruncated, p.NextContinuationToken = i+1 < len(keys), key
		break
	}
	_ = xml.NewEncoder(w).Encode(p)
}
