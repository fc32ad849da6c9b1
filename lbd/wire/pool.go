package wire

import (
	"sync"
	"time"
)

// sweepEvery is how often idle connections are looked at: engines close theirs
// after 5 s and more, and until then each holds a file descriptor here.
const sweepEvery = 5 * time.Second

// pool keeps idle connections by host, the latest used on top. It needs no
// goroutine: a timer sweeps it while there is something to sweep.
type pool struct {
	perHost, most int
	keep          time.Duration

	// mu guards everything below.
	mu    sync.Mutex
	hosts map[string][]*conn // oldest first
	total int
	timer *time.Timer // nil until something is kept
	armed bool        // timer is set
}

// take hands out the connection to addr that was used last and that its host
// has neither closed nor spoken on since; nil when there is none.
func (p *pool) take(addr string) *conn {
	for {
		c := p.pop(addr)
		if c == nil {
			return nil
		}
		if time.Since(c.idleSince) < p.keep && c.quiet() {
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
	p.set(addr, list[:len(list)-1])
	return c
}

// set replaces a host's list; what is left of the old one is cleared.
func (p *pool) set(addr string, list []*conn) {
	old := p.hosts[addr]
	p.total += len(list) - len(old)
	if len(old) > len(list) {
		clear(old[len(list):])
	}
	p.hosts[addr] = list
}

// put keeps a connection; when there are too many, the oldest is closed.
func (p *pool) put(c *conn) {
	if p.perHost < 1 || p.most < 1 {
		c.close()
		return
	}
	c.idleSince = time.Now()
	p.mu.Lock()
	var surplus *conn
	if len(p.hosts[c.addr]) >= p.perHost {
		surplus = p.dropOldest(c.addr)
	} else if p.total >= p.most {
		surplus = p.dropOldest(p.oldest())
	}
	p.set(c.addr, append(p.hosts[c.addr], c))
	p.arm()
	p.mu.Unlock()
	if surplus != nil {
		surplus.close()
	}
}

// arm sets the timer of the next sweep unless it is set.
func (p *pool) arm() {
	switch {
	case p.armed:
		return
	case p.timer == nil:
		p.timer = time.AfterFunc(p.period(), p.sweep)
	default:
		p.timer.Reset(p.period())
	}
	p.armed = true
}

// oldest is the host whose oldest connection has been idle for the longest.
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
	p.set(addr, list[:copy(list, list[1:])])
	return c
}

// sweep closes what has been idle for too long or was closed by its host. The
// lock is held for one host at a time: 512 looks take a fifth of a millisecond.
func (p *pool) sweep() {
	p.mu.Lock()
	hosts := make([]string, 0, len(p.hosts))
	for addr := range p.hosts {
		hosts = append(hosts, addr)
	}
	p.mu.Unlock()
	for _, addr := range hosts {
		for _, c := range p.weed(addr) {
			c.close()
		}
	}
	p.mu.Lock()
	if p.armed = false; p.total > 0 {
		p.arm()
	}
	p.mu.Unlock()
}

// weed takes out of a host's list what is of no use any more.
func (p *pool) weed(addr string) (dead []*conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	list := p.hosts[addr]
	kept := make([]*conn, 0, len(list))
	for _, c := range list {
		if time.Since(c.idleSince) < p.keep && c.quiet() {
			kept = append(kept, c)
		} else {
			dead = append(dead, c)
		}
	}
	p.set(addr, kept)
	if len(kept) == 0 {
		delete(p.hosts, addr)
	}
	return dead
}

// period is the time between two sweeps.
func (p *pool) period() time.Duration { return min(p.keep, sweepEvery) }

// drain closes everything.
func (p *pool) drain() {
	p.mu.Lock()
	var all []*conn
	for addr, list := range p.hosts {
		all = append(all, list...)
		p.set(addr, nil)
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
