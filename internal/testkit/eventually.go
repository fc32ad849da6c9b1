package testkit

import (
	"testing"
	"time"
)

// Timeout is the maximum time that a test waits for a condition. It only guards against hanging: most conditions take
// milliseconds, but several elections of a cluster take over 20 s under the race detector on a busy machine.
const Timeout = time.Minute

// Eventually waits until ok returns true, and fails the test after Timeout. what describes the
// condition.
func Eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	ticker := time.NewTicker(5 * time.Millisecond)
	defer ticker.Stop()
	timeout := time.After(Timeout)
	for !ok() {
		select {
		case <-ticker.C:
		case <-timeout:
			t.Fatalf("condition not met within %s: %s", Timeout, what)
		}
	}
}
