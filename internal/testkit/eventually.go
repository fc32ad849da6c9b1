package testkit

import (
	"testing"
	"time"
)

// Timeout bounds what a test waits for; nothing takes nearly as long.
const Timeout = 20 * time.Second

// Eventually waits until ok is true, and fails the test after Timeout. what names it.
func Eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	ticker := time.NewTicker(5 * time.Millisecond)
	defer ticker.Stop()
	timeout := time.After(Timeout)
	for !ok() {
		select {
		case <-ticker.C:
		case <-timeout:
			t.Fatalf("not within %s: %s", Timeout, what)
		}
	}
}
