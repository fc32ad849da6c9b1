package wire

import (
	"sync"
	"time"
)

// sweepInterval is the interval of checks of idle connections. Engines close idle connections after 5
// s or more. Until a check detects that, each uses a file descriptor here.
const sweepInterval = 5 * time.Second

// pool contains idle connections by host, the last used one last. It needs no goroutine: a timer
// sweeps it while it is not empty.
type pool struct {
	maxPerHost, maxTotal int
	idleTimeout          time.Duration

	// mu guards everything below.
	mu    sync.Mutex
	hosts map[string][]*conn // oldest first
	total int
	timer *time.Timer // nil until a connection is kept
	armed bool        // timer is set
}

// take returns the last used connection to addr on which the host has neither sent bytes nor closed
// it since, or nil.
func (p *pool) take(addr string) *conn {
	for {
		c := p.pop(addr)
		if c == nil {
			return nil
		}
		if time.Since(c.idleSince) < p.idleTimeout && c.isIdle() {
			c.reused = true
			return c
		}
		c.close()
	}
}

func (p *pool) pop(addr string) *conn {
	p.mu.Lock()
	defer p.mu.Unlock()
	list := p.hosts[addr]
	if len(list) == 0 {
		return nil
	}
	c := list[len(list)-1]
	p.setHost(addr, list[:len(list)-1])
	return c
}

// setHost replaces a host's list and clears the unused end of the old one.
func (p *pool) setHost(addr string, list []*conn) {
	old := p.hosts[addr]
	p.total += len(list) - len(old)
	if len(old) > len(list) {
		clear(old[len(list):])
	}
	p.hosts[addr] = list
}

// putConn adds a connection. If there are too many, it closes the oldest.
func (p *pool) putConn(c *conn) {
	if p.maxPerHost < 1 || p.maxTotal < 1 {
		c.close()
		return
	}
	c.idleSince = time.Now()
	p.mu.Lock()
	var excess *conn
	if len(p.hosts[c.addr]) >= p.maxPerHost {
		excess = p.dropOldest(c.addr)
	} else if p.total >= p.maxTotal {
		excess = p.dropOldest(p.oldest())
	}
	p.setHost(c.addr, append(p.hosts[c.addr], c))
	p.armTimer()
	p.mu.Unlock()
	if excess != nil {
		excess.close()
	}
}

// armTimer sets the timer of the next sweep unless it is already set.
func (p *pool) armTimer() {
	switch {
	case p.armed:
		return
	case p.timer == nil:
		p.timer = time.AfterFunc(p.sweepPeriod(), p.sweep)
	default:
		p.timer.Reset(p.sweepPeriod())
	}
	p.armed = true
}

// oldest returns the host whose oldest connection has been idle for the longest.
func (p *pool) oldest() string {
	host := ""
	for addr, list := range p.hosts {
		if len(list) == 0 {
			continue
		}
		if host == "" || list[0].idleSince.Before(p.hosts[host][0].idleSince) {
			host = addr
		}
	}
	return host
}

func (p *pool) dropOldest(addr string) *conn {
	list := p.hosts[addr]
	c := list[0]
	p.setHost(addr, list[:copy(list, list[1:])])
	return c
}

// sweep closes connections that were idle for too long or were closed by their host. It holds the lock
// for one host at a time: 512 checks take a fifth of a millisecond.
func (p *pool) sweep() {
	p.mu.Lock()
	hosts := make([]string, 0, len(p.hosts))
	for addr := range p.hosts {
		hosts = append(hosts, addr)
	}
	p.mu.Unlock()
	for _, addr := range hosts {
		for _, c := range p.removeDead(addr) {
			c.close()
		}
	}
	p.mu.Lock()
	if p.armed = false; p.total > 0 {
		p.armTimer()
	}
	p.mu.Unlock()
}

// removeDead removes the unusable connections from a host's list and returns them.
func (p *pool) removeDead(addr string) (dead []*conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	list := p.hosts[addr]
	kept := make([]*conn, 0, len(list))
	for _, c := range list {
		if time.Since(c.idleSince) < p.idleTimeout && c.isIdle() {
			kept = append(kept, c)
		} else {
			dead = append(dead, c)
		}
	}
	p.setHost(addr, kept)
	if len(kept) == 0 {
		delete(p.hosts, addr)
	}
	return dead
}

// sweepPeriod returns the time between two sweeps.
func (p *pool) sweepPeriod() time.Duration { return min(p.idleTimeout, sweepInterval) }

// closeAll closes all connections.
func (p *pool) closeAll() {
	p.mu.Lock()
	var all []*conn
	for addr, list := range p.hosts {
		all = append(all, list...)
		p.setHost(addr, nil)
	}
	clear(p.hosts)
	if p.armed {
		p.timer.Stop()
		p.armed = false
	}
	p.mu.Unlock()
	for _, c := range all {
		c.close()
	}
}
