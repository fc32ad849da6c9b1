package deploy_test

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"skyserve/internal/controller/deploy"
	"skyserve/internal/service"
	"skyserve/internal/testcloud/conformance"
	"skyserve/internal/testkit"
	"skyserve/provision"
	"skyserve/provision/local"
)

// runMachineProcess is the process of a machine on this computer: it holds its object until it is
// terminated.
func runMachineProcess(object string) {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	held, err := local.HoldObject(object)
	if err != nil {
		os.Exit(1)
	}
	defer held.Release()
	<-ctx.Done()
}

// crashingProvider is a provider whose program ends at one of its calls: before the call has any effect
// or, with late, after it took effect. Later calls have no effect.
type crashingProvider struct {
	provision.Provider
	at   int // counted from 1; 0 = none does
	late bool

	mu    sync.Mutex
	calls int
}

func (c *crashingProvider) step(change func() error) error {
	c.mu.Lock()
	c.calls++
	n := c.calls
	c.mu.Unlock()
	crashes := c.at > 0 && n >= c.at
	if crashes && (!c.late || n > c.at) {
		return conformance.ErrCrash
	}
	if err := change(); err != nil {
		return err
	}
	if crashes {
		return conformance.ErrCrash
	}
	return nil
}

func (c *crashingProvider) Launch(ctx context.Context, desired provision.Desired) (o provision.Object, err error) {
	err = c.step(func() error {
		o, err = c.Provider.Launch(ctx, desired)
		return err
	})
	return o, err
}

func (c *crashingProvider) Terminate(ctx context.Context, o provision.Object) error {
	return c.step(func() error { return c.Provider.Terminate(ctx, o) })
}

// localStep is one action on a service of this computer.
type localStep struct {
	name    string
	spec    *service.Spec
	do      func(*service.Spec, provision.Provider) error
	calls   int      // number of changing calls
	objects []string // the objects afterwards, and which of them existed before
}

// After a crash before or after any change to a service on this computer, a second run leads to the
// same result, and keeps the processes that should be kept.
func TestRerunAfterLocalCrash(t *testing.T) {
	testkit.Slow(t)
	t.Parallel()
	port := fmt.Sprintf("local: {port: %d}\n", testkit.LocalPort())
	bring := func(spec *service.Spec, p provision.Provider) error { _, err := up(spec, p); return err }
	remove := func(_ *service.Spec, p provision.Provider) error {
		return deploy.Down(t.Context(), p, "chat", "me", nil)
	}
	changed := func(replacements ...string) *service.Spec {
		return parse(t, strings.NewReplacer(replacements...).Replace(localService)+port)
	}
	life := []*localStep{
		{name: "up", spec: changed(), do: bring},
		{name: "up with more", spec: changed("{min: 1, max: 3}", "{min: 2, max: 3}\n    balancers: 2"), do: bring},
		{name: "up without a name, with less", spec: changed("{min: 2, max: 3}", "{min: 1, max: 1}", "dns:", "#"), do: bring},
		{name: "down", spec: changed(), do: remove},
	}
	runLocalLifecycle(t, life, 0, false)
	for _, c := range life {
		t.Logf("%s: %d calls, then there is %q", c.name, c.calls, c.objects)
	}
	for at := 1; slices.ContainsFunc(life, func(c *localStep) bool { return at <= c.calls }); at++ {
		for _, late := range []bool{false, true} {
			runLocalLifecycle(t, life, at, late)
		}
	}
}

// runLocalLifecycle runs steps, each of which crashes at one of its calls and is then run again. With
// at 0 nothing crashes, and the results of the steps are recorded.
func runLocalLifecycle(t *testing.T, steps []*localStep, at int, late bool) {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	svc := local.ServiceAt(filepath.Join(t.TempDir(), "services", "chat"))
	open := func(c *localStep) provision.Provider {
		return local.NewProvider(svc, exe, "build", 0).WithSpec(c.spec)
	}
	last := steps[len(steps)-1]
	defer func() { _ = last.do(last.spec, open(last)) }() // if the test ended earlier
	before := map[string]string{}                         // processes, by the ids of their machines
	for _, this := range steps {
		p := &crashingProvider{Provider: open(this), late: late}
		if at <= this.calls {
			p.at = at
		}
		err := this.do(this.spec, p)
		if p.at == 0 {
			this.calls = p.calls
		} else {
			err = this.do(this.spec, open(this))
		}
		if err != nil {
			t.Fatalf("%s, with a crash at call %d (late %t): %v", this.name, at, late, err)
		}
		have, err := svc.Objects()
		if err != nil {
			t.Fatal(err)
		}
		var left []string
		for _, o := range have {
			line, pid := o.ID+o.TerminatedReason, o.Labels["pid"]
			if before[o.ID] == pid {
				line += " stays"
			}
			left, before[o.ID] = append(left, line), pid
		}
		if at == 0 {
			this.objects = left
		} else if !slices.Equal(left, this.objects) {
			t.Fatalf("%s, with a crash at call %d (late %t): got %q, want %q", this.name, at, late, left, this.objects)
		}
	}
}
