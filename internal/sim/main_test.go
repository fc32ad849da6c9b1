package sim

import (
	"os"
	"testing"

	"skyserve/internal/testkit"
)

func TestMain(m *testing.M) {
	testkit.CollectRarely()
	os.Exit(m.Run())
}
