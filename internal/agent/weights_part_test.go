package agent

import (
	"io"
	"net/http"
	"strings"
	"testing"
)

// A store that answers with the whole where a part was asked for writes nothing.
func TestFullResponseToRangeIsRejected(t *testing.T) {
	for status, want := range map[int]bool{http.StatusPartialContent: true, http.StatusOK: false} {
		_, err := partialBody(&http.Response{StatusCode: status, Body: io.NopCloser(strings.NewReader("whole"))}, 32, 32)
		if (err == nil) != want {
			t.Errorf("%d: %v", status, err)
		}
	}
}
