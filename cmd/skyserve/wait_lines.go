package main

import (
	"fmt"
	"slices"
	"time"

	"skyserve/internal/printable"
)

const (
	// waitSilence is how long a wait prints nothing: processes on this computer are ready within seconds.
	waitSilence = 5 * time.Second
	// waitRepeat is the minimum time between two lines about the same machine: its reason may contain figures.
	waitRepeat = 30 * time.Second
	// maxWaitLines is the maximum number of machines that are printed at once.
	maxWaitLines = 4
)

// waitLines are the lines of a wait for machines: each machine that is not ready yet, and the reason. The zero value has
// printed none.
type waitLines struct {
	balancers []string // their ids
	printed   map[string]waitLine
}

// waitLine is the last line about a machine.
type waitLine struct {
	reason string
	at     time.Duration
}

// due returns the lines to print after a time of waiting. ids are the machines that are not ready yet, sorted; reasons are by
// id. A machine has another line when its reason has changed. Balancers have none while replicas are not ready: they wait
// for these.
func (w *waitLines) due(elapsed time.Duration, ids []string, reasons map[string]string) (lines []string) {
	if elapsed < waitSilence {
		return nil
	}
	isBalancer := func(id string) bool { return slices.Contains(w.balancers, id) }
	if replicas := slices.DeleteFunc(slices.Clone(ids), isBalancer); len(replicas) > 0 {
		ids = replicas
	}
	if w.printed == nil {
		w.printed = map[string]waitLine{}
	}
	more := 0
	for _, id := range ids {
		last, known := w.printed[id]
		if known && (last.reason == reasons[id] || elapsed-last.at < waitRepeat) {
			continue
		}
		w.printed[id] = waitLine{reasons[id], elapsed}
		if len(lines) == maxWaitLines {
			more++
			continue
		}
		lines = append(lines, fmt.Sprintf("waiting for %s: %s", id, reasons[id]))
	}
	if more > 0 {
		lines = append(lines, fmt.Sprintf("waiting for %s; 'skyserve status' shows them", printable.Count(more, "other machine")))
	}
	return lines
}
