package testkit

import (
	"os"
	"runtime/debug"
)

// CollectRarely lets the garbage collector run when the heap is five times as large as what is live, unless GOGC is
// set. Tests with emulated clouds allocate much and keep little: those of internal/controller/deploy need a fifth
// less CPU. Call it in TestMain, not in packages whose tests measure memory.
func CollectRarely() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(400)
	}
}
