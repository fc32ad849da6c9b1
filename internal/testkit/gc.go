package testkit

import (
	"flag"
	"os"
	"runtime/debug"
)

// CollectRarely lets the garbage collector run when the heap is five times as large as what is live, unless GOGC is
// set or benchmarks run, whose figures are those of the product. Tests that allocate much and keep little need up to a
// third less CPU. Call it in TestMain, not in packages whose tests measure memory.
func CollectRarely() {
	flag.Parse()
	if os.Getenv("GOGC") == "" && flag.Lookup("test.bench").Value.String() == "" {
		debug.SetGCPercent(400)
	}
}
