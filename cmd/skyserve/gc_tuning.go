package main

import (
	"context"
	"os"
	"runtime/debug"
	"runtime/metrics"
	"slices"
	"sync/atomic"
	"time"

	"skyserve/internal/service"
)

const (
	// minGarbage is the minimum amount of garbage between two runs of the collector. A
	// balancer keeps little live memory and allocates with every request: collecting whenever
	// the heap has doubled would take most of its time.
	minGarbage = 64 << 20
	// storeGarbage is minGarbage of a process with a member of the store: the store reads files of batches in
	// blocks of 8 MB, whose buffers only the collector frees.
	storeGarbage = 24 << 20
	// garbageShare limits the garbage of a large heap to 1/garbageShare of the live memory: with
	// ten thousand streams, doubling would be half a gigabyte.
	garbageShare = 8
	// Bounds of GOGC, in percent of the live memory.
	minPercent, maxPercent = 100 / garbageShare, 1600
)

// gcPercent returns the value of GOGC for inUse bytes of live memory; garbage is the minimum of garbage.
func gcPercent(inUse, garbage uint64) int {
	room := max(garbage, inUse/garbageShare)
	return int(min(max(100*room/max(inUse, 1), minPercent), maxPercent))
}

// memoryLimit returns the heap size above which a process with a memory limit of total collects
// more often. The other fifth is for memory that the collector does not see: kernel memory of
// connections counts in the process's control group too.
func memoryLimit(total service.Size) int64 { return int64(total / 5 * 4) }

// limitMemory sets the soft memory limit to memoryLimit, unless GOMEMLIMIT is set.
func limitMemory(total service.Size) {
	if os.Getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(memoryLimit(total))
	}
}

// liveWindow is the number of samples, one a second, whose maximum is the live memory for gcPercent. After
// a collection that finds little live memory, such as between two reads of a store's blocks, a high GOGC
// would allow a multiple of minGarbage once there is more.
const liveWindow = 30

// recentMax is the maximum of the last liveWindow samples.
type recentMax struct {
	samples [liveWindow]uint64
	next    int
}

// add adds a sample and returns the maximum.
func (m *recentMax) add(sample uint64) uint64 {
	m.samples[m.next%liveWindow] = sample
	m.next++
	return slices.Max(m.samples[:])
}

// servesStore is whether this process has a member of the store.
var servesStore atomic.Bool

// allowedGarbage returns the minimum of garbage of this process.
func allowedGarbage() uint64 {
	if servesStore.Load() {
		return storeGarbage
	}
	return minGarbage
}

// tuneCollector keeps GOGC at gcPercent until ctx ends, unless the GOGC variable is set.
func tuneCollector(ctx context.Context) {
	if os.Getenv("GOGC") != "" {
		return
	}
	samples := []metrics.Sample{{Name: "/gc/heap/live:bytes"}, {Name: "/memory/classes/heap/stacks:bytes"}}
	applied, recent := 0, recentMax{}
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		metrics.Read(samples)
		want := gcPercent(recent.add(samples[0].Value.Uint64()+samples[1].Value.Uint64()), allowedGarbage())
		if 5*want < 4*applied || 4*want > 5*applied { // SetGCPercent stops the world
			debug.SetGCPercent(want)
			applied = want
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}
