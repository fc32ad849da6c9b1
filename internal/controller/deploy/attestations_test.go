package deploy_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"skyserve/internal/agent"
	"skyserve/internal/controller/deploy"
	"skyserve/internal/identity"
	"skyserve/provision"
)

// bootingMachines attests keys of machines that boot, and counts the calls.
type bootingMachines struct {
	ready   func(handle string) time.Time
	err     error
	latency time.Duration

	mu           sync.Mutex
	calls, empty int
	running, max int
}

func (b *bootingMachines) Fingerprint(_ context.Context, o provision.Object) (string, error) {
	b.mu.Lock()
	b.calls++
	b.running++
	b.max = max(b.max, b.running)
	b.mu.Unlock()
	time.Sleep(b.latency)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.running--
	if b.err != nil || time.Now().Before(b.ready(o.Handle)) {
		b.empty++
		return "", b.err
	}
	return "key of " + o.Handle, nil
}

// enrolPolled polls machines like a delivery until each has its fingerprint, and returns the longest time
// between a machine's key and its enrolment.
func enrolPolled(t *testing.T, b *bootingMachines, attestor provision.KeyAttestor, machines int) (longest time.Duration) {
	authority, err := identity.NewAuthority("chat", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	dl := &deploy.Delivery{Service: "chat", Authority: authority, Attestor: attestor}
	var wg sync.WaitGroup
	delays := make([]time.Duration, machines)
	for i := range machines {
		wg.Go(func() {
			o := claimedMachine(provision.KindReplica, fmt.Sprint("a-", i), fmt.Sprint("i-", i), "")
			for {
				_, err := dl.Machine(o).Fingerprint(t.Context())
				if err == nil {
					delays[i] = time.Since(b.ready(o.Handle))
					return
				}
				if !errors.Is(err, agent.ErrNoFingerprint) {
					t.Error(err)
					return
				}
				time.Sleep(deploy.PollInterval)
			}
		})
	}
	wg.Wait()
	for _, d := range delays {
		longest = max(longest, d)
	}
	return longest
}

// A hundred machines that boot for three minutes cause about two calls a second together, and each is
// enrolled some seconds after its key appears. One machine is read every few seconds.
func TestKeysAreReadAtALimitedRate(t *testing.T) {
	const boot = 3 * time.Minute
	for _, tt := range []struct {
		machines int
		rate     float64       // fruitless calls per second
		within   time.Duration // enrolment after the key
		max      int           // concurrent calls
	}{{1, 0.15, 10 * time.Second, 1}, {10, 1.3, 10 * time.Second, 8}, {100, 2.1, 12 * time.Second, 8}} {
		t.Run(fmt.Sprint(tt.machines), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ready := time.Now().Add(boot)
				b := &bootingMachines{ready: func(string) time.Time { return ready }, latency: 200 * time.Millisecond}
				longest := enrolPolled(t, b, deploy.LimitAttestor(b), tt.machines)
				rate := float64(b.empty) / boot.Seconds()
				t.Logf("%d calls, %.2f fruitless calls a second, %d at once, enrolled within %s", b.calls, rate, b.max, longest)
				if rate > tt.rate || longest > tt.within || b.max > tt.max {
					t.Errorf("want at most %.1f fruitless calls a second, %d at once, and enrolment within %s", tt.rate, tt.max, tt.within)
				}
				if b.calls != b.empty+tt.machines {
					t.Errorf("%d calls, %d of them fruitless, for %d machines: a found key is read once", b.calls, b.empty, tt.machines)
				}
			})
		})
	}
}

// Machines that boot at different times are read in turn: none waits for the others.
func TestKeysOfSlowMachinesDoNotStarveOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		b := &bootingMachines{latency: 200 * time.Millisecond, ready: func(handle string) time.Time {
			n := 0
			fmt.Sscan(handle[2:], &n) //nolint:errcheck // the test's own handles
			return start.Add(time.Minute + time.Duration(n)*time.Second)
		}}
		longest := enrolPolled(t, b, deploy.LimitAttestor(b), 60)
		t.Logf("%d calls, enrolled within %s", b.calls, longest)
		if limit := 30 * time.Second; longest > limit { // 60 machines at 2 reads a second
			t.Errorf("a machine was enrolled %s after its key, want at most %s", longest, limit)
		}
	})
}

// The error of a read is the answer until the next read.
func TestErrorOfAKeyIsRemembered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		denied := errors.New("denied")
		b := &bootingMachines{err: denied}
		attestor, o := deploy.LimitAttestor(b), claimedMachine(provision.KindReplica, "a-0", "i-0", "")
		for range 10 {
			if _, err := attestor.Fingerprint(t.Context(), o); !errors.Is(err, denied) {
				t.Fatalf("got %v, want %v", err, denied)
			}
		}
		if b.calls != 1 {
			t.Errorf("%d calls, want 1", b.calls)
		}
	})
}
