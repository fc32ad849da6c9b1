package main

import (
	"os"
	"path/filepath"
)

// timerSlack is how much later than requested Linux may wake a thread of the tests' processes, in nanoseconds, instead of
// 50 µs: much less than the intervals of heartbeats and probes. Go's monitor thread otherwise wakes many times during each
// of the short bursts of work of an idle service, which costs a third of its CPU time.
const timerSlack = "5000000"

func init() { relaxTimers = relaxThreads }

// relaxThreads sets timerSlack for the threads of this process. Threads and processes inherit it from the thread that
// starts them. Linux lets only privileged users change other threads than the current one: for others, the tests need
// some more CPU time.
func relaxThreads() error {
	threads, err := filepath.Glob("/proc/self/task/[0-9]*")
	if err != nil {
		return err
	}
	for _, thread := range threads {
		err := os.WriteFile(filepath.Join("/proc", filepath.Base(thread), "timerslack_ns"), []byte(timerSlack), 0)
		if err != nil && !os.IsPermission(err) && !os.IsNotExist(err) { // the thread has ended
			return err
		}
	}
	return nil
}
