package main

import (
	"context"
	"sync"
	"time"

	"skyserve/internal/node"
	"skyserve/internal/service"
	"skyserve/provision/local"
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

// tail is the last lines of a machine's log, at now.
func (b *cloudBook) tail(ctx context.Context, clouds *cloudFlags, svc local.Service, spec *service.Spec, id string, lines int, now time.Time) ([]string, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.logs == nil || b.id != id || now.Sub(b.at) >= bookLife {
		logs, _, err := openCloudLogs(ctx, clouds, svc, spec, id)
		if err != nil {
			return nil, err
		}
		b.id, b.at, b.logs = id, now, logs
	}
	return b.logs.askOne(ctx, b.logs.wanted[0], min(lines, node.MaxLogLines))
}
