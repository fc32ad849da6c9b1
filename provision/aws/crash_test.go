package aws_test

import (
	"flag"
	"fmt"
	"slices"
	"testing"

	"skyserve/internal/service"
	"skyserve/internal/testcloud"
	"skyserve/internal/testkit"
	"skyserve/provision"
)

// converge applies the difference to the desired state of a service, like up and down. It returns the objects
// that are listed afterwards.
func converge(t *testing.T, p provision.Provider, wants []provision.Desired) ([]provision.Object, error) {
	have, err := p.List(t.Context(), "chat")
	if err != nil {
		return nil, err
	}
	if _, err = provision.Apply(t.Context(), provision.Diff(wants, have), p, provision.ApplyOptions{Parallel: 1}); err != nil {
		return nil, err
	}
	return p.List(t.Context(), "chat")
}

// small is the smallest service with every kind of object.
func small() []provision.Desired {
	return []provision.Desired{
		program(firstBinary),
		roleFor(provision.RoleReplica, provision.GrantOperate),
		firewall(east, provision.RoleReplica, provision.FirewallRule{Port: 8300, From: provision.FromWorld}),
		machine("us-east-1-0", provision.KindReplica, east, service.CapacitySpot),
	}
}

// everyCall also crashes at calls that only read, and before calls. The cloud is then as after the last change, and lists
// lag behind less: such a run takes six times as long and detects no other errors.
var everyCall = flag.Bool("crash-every-call", false, "crash before and after every call, also after those that change nothing")

// After a crash at any call, the next run completes the change: every object exists once after up, and none after down.
func TestRecoversFromCrashAtAnyCall(t *testing.T) {
	testkit.Slow(t)
	for _, unseen := range []int{0, 2} {
		calls := crash(t, unseen, 0, testcloud.Served)
		t.Logf("up and down have %d calls to crash at", calls)
		if calls < 20 {
			t.Errorf("there are only %d calls to crash at", calls)
		}
		for _, outcome := range []testcloud.Outcome{testcloud.ResponseLost, testcloud.RequestLost} {
			for k := 1; k <= calls; k += testkit.Stride(7) {
				if outcome == testcloud.RequestLost && k > 1 && !*everyCall {
					break
				}
				t.Run(fmt.Sprintf("lists lag by %d, outcome %d at call %d", unseen, outcome, k), func(t *testing.T) {
					t.Parallel()
					crash(t, unseen, k, outcome)
				})
			}
		}
	}
}

// crash launches and terminates a service, crashes at call k, and continues with another process. It returns
// the number of calls without a crash.
func crash(t *testing.T, unseen, k int, outcome testcloud.Outcome) int {
	crashed, n := false, 0
	f := &testcloud.Faults{StaleLists: unseen}
	f.DecideOutcome = func(c testcloud.Call) testcloud.Outcome {
		if crashed { // the rest of the program that crashed does nothing
			return testcloud.RequestLost
		}
		if c.ReadOnly && !*everyCall {
			return testcloud.Served
		}
		if n++; n == k {
			crashed = true
			return outcome
		}
		return testcloud.Served
	}
	cloud := newCloud(f)
	cloud.ShutdownReads, cloud.ProfileLagLaunches = 1, 1
	step := func(wants []provision.Desired, look func([]provision.Object) bool) {
		t.Helper()
		for try := 0; ; try++ {
			p := open(t, cloud)
			have, err := converge(t, p, wants)
			if crashed {
				k, crashed = 0, false
				continue
			}
			if err == nil && look(have) {
				return
			}
			if try > 5 { // as many as lists may be stale
				t.Fatalf("it does not come to rest: %v; there is %q", err, cloud.RemainingResources())
			}
		}
	}
	step(small(), func(have []provision.Object) bool { return len(provision.Diff(small(), have)) == 0 })
	want := []string{
		"bucket in us-east-1 with 1 objects",
		"group skyserve-chat-replica in us-east-1 with 2 rules",
		"instance chat/us-east-1-0 in us-east-1b: spot g6.xlarge",
		`profile skyserve-chat-replica with role "skyserve-chat-replica"`,
		"role skyserve-chat-replica with 1 policies",
	}
	if left := cloud.RemainingResources(); !slices.Equal(left, want) {
		t.Fatalf("up created %q, want %q", left, want)
	}
	step(nil, func([]provision.Object) bool { return len(cloud.RemainingResources()) == 0 })
	return n
}
