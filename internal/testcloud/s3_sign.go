package testcloud

import (
	"cmp"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
)

// This file verifies presigned URLs, by "Authenticating Requests: Using Query Parameters (AWS Signature
// Version 4)" in the Amazon S3 API Reference (November 2026).

// maxPresigned is the maximum of X-Amz-Expires: seven days.
const maxPresigned = 604800

// verifyPresigned rejects a presigned request whose signature is wrong or has expired. secret and token are
// those of the access key.
func verifyPresigned(r *http.Request, secret, token string, now time.Time) error {
	q := r.URL.Query()
	for name, want := range map[string]string{"X-Amz-Algorithm": "AWS4-HMAC-SHA256", "X-Amz-SignedHeaders": "host"} {
		if q.Get(name) != want {
			return badRequest("AuthorizationQueryParametersError", "%s must be %q, got %q", name, want, q.Get(name))
		}
	}
	signed, err := time.Parse("20060102T150405Z", q.Get("X-Amz-Date"))
	if err != nil {
		return badRequest("AuthorizationQueryParametersError", "X-Amz-Date must be in the ISO8601 Long Format, got %q", q.Get("X-Amz-Date"))
	}
	seconds, err := strconv.Atoi(q.Get("X-Amz-Expires"))
	if err != nil || seconds < 1 || seconds > maxPresigned {
		return badRequest("AuthorizationQueryParametersError", "X-Amz-Expires must be between 1 and %d, got %q", maxPresigned, q.Get("X-Amz-Expires"))
	}
	if q.Get("X-Amz-Security-Token") != token {
		return badRequest("InvalidToken", "The provided token is malformed or otherwise invalid.")
	}
	if age := now.Sub(signed); age > time.Duration(seconds)*time.Second || age < -15*time.Minute {
		return newAWSError(http.StatusForbidden, "AccessDenied", "Request has expired")
	}
	want, err := presignature(r, secret)
	if err != nil {
		return err
	}
	if !hmac.Equal([]byte(want), []byte(q.Get("X-Amz-Signature"))) {
		return newAWSError(http.StatusForbidden, "SignatureDoesNotMatch", "The request signature we calculated does not match the signature you provided.")
	}
	return nil
}

// presignature returns the signature of a presigned request whose only signed header is its host.
func presignature(r *http.Request, secret string) (string, error) {
	q := r.URL.Query()
	_, scope, _ := strings.Cut(q.Get("X-Amz-Credential"), "/")
	parts := strings.Split(scope, "/") // date/region/service/aws4_request
	if len(parts) != 4 || !strings.HasPrefix(q.Get("X-Amz-Date"), parts[0]) {
		return "", badRequest("AuthorizationQueryParametersError", "X-Amz-Credential is malformed: %q", q.Get("X-Amz-Credential"))
	}
	var pairs []string
	for name, values := range q {
		for _, v := range values {
			if name != "X-Amz-Signature" {
				pairs = append(pairs, encodeURI(name, false)+"="+encodeURI(v, false))
			}
		}
	}
	slices.Sort(pairs)
	canonical := strings.Join([]string{
		r.Method, encodeURI(r.URL.Path, true), strings.Join(pairs, "&"), "host:" + cmp.Or(r.Host, r.URL.Host), "", "host", "UNSIGNED-PAYLOAD",
	}, "\n")
	hash := sha256.Sum256([]byte(canonical))
	key := []byte("AWS4" + secret)
	for _, part := range parts {
		key = hmacSHA256(key, part)
	}
	text := strings.Join([]string{"AWS4-HMAC-SHA256", q.Get("X-Amz-Date"), scope, hex.EncodeToString(hash[:])}, "\n")
	return hex.EncodeToString(hmacSHA256(key, text)), nil
}

func hmacSHA256(key []byte, text string) []byte {
	h := hmac.New(sha256.New, key)
	h.Write([]byte(text))
	return h.Sum(nil)
}

// encodeURI is the documentation's UriEncode: every byte except unreserved characters is encoded, in a path
// also except slashes.
func encodeURI(text string, path bool) string {
	const unreserved = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~"
	var b strings.Builder
	for _, c := range []byte(text) {
		if strings.IndexByte(unreserved, c) >= 0 || path && c == '/' {
			b.WriteByte(c)
			continue
		}
		fmt.Fprintf(&b, "%%%02X", c)
	}
	return b.String()
}

// presignedScope returns the header value that a presigned request replaces; empty for any other request.
func presignedScope(query url.Values) string {
	if !query.Has("X-Amz-Signature") {
		return ""
	}
	return "Credential=" + query.Get("X-Amz-Credential")
}

// verifyS3 rejects a presigned call whose signature is wrong. The emulation knows the secrets of machines only.
// The caller holds mu.
func (a *AWS) verifyS3(c s3Call) error {
	if !c.query.Has("X-Amz-Signature") {
		return nil
	}
	if c.callerMachine() == "" {
		return newAWSError(http.StatusForbidden, "InvalidAccessKeyId", "The AWS Access Key Id you provided does not exist in our records.")
	}
	return verifyPresigned(c.request, machineSecret, machineToken, a.now())
}
