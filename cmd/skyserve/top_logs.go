package main

import (
	"context"
	"sync"
	"time"

	"skyserve/internal/agent"
)

// logCacheTTL is the TTL of a logCache's entry: it avoids listing the clouds each time a log is
// shown again.
const logCacheTTL = 30 * time.Second

// logCache caches the machine of the last log. It is safe for concurrent use.
type logCache struct {
	mu   sync.Mutex
	id   string
	at   time.Time
	logs *machineLogs
}

// tail returns the last lines of the log of a machine. find looks the machine up in its cloud if it
// is not cached at the time now.
func (b *logCache) tail(ctx context.Context, id string, lines int, now time.Time, find func() (*machineLogs, error)) ([]string, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.logs == nil || b.id != id || now.Sub(b.at) >= logCacheTTL {
		logs, err := find()
		if err != nil {
			return nil, err
		}
		b.id, b.at, b.logs = id, now, logs
	}
	return b.logs.fetchOne(ctx, b.logs.wanted[0], min(lines, agent.MaxLogLines))
}
