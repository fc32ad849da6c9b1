package agent

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"
)

// awsCredentials are the temporary credentials of a machine's IAM role, valid for a few hours.
type awsCredentials struct {
	AccessKeyID     string    `json:"AccessKeyId"`
	SecretAccessKey string    `json:"SecretAccessKey"`
	Token           string    `json:"Token"`
	Expiration      time.Time `json:"Expiration"`
}

// emptyBodySHA256 is the SHA-256 of an empty body, which all requests signed here have.
const emptyBodySHA256 = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"

// sign signs a request to S3 that has no body, with AWS Signature Version 4. The signature covers
// all headers that are already set.
func (k awsCredentials) sign(r *http.Request, region string, at time.Time) {
	const stamp = "20060102T150405Z"
	now := at.UTC().Format(stamp)
	r.Header.Set("X-Amz-Date", now)
	r.Header.Set("X-Amz-Content-Sha256", emptyBodySHA256)
	if k.Token != "" {
		r.Header.Set("X-Amz-Security-Token", k.Token)
	}
	names, lines := []string{"host"}, map[string]string{"host": r.URL.Host}
	for name := range r.Header {
		lower := strings.ToLower(name)
		names, lines[lower] = append(names, lower), strings.TrimSpace(r.Header.Get(name))
	}
	slices.Sort(names)
	var headers strings.Builder
	for _, name := range names {
		headers.WriteString(name + ":" + lines[name] + "\n")
	}
	signed := strings.Join(names, ";")
	canonical := strings.Join([]string{r.Method, r.URL.EscapedPath(), r.URL.RawQuery, headers.String(), signed, emptyBodySHA256}, "\n")
	sum := sha256.Sum256([]byte(canonical))
	scope := strings.Join([]string{now[:8], region, "s3", "aws4_request"}, "/")
	key := []byte("AWS4" + k.SecretAccessKey)
	for _, part := range append(strings.Split(scope, "/"), "AWS4-HMAC-SHA256\n"+now+"\n"+scope+"\n"+hex.EncodeToString(sum[:])) {
		mac := hmac.New(sha256.New, key)
		mac.Write([]byte(part))
		key = mac.Sum(nil)
	}
	r.Header.Set("Authorization", "AWS4-HMAC-SHA256 Credential="+k.AccessKeyID+"/"+scope+",SignedHeaders="+signed+",Signature="+hex.EncodeToString(key))
}

// awsEscape escapes paths and queries for a signature: all bytes but letters, digits and -._~ as
// upper-case hexadecimal. It does not escape slashes if keepSlashes is true.
func awsEscape(text string, keepSlashes bool) string {
	escaped := strings.ReplaceAll(url.QueryEscape(text), "+", "%20")
	if keepSlashes {
		escaped = strings.ReplaceAll(escaped, "%2F", "/")
	}
	return escaped
}
