package testkit_test

import (
	"testing"

	"skyserve/internal/testkit"
)

func TestSlowIsSkippedOnlyWithShort(t *testing.T) {
	var ran bool
	t.Run("slow", func(t *testing.T) {
		testkit.Slow(t)
		ran = true
	})
	if ran == testing.Short() {
		t.Errorf("a slow test ran: %v, with -short: %v", ran, testing.Short())
	}
}
