package main

import (
	"context"
	"os"
	"runtime/debug"
	"runtime/metrics"
	"time"

	"skyserve/internal/service"
)

const (
	// garbageRoom is how much garbage a balancer lets pile up between two runs of
	// the collector: it keeps little and makes some with every request, so that
	// collecting whenever the heap has doubled would be most of the time.
	garbageRoom = 64 << 20
	// garbageShare is what it lets pile up beside much that is in use: of ten
	// thousand streams doubling would be half a gigabyte.
	garbageShare = 8
	// Bounds of what the collector is told, in percent of what is in use.
	leastPercent, mostPercent = 100 / garbageShare, 1600
)

// gcPercent is what GOGC must be with so many bytes in use.
func gcPercent(inUse uint64) int {
	room := max(garbageRoom, inUse/garbageShare)
	return int(min(max(100*room/max(inUse, 1), leastPercent), mostPercent))
}

// memoryLimit is from where on a process that may take total works harder to collect
// garbage. The fifth beyond it is for what the collector does not see: what the kernel
// holds of connections counts in the process's control group too.
func memoryLimit(total service.Size) int64 { return int64(total / 5 * 4) }

// limitMemory keeps the heap below memoryLimit as far as that can be, unless GOMEMLIMIT
// says what the limit is to be.
func limitMemory(total service.Size) {
	if os.Getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(memoryLimit(total))
	}
}

// tuneCollector keeps the collector at gcPercent until ctx ends, unless GOGC
// says what it is to do.
func tuneCollector(ctx context.Context) {
	if os.Getenv("GOGC") != "" {
		return
	}
	samples := []metrics.Sample{{Name: "/gc/heap/live:bytes"}, {Name: "/memory/classes/heap/stacks:bytes"}}
	told := 0
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		metrics.Read(samples)
		want := gcPercent(samples[0].Value.Uint64() + samples[1].Value.Uint64())
		if 5*want < 4*told || 4*want > 5*told { // telling it stops the world
			debug.SetGCPercent(want)
			told = want
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}
