package provision_test

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"skyserve/internal/service"
	"skyserve/provision"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fake keeps objects in memory. It can simulate a crash: from then on every call fails, as if the process had
// ended.
type fake struct {
	mu      sync.Mutex
	objects []provision.Object
	next    int
	calls   int
	// crashAt is the number of the call that crashes, from 1: before its change or, when late is set, after it; 0
	// = none.
	crashAt int
	late    bool
	log     []string
}

var errCrash = errors.New("crashed")

// mutate applies one change unless the fake has crashed.
func (f *fake) mutate(what string, change func()) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls++
	crashes := f.crashAt > 0 && f.calls >= f.crashAt
	if !crashes || f.late && f.calls == f.crashAt {
		change()
		f.log = append(f.log, what)
	}
	if crashes {
		return errCrash
	}
	return nil
}

func (f *fake) Offerings(context.Context, service.Region) (provision.Offerings, error) {
	return nil, nil
}

func (f *fake) List(context.Context, string) ([]provision.Object, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.objects), nil
}

func (f *fake) Launch(_ context.Context, w provision.Desired) (o provision.Object, err error) {
	err = f.mutate("launch "+w.ID, func() {
		f.objects = slices.DeleteFunc(f.objects, func(o provision.Object) bool { return o.ID == w.ID && o.TerminatedReason != "" })
		for i, have := range f.objects {
			if have.ID == w.ID && have.Kind == w.Kind && have.Region == w.Region && (w.Kind == provision.KindFirewall || w.Kind == provision.KindIdentity) {
				o = objectOf(w, 0)
				o.Handle = have.Handle
				f.objects[i] = o // repaired in place
				return
			}
			if have.ID == w.ID && len(provision.Diff([]provision.Desired{w}, []provision.Object{have})) == 0 {
				o = have
				return
			}
		}
		f.next++
		o = objectOf(w, 1000+f.next)
		f.objects = append(f.objects, o)
	})
	return o, err
}

func (f *fake) Terminate(_ context.Context, o provision.Object) error {
	return f.mutate("terminate "+o.ID, func() {
		f.objects = slices.DeleteFunc(f.objects, func(have provision.Object) bool {
			return have.ID == o.ID && have.Handle == o.Handle
		})
	})
}

// summary lists the objects of a fake without their handles.
func (f *fake) summary() []string {
	var all []string
	for _, o := range f.objects {
		all = append(all, fmt.Sprintf("%s %s %s %s %q", o.ID, o.Kind, o.Region, o.SpecHash, o.TerminatedReason))
	}
	slices.Sort(all)
	return all
}

// converge computes the difference and applies it.
func converge(f *fake, wants []provision.Desired) error {
	have, _ := f.List(context.Background(), "chat")
	_, err := provision.Apply(context.Background(), provision.Diff(wants, have), f, provision.ApplyOptions{})
	return err
}

func TestApplyConverges(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		wants := drawWants(t)
		f := &fake{objects: drawHave(t)}
		if err := converge(f, wants); err != nil {
			t.Fatal(err)
		}
		if changes := provision.Diff(wants, f.objects); len(changes) != 0 {
			t.Fatalf("still to change: %+v", changes)
		}
	})
}

func TestApplyRecoversFromCrashAtAnyStep(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		wants, have := drawWants(t), drawHave(t)
		whole := &fake{objects: slices.Clone(have)}
		if err := converge(whole, wants); err != nil {
			t.Fatal(err)
		}
		for at := 1; at <= whole.calls; at++ {
			for _, late := range []bool{false, true} {
				f := &fake{objects: slices.Clone(have), crashAt: at, late: late}
				if err := converge(f, wants); !errors.Is(err, errCrash) {
					t.Fatalf("crash at %d: got %v", at, err)
				}
				f.crashAt = 0
				if err := converge(f, wants); err != nil {
					t.Fatal(err)
				}
				if got, want := f.summary(), whole.summary(); !reflect.DeepEqual(got, want) {
					t.Fatalf("crash at %d (late %t): got %q, want %q", at, late, got, want)
				}
			}
		}
	})
}

// rollingUpdate returns two replicas to replace in one region, and one to terminate.
func rollingUpdate() (wants []provision.Desired, objects []provision.Object) {
	for _, id := range []string{"us-0", "us-1"} {
		w := want(id, provision.KindReplica, "local/us", "new")
		o := objectOf(w, len(objects))
		o.SpecHash = "old"
		wants, objects = append(wants, w), append(objects, o)
	}
	return wants, append(objects, have("us-2", provision.KindReplica, "local/us", "old", ""))
}

func TestApplyStopsRollingUpdateWhenNotReady(t *testing.T) {
	wants, objects := rollingUpdate()
	f := &fake{objects: objects}
	broken := errors.New("the model does not answer")
	result, err := provision.Apply(context.Background(), provision.Diff(wants, objects), f, provision.ApplyOptions{
		WaitReady: func(context.Context, provision.Object) error { return broken },
	})
	if !errors.Is(err, broken) || !strings.Contains(err.Error(), "us-0") {
		t.Errorf("got %v, want the cause and us-0", err)
	}
	if len(result.Failed) != 1 || len(result.Skipped) != 2 || len(result.Done) != 0 {
		t.Errorf("got %d done, %d failed, %d skipped; want 0, 1, 2", len(result.Done), len(result.Failed), len(result.Skipped))
	}
	if want := []string{"terminate us-0", "launch us-0"}; !reflect.DeepEqual(f.log, want) {
		t.Errorf("got %q, want %q", f.log, want)
	}
}

func TestApplyCompletesStageAfterFailure(t *testing.T) {
	wants := []provision.Desired{want("us-0", provision.KindReplica, "local/us", "s"), want("us-1", provision.KindReplica, "local/us", "s")}
	f := &fake{}
	result, err := provision.Apply(context.Background(), provision.Diff(wants, nil), failingLaunch{f, "us-0"}, provision.ApplyOptions{})
	if err == nil || len(result.Done) != 1 || result.Done[0].ID() != "us-1" || len(result.Failed) != 1 {
		t.Errorf("got %+v, %v", result, err)
	}
}

// A reload restarts no process. An object that cannot reload is replaced; one that rejects the
// configuration stops the rolling update.
func TestApplyReloads(t *testing.T) {
	refused := errors.New("unknown policy")
	for _, tt := range []struct {
		reload  func(context.Context, provision.Desired) error
		want    []string // calls of the provider
		actions []provision.ChangeAction
		err     error
		skipped int
	}{
		{nil, []string{"terminate lb-eu-0", "launch lb-eu-0", "terminate lb-us-0", "launch lb-us-0"}, []provision.ChangeAction{"replace", "replace"}, nil, 0},
		{func(context.Context, provision.Desired) error { return nil }, nil, []provision.ChangeAction{"reload", "reload"}, nil, 0},
		{func(context.Context, provision.Desired) error { return provision.ErrCannotReload }, []string{"terminate lb-eu-0", "launch lb-eu-0", "terminate lb-us-0", "launch lb-us-0"}, []provision.ChangeAction{"replace", "replace"}, nil, 0},
		{func(context.Context, provision.Desired) error { return refused }, nil, nil, refused, 1},
	} {
		var wants []provision.Desired
		f := &fake{}
		for i, region := range []service.Region{"local/eu", "local/us"} {
			w := want("lb-"+region.ShortName()+"-0", provision.KindBalancer, region, "new")
			w.ImmutableHash = "f"
			o := objectOf(w, i)
			o.SpecHash = "old"
			wants, f.objects = append(wants, w), append(f.objects, o)
		}
		var done []provision.ChangeAction
		result, err := provision.Apply(context.Background(), provision.Diff(wants, f.objects), f, provision.ApplyOptions{
			Reload: tt.reload,
			Progress: func(c provision.Change, p provision.ChangePhase, _ error) {
				if p == provision.PhaseDone {
					done = append(done, c.Action)
				}
			},
		})
		if !errors.Is(err, tt.err) || !reflect.DeepEqual(f.log, tt.want) || !reflect.DeepEqual(done, tt.actions) || len(result.Skipped) != tt.skipped {
			t.Errorf("got %q, %v, %+v, %v; want %q, %v", f.log, done, result, err, tt.want, tt.err)
		}
	}
}

// failingLaunch fails to launch one id.
type failingLaunch struct {
	*fake
	id string
}

func (f failingLaunch) Launch(ctx context.Context, w provision.Desired) (provision.Object, error) {
	if w.ID == f.id {
		return provision.Object{}, errors.New("no capacity")
	}
	return f.fake.Launch(ctx, w)
}

// A running object is drained before it is terminated, whether it is excess or replaced, and before or after its
// replacement is launched.
func TestApplyDrainsBeforeTermination(t *testing.T) {
	for name, surge := range map[string]bool{"terminated first": false, "launched first": true} {
		wants, objects := rollingUpdate()
		objects = append(objects, have("us-3", provision.KindReplica, "local/us", "old", "killed"))
		f := &fake{objects: objects}
		_, err := provision.Apply(context.Background(), provision.Diff(wants, objects), f, provision.ApplyOptions{
			Parallel: 1, Surge: func(_ context.Context, c provision.Change) (*provision.Replacement, error) {
				if !surge {
					return nil, nil
				}
				return &provision.Replacement{Desired: c.Desired}, nil
			},
			Drain: func(_ context.Context, o provision.Object) { f.log = append(f.log, "drain "+o.ID) },
		})
		want := []string{"drain us-0", "terminate us-0", "launch us-0", "drain us-1", "terminate us-1", "launch us-1", "drain us-2", "terminate us-2"}
		if surge {
			want = []string{"launch us-0", "drain us-0", "terminate us-0", "launch us-1", "drain us-1", "terminate us-1", "drain us-2", "terminate us-2"}
		}
		got := slices.DeleteFunc(f.log, func(step string) bool { return step == "terminate us-3" }) // beside us-2, and not drained
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: got %q, %v; want %q", name, got, err, want)
		}
	}
}

func TestApplyReportsPhases(t *testing.T) {
	w := want("us-0", provision.KindReplica, "local/us", "s")
	var got []provision.ChangePhase
	for _, p := range []provision.Provider{&fake{}, failingLaunch{&fake{}, "us-0"}} {
		_, _ = provision.Apply(context.Background(), provision.Diff([]provision.Desired{w}, nil), p, provision.ApplyOptions{
			Progress: func(_ provision.Change, phase provision.ChangePhase, _ error) { got = append(got, phase) },
		})
	}
	want := []provision.ChangePhase{provision.PhaseStarted, provision.PhaseDone, provision.PhaseStarted, provision.PhaseFailed}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// launchCounter counts concurrent launches.
type launchCounter struct {
	fake
	running, maxRunning atomic.Int64
	arrived             chan struct{}
	proceed             chan struct{}
}

func (c *launchCounter) Launch(ctx context.Context, w provision.Desired) (provision.Object, error) {
	n := c.running.Add(1)
	defer c.running.Add(-1)
	for most := c.maxRunning.Load(); n > most && !c.maxRunning.CompareAndSwap(most, n); most = c.maxRunning.Load() {
	}
	c.arrived <- struct{}{}
	<-c.proceed
	return c.fake.Launch(ctx, w)
}

func TestApplyLimitsParallelLaunches(t *testing.T) {
	var wants []provision.Desired
	for i := range 7 {
		wants = append(wants, want(fmt.Sprint("us-", i), provision.KindReplica, "local/us", "s"))
	}
	c := &launchCounter{arrived: make(chan struct{}, len(wants)), proceed: make(chan struct{})}
	var wg sync.WaitGroup
	wg.Go(func() {
		_, err := provision.Apply(context.Background(), provision.Diff(wants, nil), c, provision.ApplyOptions{Parallel: 3})
		if err != nil {
			t.Error(err)
		}
	})
	for range 3 {
		<-c.arrived // three run concurrently
	}
	close(c.proceed)
	wg.Wait()
	if got := c.maxRunning.Load(); got != 3 {
		t.Errorf("got %d at once, want 3", got)
	}
}

func TestApplySkipsAllAfterContextEnds(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	f := &fake{}
	wants := []provision.Desired{want("us-0", provision.KindReplica, "local/us", "s")}
	result, err := provision.Apply(ctx, provision.Diff(wants, nil), f, provision.ApplyOptions{})
	if !errors.Is(err, context.Canceled) || len(result.Skipped) != 1 || f.calls != 0 {
		t.Errorf("got %+v, %v, %d calls", result, err, f.calls)
	}
}

func TestErrorsNameObjectAndLocation(t *testing.T) {
	tests := []struct {
		err  error
		want []string
	}{
		{
			&provision.PortTakenError{Addr: "127.0.0.1:8001", ID: "lb-us-0", Purpose: "public", Setting: "local.port"},
			[]string{"127.0.0.1:8001", "another process", "lb-us-0", "public", "local.port"},
		},
		{&provision.PortTakenError{Addr: "a", Holder: "us-0 of the service chat"}, []string{"us-0 of the service chat"}},
		{&provision.StartError{ID: "us-0", Err: errCrash, Log: []string{"panic: no"}, File: "us-0.log"}, []string{"us-0", "crashed", "panic: no", "us-0.log"}},
		{&provision.RemainingError{Service: "chat", Remaining: []string{"us-0, process 7"}}, []string{"chat", "us-0, process 7", "1 object left"}},
		{&provision.SpecError{Err: errCrash}, []string{"crashed"}},
	}
	for _, tt := range tests {
		for _, want := range tt.want {
			if !strings.Contains(tt.err.Error(), want) {
				t.Errorf("got %q, want %q in it", tt.err, want)
			}
		}
	}
}
