package agent

import (
	"context"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"skyserve/internal/identity"
	"skyserve/internal/testkit"
)

// forwarder forwards connections to the address of a machine, and counts them.
type forwarder struct {
	address string
	to      atomic.Value // of string
	opened  atomic.Int32
}

func newForwarder(t *testing.T, to string) *forwarder {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	f := &forwarder{address: ln.Addr().String()}
	f.to.Store(to)
	var running sync.WaitGroup
	t.Cleanup(func() {
		ln.Close()
		running.Wait()
	})
	running.Go(func() {
		for {
			from, err := ln.Accept()
			if err != nil {
				return // the test has ended
			}
			f.opened.Add(1)
			to, err := net.Dial("tcp", f.to.Load().(string))
			if err != nil {
				from.Close()
				continue
			}
			for _, c := range [][2]net.Conn{{from, to}, {to, from}} {
				running.Go(func() {
					_, _ = io.Copy(c[0], c[1]) // until one end closes
					c[0].Close()
					c[1].Close()
				})
			}
		}
	})
	return f
}

// Statuses are read over one connection. The machine is verified again with each revocation list and every few minutes,
// and a machine that has restarted is read without an error.
func TestStatusesShareAConnection(t *testing.T) {
	w, dir := newTestService(t), t.TempDir()
	m := w.boot(dir, &fakeRunner{})
	f := newForwarder(t, m.Address)
	var kept Connections
	t.Cleanup(kept.Close)
	clock := time.Now()
	ann := w.operator()
	ann.Kept, ann.Now = &kept, func() time.Time { return clock }
	target := Target{Name: m.Name, Address: f.address, Fingerprint: m.Fingerprint}
	if _, err := ann.Ensure(t.Context(), target, sampleDeployment("1")); err != nil {
		t.Fatal(err)
	}
	opened := f.opened.Load()
	read := func(condition string, want int32) {
		t.Helper()
		for range 5 {
			if s, err := ann.Status(t.Context(), target); err != nil || s.Revision != "1" {
				t.Fatalf("%s: %+v, %v", condition, s, err)
			}
		}
		if got := f.opened.Load() - opened; got != want {
			t.Errorf("%s: %d connections were opened, want %d", condition, got, want)
		}
		opened = f.opened.Load()
	}
	read("enrolled", 0)
	ann.Revoked = w.revocationList(identity.Revoked{}, w.party(identity.Operator, "bob"))
	read("with a revocation list", 1)
	clock = clock.Add(maxKeptAge)
	read("minutes later", 1)
	m.stop()
	m = w.boot(dir, &fakeRunner{})
	f.to.Store(m.Address)
	testkit.Eventually(t, "the deployment runs", func() bool { return m.agent.Status().Revision == "1" })
	read("restarted", 1)
	kept.Close()
	read("closed", 1)
}

// mutedConn drops what is written once it is muted, as a relay that hangs does.
type mutedConn struct {
	net.Conn
	muted atomic.Bool
}

func (c *mutedConn) Write(b []byte) (int, error) {
	if c.muted.Load() {
		return len(b), nil
	}
	return c.Conn.Write(b)
}

// Statuses that are read through a relay share a connection too. After the relay has closed it, or when the relay hangs,
// another one is opened, and no read fails.
func TestRelayedStatusesShareAConnection(t *testing.T) {
	t.Parallel()
	w := newTestService(t)
	m := w.boot(t.TempDir(), &fakeRunner{})
	if _, err := w.operator().Ensure(t.Context(), m.Target, sampleDeployment("1")); err != nil {
		t.Fatal(err)
	}
	var kept Connections
	t.Cleanup(kept.Close)
	var last *mutedConn
	ann, dialled := w.operator(), 0
	ann.Kept = &kept
	ann.Dial = func(ctx context.Context, addr, _ string) (net.Conn, error) {
		conn, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
		dialled, last = dialled+1, &mutedConn{Conn: conn}
		return last, err
	}
	read := func(condition string, want int) {
		t.Helper()
		dialled = 0
		for range 5 {
			ctx, cancel := context.WithTimeout(t.Context(), 6*time.Second)
			if s, err := ann.Status(ctx, m.Target); err != nil || s.Revision != "1" {
				t.Fatalf("%s: %+v, %v", condition, s, err)
			}
			cancel()
		}
		if dialled != want {
			t.Errorf("%s: %d connections were opened, want %d", condition, dialled, want)
		}
	}
	read("first", 1)
	read("again", 0)
	last.Close()
	read("closed by the relay", 1)
	last.muted.Store(true)
	read("the relay hangs", 2) // one for the read that found it, and one that is kept
}
