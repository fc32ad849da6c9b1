package main

import (
	"context"
	"sync"
	"time"

	"skyserve/internal/agent"
)

// bookLife is the TTL of a machineBook's entry: it avoids listing the clouds each time a log is
// shown again.
const bookLife = 30 * time.Second

// machineBook caches the machine of the last log. It is safe for concurrent use.
type machineBook struct {
	mu   sync.Mutex
	id   string
	at   time.Time
	logs *machineLogs
}

// tail returns the last lines of the log of a machine. find looks the machine up in its cloud if it
// is not cached at the time now.
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
