package main

import (
	"context"
	"sync"
	"time"

	"skyserve/internal/node"
)

// bookLife is how long the machines of clouds count as known: their APIs are not asked
// each time that somebody looks at a log again.
const bookLife = 30 * time.Second

// cloudBook remembers which machine was found for a log. It is safe for concurrent use.
type cloudBook struct {
	mu   sync.Mutex
	id   string
	at   time.Time
	logs *cloudLogs
}

// tail is the last lines of the log of a machine, at now; find looks it up in its cloud.
func (b *cloudBook) tail(ctx context.Context, id string, lines int, now time.Time, find func() (*cloudLogs, error)) ([]string, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.logs == nil || b.id != id || now.Sub(b.at) >= bookLife {
		logs, err := find()
		if err != nil {
			return nil, err
		}
		b.id, b.at, b.logs = id, now, logs
	}
	return b.logs.askOne(ctx, b.logs.wanted[0], min(lines, node.MaxLogLines))
}
