package testcloud

import (
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"
)

// The example of the documentation, and requests that differ from it in one place.
func TestPresignedExampleOfDocumentation(t *testing.T) {
	const example = "https://examplebucket.s3.amazonaws.com/test.txt?X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential=AKIAIOSFODNN7EXAMPLE%2F20130524%2Fus-east-1%2Fs3%2Faws4_request" +
		"&X-Amz-Date=20130524T000000Z&X-Amz-Expires=86400&X-Amz-SignedHeaders=host&X-Amz-Signature=aeeed9bbccd4d02ee5c0109b86d86835f995330da4c265957d157751f604d404"
	signed := time.Date(2013, 5, 24, 0, 0, 0, 0, time.UTC)
	for _, tt := range []struct {
		name, old, with string
		after           time.Duration
		want            string
	}{
		{name: "as documented"},
		{name: "expires", after: 24*time.Hour + time.Second, want: "has expired"},
		{name: "before its time", after: -time.Hour, want: "has expired"},
		{name: "another key", old: "test.txt", with: "other.txt", want: "SignatureDoesNotMatch"},
		{name: "another region", old: "us-east-1", with: "eu-west-1", want: "SignatureDoesNotMatch"},
		{name: "another date", old: "%2F20130524", with: "%2F20130525", want: "X-Amz-Credential"},
		{name: "longer", old: "86400", with: "86401", want: "SignatureDoesNotMatch"},
		{name: "too long", old: "86400", with: "604801", want: "X-Amz-Expires"},
		{name: "another token", old: "&X-Amz-SignedHeaders", with: "&X-Amz-Security-Token=t&X-Amz-SignedHeaders", want: "InvalidToken"},
		{name: "no algorithm", old: "X-Amz-Algorithm=AWS4-HMAC-SHA256&", want: "X-Amz-Algorithm"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			u, err := url.Parse(strings.Replace(example, tt.old, tt.with, 1))
			if err != nil {
				t.Fatal(err)
			}
			err = verifyPresigned(&http.Request{Method: http.MethodGet, URL: u}, "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", "", signed.Add(tt.after))
			if got := errorText(err); tt.want == "" && err != nil || !strings.Contains(got, tt.want) {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}

func errorText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
