package deploy

import (
	"context"
	"maps"
	"sync"
	"time"

	"skyserve/provision"
	"skyserve/provision/cloud"
)

// Limits of reading the key fingerprints of machines that boot. Clouds limit these calls per account and
// region, and all machines of a service share the limit with launches and lists.
const (
	// attestationRate is the rate of reads that find no fingerprint, per second, of all machines.
	attestationRate = 2
	// attestationBurst is the number of reads that may follow an idle time.
	attestationBurst = 8
	// attestationsPerKey is the number of reads that a found fingerprint permits in addition: machines that
	// were launched together publish their keys together.
	attestationsPerKey  = 4
	maxAttestationBurst = 32
	// maxAttestationReads is the maximum number of concurrent reads.
	maxAttestationReads = 8
	// A machine without a fingerprint is read again after minAttestationBackoff, then after twice the time, up
	// to maxAttestationBackoff. Google permits ten reads of a machine per minute.
	minAttestationBackoff = 3 * time.Second
	maxAttestationBackoff = 9 * time.Second
	// attestationEntryTTL is how long a machine keeps its place in the order of reads after the last request for its
	// fingerprint.
	attestationEntryTTL = 30 * time.Second
)

// limitedAttestor reads key fingerprints at a limited rate for all machines of a service. A machine whose turn
// has not come has no fingerprint yet, or the error of its last read; machines that were read longest ago come
// first. Machines on this computer are not limited. It is safe for concurrent use.
type limitedAttestor struct {
	next provision.KeyAttestor

	mu         sync.Mutex
	machines   map[string]*attestation // by handle
	tokens     float64                 // permitted reads
	refilledAt time.Time
	readSlots  chan struct{} // running reads
}

// attestation is the state of a machine without a known fingerprint.
type attestation struct {
	requestedAt, readAt, nextReadAt time.Time
	backoff                         time.Duration
	running                         bool
	err                             error // of the last read
}

// LimitAttestor returns an attestor that limits the rate and the concurrency of calls of another one. All deliveries
// of a process to a service should share it.
func LimitAttestor(next provision.KeyAttestor) provision.KeyAttestor {
	return &limitedAttestor{next: next, machines: map[string]*attestation{}, tokens: attestationBurst, readSlots: make(chan struct{}, maxAttestationReads)}
}

// Fingerprint implements provision.KeyAttestor.
func (l *limitedAttestor) Fingerprint(ctx context.Context, o provision.Object) (string, error) {
	if cloud.RunsOnThisComputer(o.Region) {
		return l.next.Fingerprint(ctx, o)
	}
	m, admitted, err := l.admit(o.Handle)
	if !admitted {
		return "", err
	}
	fingerprint, err := l.read(ctx, o)
	l.record(o.Handle, m, fingerprint, err)
	return fingerprint, err
}

// read reads a fingerprint, while few others are read.
func (l *limitedAttestor) read(ctx context.Context, o provision.Object) (string, error) {
	select {
	case l.readSlots <- struct{}{}:
	case <-ctx.Done():
		return "", context.Cause(ctx)
	}
	defer func() { <-l.readSlots }()
	return l.next.Fingerprint(ctx, o)
}

// admit reports whether a machine may be read now; err is the error of its last read if it may not.
func (l *limitedAttestor) admit(handle string) (m *attestation, admitted bool, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	if l.refilledAt.IsZero() {
		l.refilledAt = now
	}
	if l.tokens < attestationBurst {
		l.tokens = min(attestationBurst, l.tokens+attestationRate*now.Sub(l.refilledAt).Seconds())
	}
	l.refilledAt = now
	maps.DeleteFunc(l.machines, func(_ string, m *attestation) bool { return !m.running && now.Sub(m.requestedAt) > attestationEntryTTL })
	m = l.machines[handle]
	if m == nil {
		m = &attestation{}
		l.machines[handle] = m
	}
	m.requestedAt = now
	if m.running || now.Before(m.nextReadAt) || float64(l.countAhead(m, now)+1) > l.tokens {
		return nil, false, m.err
	}
	m.running, m.readAt = true, now
	l.tokens--
	return m, true, nil
}

// countAhead returns the number of machines that may be read before a machine.
func (l *limitedAttestor) countAhead(m *attestation, now time.Time) int {
	n := 0
	for _, other := range l.machines {
		if !other.running && !now.Before(other.nextReadAt) && other.readAt.Before(m.readAt) {
			n++
		}
	}
	return n
}

// record records the result of a read. A found fingerprint ends the backoff of all machines.
func (l *limitedAttestor) record(handle string, m *attestation, fingerprint string, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	m.running, m.err = false, err
	if err != nil || fingerprint == "" {
		m.backoff = min(max(2*m.backoff, minAttestationBackoff), maxAttestationBackoff)
		m.nextReadAt = time.Now().Add(m.backoff)
		return
	}
	delete(l.machines, handle)
	l.tokens = min(maxAttestationBurst, l.tokens+1+attestationsPerKey)
	for _, other := range l.machines {
		other.backoff, other.nextReadAt = 0, time.Time{}
	}
}
