package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"skyserve/internal/agent"
	"skyserve/internal/controller/deploy"
	"skyserve/internal/service"
	"skyserve/internal/testkit"
	"skyserve/provision"
	"skyserve/provision/cloud"
	"skyserve/provision/local"
)

// A step ends when its condition is true, when the observed run ends, or with the state of the machines
// when its time ends.
func TestUpObserverEndsSteps(t *testing.T) {
	cause := errors.New("too late")
	for name, tt := range map[string]struct {
		happens func(o *upObserver, cancel context.CancelCauseFunc)
		want    string
	}{
		"launched": {func(o *upObserver, _ context.CancelCauseFunc) {
			o.update(func() {
				o.planned = &upRun{changes: &deploy.MachinePlan{Changes: provision.Changes{{Desired: provision.Desired{ID: "a", Kind: provision.KindIdentity}}}}}
			})
			o.recordChange(o.planned.changes.Changes[0], provision.PhaseDone)
		}, ""},
		"run fails": {func(o *upObserver, _ context.CancelCauseFunc) { o.recordEnd(cause) }, "too late"},
		"time ends": {func(o *upObserver, cancel context.CancelCauseFunc) {
			o.recordStatus("b", agent.Status{Phase: agent.PhaseReady})
			o.recordStatus("a", agent.Status{Phase: agent.PhaseWaiting, Reason: "for its agent"})
			cancel(cause)
		}, "too late\na: waiting for its agent"},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithCancelCause(t.Context())
			defer cancel(nil)
			o := newUpObserver(nil)
			go tt.happens(o, cancel)
			got := ""
			if err := o.await(ctx, func() bool { return o.hasLaunched(provision.KindIdentity) }); err != nil {
				got = err.Error()
			}
			if got != tt.want {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}

// A run is cut off by Ctrl-C and by the end of the rehearsal, whichever of them its error contains.
func TestRunIsCutByTheEndOfARehearsal(t *testing.T) {
	for err, want := range map[error]bool{
		fmt.Errorf("launching: %w", context.Canceled): true, &exitError{code: exitPartial, err: fmt.Errorf("launching: %w (30m)", errRehearsalTimeout)}: true,
		errors.New("no capacity"): false, nil: false,
	} {
		o := newUpObserver(nil)
		o.recordEnd(err)
		if got := o.isCut(); got != want {
			t.Errorf("%v: got %t", err, got)
		}
	}
}

// A rehearsal over quota ends with the hint to request an increase as shown above: it is shown.
func TestRehearsalOverQuotaShowsTheQuotas(t *testing.T) {
	limit, used := 0.0, 0.0
	need := cloud.QuotaNeed{Region: "aws/us-east-1", Name: "G and VT instances as spot", Code: "L-3819A6DF", Unit: "vcpus", Needs: 4, Limit: &limit, Used: &used}
	var shown bytes.Buffer
	u := &upRun{up: &up{upOptions: &upOptions{file: "service.yaml"}, errOut: &shown}, spec: &service.Spec{}, quotas: quotaView{needs: []cloud.QuotaNeed{need}}}
	err := newUpObserver(nil).awaitApproval(t.Context(), u)
	var coded *exitError
	if !errors.Is(err, errOverQuota) || !errors.As(err, &coded) || coded.hint != "request an increase as shown above" {
		t.Fatalf("got %v", err)
	}
	if want := "to increase L-3819A6DF: " + need.IncreaseRequest(); !strings.Contains(shown.String(), want) {
		t.Errorf("no %q in\n%s", want, shown.String())
	}
}

// replicaLists is a cloud whose lists contain one replica, or none for an empty handle, in turn. The last
// list repeats.
type replicaLists struct {
	provision.Provider
	handles []string
}

func (p *replicaLists) List(context.Context, string) ([]provision.Object, error) {
	handle := p.handles[0]
	p.handles = p.handles[min(1, len(p.handles)-1):]
	if handle == "" {
		return nil, nil
	}
	return []provision.Object{{Kind: provision.KindReplica, Region: "aws/us-east-1", Handle: handle}}, nil
}

// A terminated replica can serve for a while, so the rehearsal waits until the cloud lists its replacement.
func TestRehearsalAwaitsReplacement(t *testing.T) {
	for name, tt := range map[string]struct {
		handles []string
		want    string
	}{
		"replaced":      {[]string{"i-1", "", "", "i-2"}, ""},
		"never listed":  {[]string{""}, "waiting for the controller to replace the replica: too late: the clouds list no replica in aws/us-east-1"},
		"still running": {[]string{"i-1"}, "waiting for the controller to replace the replica: too late: the replica of aws/us-east-1 was terminated and still runs"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				region := service.Region("aws/us-east-1")
				r := &rehearsal{
					spec:   &service.Spec{Regions: []service.RegionSpec{{Name: region}}},
					places: provision.MultiCloud{"aws": &replicaLists{handles: tt.handles}},
				}
				ctx, cancel := context.WithTimeoutCause(t.Context(), time.Minute, errors.New("too late"))
				defer cancel()
				got := ""
				if err := r.awaitReplacements(ctx, map[service.Region]provision.Object{region: {Handle: "i-1"}}); err != nil {
					got = err.Error()
				}
				if got != tt.want {
					t.Errorf("got %q, want %q", got, tt.want)
				}
			})
		})
	}
}

// A rehearsal changes no service that is not a rehearsal, and runs once at a time.
func TestRehearsalRejectsOtherServices(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("SKYSERVE_HOME", filepath.Join(dir, "home"))
	file, deployed := filepath.Join(dir, "service.yaml"), filepath.Join(dir, "home", "services", "chat-rehearsal", "service.yaml")
	err := os.WriteFile(file, []byte(oneRegion), 0o600)
	if err == nil {
		err = os.MkdirAll(filepath.Dir(deployed), 0o700)
	}
	if err == nil {
		err = os.WriteFile(deployed, []byte(oneRegion), 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	check := func(code int, want string) {
		t.Helper()
		var out, errOut strings.Builder
		if got := execute(t.Context(), []string{"doctor", file, "--rehearse", "--yes"}, &out, &errOut); got != code || !strings.Contains(errOut.String(), want) {
			t.Errorf("exit %d, want %d with %q\n%s%s", got, code, want, out.String(), errOut.String())
		}
	}
	check(exitUsage, "the service chat-rehearsal exists and is not a rehearsal")
	if _, err := os.Stat(deployed); err != nil {
		t.Error(err)
	}
	home, err := local.OpenHome()
	if err != nil {
		t.Fatal(err)
	}
	release, ok, err := home.Claim(rehearsalLock("chat-rehearsal"))
	if err != nil || !ok {
		t.Fatal(ok, err)
	}
	defer release()
	check(exitFailed, "another process on this machine is rehearsing it")
}

// A service with TLS is rehearsed over HTTPS, without its own certificate.
func TestRehearsalUsesTLS(t *testing.T) {
	testkit.NotUnderRace(t, "its processes would slow down the tests beside it; TestUpObserver runs the concurrent part under the race detector")
	testkit.Slow(t)
	t.Parallel()
	if l, err := net.Listen("tcp", "127.0.0.1:443"); err != nil {
		t.Skipf("balancers with TLS listen on port 443: %v", err)
	} else if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	e := emulate(t)
	out := e.skyserve(exitOK, e.rehearse(strings.Replace(oneRegion, "insecure: true", "tls: {cert: /no/cert.pem, key: /no/key.pem}", 1))...)
	if strings.Contains(out, "plain HTTP") {
		t.Errorf("over plain HTTP:\n%s", out)
	}
	e.checkNothingIsLeft(out)
}
