package agent

import (
	"math/rand/v2"
	"net/http"
	"sync"
	"time"

	"skyserve/internal/identity"
)

// Limits of kept connections.
const (
	// keptIdleTimeout is longer than the interval at which statuses are read, and shorter than the time after which
	// agents close idle connections (requestTimeout), so that no connection is closed while a request is being sent.
	keptIdleTimeout = 20 * time.Second
	// maxKeptAge bounds how long a certificate is used after it has expired or has been replaced: certificates are
	// verified when a connection is opened, and revoked ones end it at once. A leader that opens a
	// connection to each of a thousand agents at half this age uses 1 % of a core for the handshakes.
	maxKeptAge = 10 * time.Minute
)

// Connections keeps connections to agents open, for one party. A status that is read every second or more often would
// otherwise cost both ends a handshake each time, which is most of its CPU. The zero value is ready for use.
type Connections struct {
	mu       sync.Mutex
	machines map[keptKey]keptConnection
}

// keptKey identifies an agent, and the revocation list with which it was verified.
type keptKey struct {
	name    identity.Name
	address string
	revoked int64
}

// keptConnection is the transport of one agent; it has one connection, or one per simultaneous request.
type keptConnection struct {
	transport *http.Transport
	opened    time.Time // minus a random time, so that connections do not end at the same time
}

// transport returns the transport for reading the status of m, and whether it was used before. Connections end after
// random ages from half of maxKeptAge on: handshakes with a thousand agents at once would delay all of them.
func (k *Connections) transport(o *Client, m Target) (t *http.Transport, earlier bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	key, now := keptKey{m.Name, m.Address, o.Revoked.Number()}, o.now()
	if c, known := k.machines[key]; known && now.Sub(c.opened) < maxKeptAge {
		return c.transport, true
	}
	for other, c := range k.machines { // the machines of the others may no longer exist
		if now.Sub(c.opened) >= maxKeptAge || other.revoked != key.revoked {
			c.transport.CloseIdleConnections()
			delete(k.machines, other)
		}
	}
	t = o.newTransport(o.Party.To(m.Name), requestTimeout)
	t.IdleConnTimeout = keptIdleTimeout
	if k.machines == nil {
		k.machines = map[keptKey]keptConnection{}
	}
	k.machines[key] = keptConnection{t, now.Add(-rand.N(maxKeptAge / 2))}
	return t, false
}

// Close closes the connections that are not in use.
func (k *Connections) Close() {
	k.mu.Lock()
	defer k.mu.Unlock()
	for key, c := range k.machines {
		c.transport.CloseIdleConnections()
		delete(k.machines, key)
	}
}
