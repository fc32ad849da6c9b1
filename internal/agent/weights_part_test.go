package agent

import (
	"io"
	"net/http"
	"strings"
	"testing"
)

// A full response to a range request is rejected, and not written.
func TestFullResponseToRangeIsRejected(t *testing.T) {
	for status, want := range map[int]bool{http.StatusPartialContent: true, http.StatusOK: false} {
		_, err := partialBody(&http.Response{StatusCode: status, Body: io.NopCloser(strings.NewReader("whole"))}, 32, 32)
		if (err == nil) != want {
			t.Errorf("%d: %v", status, err)
		}
	}
}
