package gcp_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"skyserve/internal/service"
	"skyserve/internal/testcloud"
	"skyserve/internal/testcloud/conformance"
	"skyserve/internal/testkit"
	"skyserve/provision"
	"skyserve/provision/gcp"
)

// everyNth changes the outcome of every nth call.
func everyNth(n int, o testcloud.Outcome) func(testcloud.Call) testcloud.Outcome {
	return func(c testcloud.Call) testcloud.Outcome {
		if c.Number%n == 0 {
			return o
		}
		return testcloud.Served
	}
}

func TestProviderConformance(t *testing.T) {
	testkit.Slow(t)
	for _, tt := range []struct {
		name   string
		faults func() *testcloud.Faults
		set    func(*testcloud.GCE)
	}{
		{"as it is", func() *testcloud.Faults { return &testcloud.Faults{} }, func(*testcloud.GCE) {}},
		{"stale lists", func() *testcloud.Faults { return &testcloud.Faults{StaleLists: 3} }, func(*testcloud.GCE) {}},
		{"lost responses", func() *testcloud.Faults { return &testcloud.Faults{DecideOutcome: everyNth(3, testcloud.ResponseLost)} }, func(*testcloud.GCE) {}},
		{"calls are throttled", func() *testcloud.Faults { return &testcloud.Faults{DecideOutcome: everyNth(2, testcloud.Throttled)} }, func(*testcloud.GCE) {}},
		{"the cloud has errors", func() *testcloud.Faults {
			return &testcloud.Faults{DecideOutcome: everyNth(2, testcloud.InternalError)}
		}, func(*testcloud.GCE) {}},
		{"lists come in pages", func() *testcloud.Faults { return &testcloud.Faults{} }, func(g *testcloud.GCE) { g.SetPageSize(1) }},
		{"slow operations", func() *testcloud.Faults { return &testcloud.Faults{} }, func(g *testcloud.GCE) { g.SetOperationCalls(7) }},
		{"immediate operations", func() *testcloud.Faults { return &testcloud.Faults{} }, func(g *testcloud.GCE) { g.SetOperationCalls(0) }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			conformance.Run(t, func(t *testing.T) conformance.Subject {
				faults := tt.faults()
				g := newGCE(faults)
				tt.set(g)
				p := provider(g)
				other := replica("us-central1-0", service.CapacitySpot)
				other.Service = "other"
				return conformance.Subject{
					Provider: p, Reopen: func(*testing.T) provision.Provider { return provider(g) },
					Service: "chat", Desired: chat(), Other: other, HasOwners: true,
					WaitListed: func() {
						for range faults.StaleLists {
							if _, err := p.List(context.Background(), ""); err != nil {
								t.Fatal(err)
							}
						}
					},
				}
			})
		})
	}
}

// state returns the state of a fake, without ids and times that count calls.
func state(g *testcloud.GCE) string {
	var all []string
	for _, i := range g.Instances() {
		all = append(all, fmt.Sprintln(i.Name, i.Status, i.MachineType, i.Labels, i.Tags, i.Metadata))
	}
	for _, f := range g.Firewalls() {
		all = append(all, fmt.Sprintln(f.Name, f.Description, f.Allowed, f.Denied, f.SourceRanges, f.SourceTags, f.TargetTags))
	}
	return strings.Join(all, "")
}

// up launches the small service, and down terminates all its listed objects. Each ends at the first error,
// like a process that crashes.
func up(g *testcloud.GCE) error {
	p := provider(g)
	for _, w := range chat() {
		if _, err := p.Launch(context.Background(), w); err != nil {
			return err
		}
	}
	return nil
}

func down(g *testcloud.GCE) error {
	p := provider(g)
	have, err := p.List(context.Background(), "chat")
	if err != nil {
		return err
	}
	slices.Reverse(have) // machines are listed last and terminated first
	for _, o := range have {
		if err := p.Terminate(context.Background(), o); err != nil {
			return err
		}
	}
	return nil
}

func TestRecoversFromCrashAtAnyCall(t *testing.T) {
	testkit.Slow(t)
	t.Parallel()
	whole := newGCE(nil)
	if err := up(whole); err != nil {
		t.Fatal(err)
	}
	for _, outcome := range []testcloud.Outcome{testcloud.ResponseLost, testcloud.RequestLost} {
		crashed, at := true, 0
		for crashed {
			at += testkit.Stride(7)
			crashed = false
			dead := true
			faults := &testcloud.Faults{DecideOutcome: func(c testcloud.Call) testcloud.Outcome {
				switch {
				case !dead || c.Number < at:
					return testcloud.Served
				case c.Number == at:
					crashed = true
					return outcome
				}
				return testcloud.RequestLost
			}}
			g := newGCE(faults)
			if err := up(g); err == nil {
				err = down(g)
				if crashed == (err == nil) {
					t.Fatalf("crash at call %d: got %v", at, err)
				}
			}
			dead = false
			if err := up(g); err != nil {
				t.Fatalf("crash at call %d (outcome %d), and again: %v", at, outcome, err)
			}
			if got := state(g); got != state(whole) {
				t.Fatalf("crash at call %d (outcome %d), and again: got\n%s\nwant\n%s", at, outcome, got, state(whole))
			}
			if err := down(g); err != nil || state(g) != "" {
				t.Fatalf("crash at call %d (outcome %d), then again, then down: %v, remaining:\n%s", at, outcome, err, state(g))
			}
		}
		if at < 50 {
			t.Errorf("there were only %d calls to crash at", at)
		}
	}
}

// A call that fails once is retried, and nothing is created twice.
func TestFailedCallIsRetried(t *testing.T) {
	testkit.Slow(t)
	t.Parallel()
	whole := newGCE(nil)
	if err := up(whole); err != nil {
		t.Fatal(err)
	}
	for _, outcome := range []testcloud.Outcome{testcloud.ResponseLost, testcloud.Throttled} {
		failed, at := true, 0
		for failed {
			at += testkit.Stride(7)
			failed = false
			g := newGCE(&testcloud.Faults{DecideOutcome: func(c testcloud.Call) testcloud.Outcome {
				if c.Number == at {
					failed = true
					return outcome
				}
				return testcloud.Served
			}})
			if err := up(g); err != nil || state(g) != state(whole) {
				t.Fatalf("outcome %d at call %d: %v, got\n%s\nwant\n%s", outcome, at, err, state(g), state(whole))
			}
			if err := down(g); err != nil || state(g) != "" {
				t.Fatalf("outcome %d at call %d, then down: %v, remaining:\n%s", outcome, at, err, state(g))
			}
		}
	}
}

// runConcurrently runs a function in four processes, in a slow cloud, so that all read the same state before
// one changes it.
func runConcurrently(t *testing.T, faults *testcloud.Faults, steps int, test func(t *testing.T, g *testcloud.GCE, all func(do func() error) []error)) {
	synctest.Test(t, func(t *testing.T) {
		faults.DuringCall = func(testcloud.Call) { time.Sleep(time.Millisecond) }
		g := newGCE(faults)
		g.SetOperationCalls(steps)
		test(t, g, func(do func() error) []error {
			var wg sync.WaitGroup
			errs := make([]error, 4)
			for i := range errs {
				wg.Go(func() { errs[i] = do() })
			}
			wg.Wait()
			return errs
		})
	})
}

func TestConcurrentLaunchesCreateNoDuplicates(t *testing.T) {
	for _, steps := range []int{0, 1, 20} {
		runConcurrently(t, &testcloud.Faults{StaleLists: 100}, steps, func(t *testing.T, g *testcloud.GCE, all func(func() error) []error) {
			for _, err := range all(func() error { return up(g) }) {
				if err != nil {
					t.Error(err)
				}
			}
			if len(g.Instances()) != 2 || len(g.Firewalls()) != 5 {
				t.Errorf("got %d machines and %d rules, want 2 and 5:\n%s", len(g.Instances()), len(g.Firewalls()), state(g))
			}
		})
	}
}

// A machine that another process is creating may fail to be created.
func TestConcurrentLaunchesWithoutCapacity(t *testing.T) {
	runConcurrently(t, &testcloud.Faults{}, 20, func(t *testing.T, g *testcloud.GCE, all func(func() error) []error) {
		g.SetStock("us-central1-a", "g2-standard-4", "SPOT", 0)
		for _, err := range all(func() error {
			_, err := provider(g).Launch(context.Background(), replica("us-central1-0", service.CapacitySpot))
			return err
		}) {
			var refused *provision.CapacityError
			if !errors.As(err, &refused) {
				t.Errorf("got %v", err)
			}
		}
		if len(g.Instances()) != 0 {
			t.Errorf("remaining: %+v", g.Instances())
		}
	})
}

// When Terminate returns, the object is deleted, also when another process started the deletion.
func TestConcurrentTerminate(t *testing.T) {
	runConcurrently(t, &testcloud.Faults{}, 20, func(t *testing.T, g *testcloud.GCE, all func(func() error) []error) {
		if err := up(g); err != nil {
			t.Fatal(err)
		}
		for _, err := range all(func() error {
			if err := down(g); err != nil || state(g) == "" {
				return err
			}
			return fmt.Errorf("remaining: %s", state(g))
		}) {
			if err != nil {
				t.Error(err)
			}
		}
	})
}

// The same over a network, with dropped connections.
func TestReusedConnectionsThatBreak(t *testing.T) {
	g := newGCE(&testcloud.Faults{DecideOutcome: everyNth(3, testcloud.ResponseLost)})
	server := httptest.NewServer(g)
	defer server.Close()
	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	p := gcp.New(gcp.Config{Project: "p", Endpoint: server.URL, Transport: transport, Poll: -1})
	for _, w := range chat() {
		launched(t, p, w)
	}
	have, err := p.List(t.Context(), "chat")
	if err != nil || len(provision.Diff(chat(), have)) != 0 {
		t.Errorf("got %+v, %v", have, err)
	}
	if len(g.Instances()) != 2 || len(g.Firewalls()) != 5 {
		t.Errorf("got\n%s", state(g))
	}
}
