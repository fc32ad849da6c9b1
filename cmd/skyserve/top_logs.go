package main

import (
	"context"
	"sync"
	"time"

	"skyserve/internal/agent"
)

// bookLife is how long the machines of clouds count as known: their APIs are not asked
// each time that somebody looks at a log again.
const bookLife = 30 * time.Second

// machineBook remembers which machine was found for a log. It is safe for concurrent use.
type machineBook struct {
	mu   sync.Mutex
	id   string
	at   time.Time
	logs *machineLogs
}

// tail is the last lines of the log of a machine, at now; find looks it up in its cloud.
func (b *machineBook) tail(ctx context.Context, id string, lines int, now time.Time, find func() (*machineLogs, error)) ([]string, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.logs == nil || b.id != id || now.Sub(b.at) >= bookLife {
		logs, err := find()
		if err != nil {
			return nil, err
		}
		b.id, b.at, b.logs = id, now, logs
	}
	return b.logs.askOne(ctx, b.logs.wanted[0], min(lines, agent.MaxLogLines))
}
