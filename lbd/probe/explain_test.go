package probe

import (
	"crypto/tls"
	"net/http"
	"net/url"
	"strings"
	"testing"
)

// An https URL of an engine without TLS has a reason that says what to write.
func TestExplainMissingTLS(t *testing.T) {
	for _, err := range []error{http.ErrSchemeMismatch, tls.RecordHeaderError{Msg: "first record does not look like a TLS handshake"}} {
		reason, timedOut := explain(&url.Error{Op: "Get", URL: "https://a", Err: err})
		if timedOut || !strings.Contains(reason, "write http:// in its URL") {
			t.Errorf("%v: %q, %v", err, reason, timedOut)
		}
	}
}
