package main

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	"skyserve/internal/telemetry"
)

// The hint of a failed restore says whether the store was changed.
func TestRestoreErrorsSayWhatChanged(t *testing.T) {
	for _, c := range []struct {
		status int
		want   string
	}{
		{400, "nothing was changed"},
		{401, "nothing was changed; for an http URL, set SKYSERVE_ADMIN_TOKEN to the token of the admin API; for https, run 'skyserve connect'"},
		{404, "nothing was changed"},
		{409, "nothing was changed; --force discards"},
		{423, "nothing was changed; wait until"},
		{500, "the store may be incomplete: run the command again"},
		{503, "the store may be incomplete: run the command again"},
	} {
		err := restoreError("chat", fmt.Errorf("trying: %w", &telemetry.StatusError{Status: c.status, Message: "because"}))
		var coded *exitError
		if !errors.As(err, &coded) || coded.code != exitFailed || err.Error() != "restoring chat: because" || !strings.HasPrefix(coded.hint, c.want) {
			t.Errorf("status %d: got %#v", c.status, err)
		}
	}
	var coded *exitError
	if err := restoreError("chat", io.ErrUnexpectedEOF); !errors.As(err, &coded) || !strings.HasPrefix(coded.hint, "'skyserve status'") {
		t.Errorf("without a response: got %#v", err)
	}
}
