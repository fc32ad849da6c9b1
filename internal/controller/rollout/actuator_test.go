package rollout_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"skyserve/internal/controller"
	"skyserve/internal/controller/rollout"
	"skyserve/internal/service"
	"skyserve/provision/local"
)

// act carries an order out and returns what it launched.
func (w *world) act(o controller.Order) []string {
	w.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	launched, err := rollout.NewActuator(w.svc).Carry(ctx, o, func() error { return nil })
	if err != nil {
		w.Fatal(err)
	}
	return launched
}

// standing are the ids of the replicas in us: those that serve, and those that are lent.
func (w *world) standing() (serve, lent []string, unfinished bool) {
	w.Helper()
	s, err := rollout.NewActuator(w.svc).Standing()
	if err != nil {
		w.Fatal(err)
	}
	for _, r := range s.Replicas {
		switch {
		case r.Region != "local/us":
		case r.Donation != nil:
			lent = append(lent, r.ID)
		default:
			serve = append(serve, r.ID)
		}
	}
	return serve, lent, s.Unfinished
}

func (w *world) wantStanding(serve, lent string) {
	w.Helper()
	s, l, unfinished := w.standing()
	if strings.Join(s, " ") != serve || strings.Join(l, " ") != lent || unfinished {
		w.Fatalf("got %v, lent %v, unfinished %v, want %q and %q", s, l, unfinished, serve, lent)
	}
}

func TestTheActuatorLaunchesLendsTakesBackAndRemoves(t *testing.T) {
	w := newWorld(t)
	w.up(w.yaml(1, "m"))
	if got := w.act(controller.Order{Launch: []controller.Launching{{Model: "m", Region: "local/us", Count: 2}}}); !slices.Equal(got, []string{"us-1", "us-2"}) {
		t.Errorf("launched %v", got)
	}
	w.wantStanding("us-0 us-1 us-2", "")
	before := w.pids()
	lent := service.Donation{Since: time.Now().UTC().Truncate(time.Second)}
	w.act(controller.Order{Donate: []controller.Donating{{ID: "us-1", Donation: lent}, {ID: "us-2", Donation: lent}}})
	w.wantStanding("us-0", "us-1 us-2")
	if after := w.pids(); after["us-1"] != before["us-1"] || after["us-2"] != before["us-2"] || after["controller"] != before["controller"] {
		t.Errorf("what is lent goes on running, and so does the controller: %v, before %v", after, before)
	}
	w.act(controller.Order{Reclaim: []string{"us-1"}, Remove: []string{"us-2"}})
	w.wantStanding("us-0 us-1", "")
	if pids := w.pids(); pids["us-2"] != "" || pids["us-1"] != before["us-1"] {
		t.Errorf("got %v", pids)
	}
	if got := w.up(w.yaml(1, "m")); len(got) > 0 {
		t.Errorf("up undid it: %q", got)
	}
}

func TestTheActuatorRefuses(t *testing.T) {
	w := newWorld(t)
	w.up(w.yaml(1, "m"))
	a := rollout.NewActuator(w.svc)
	lost := errors.New("the lease is lost")
	launch := controller.Order{Launch: []controller.Launching{{Model: "m", Region: "local/us", Count: 1}}}
	if _, err := a.Carry(t.Context(), launch, func() error { return lost }); !errors.Is(err, lost) {
		t.Errorf("without the lease: got %v", err)
	}
	var bounds *local.BoundsError
	if _, err := a.Carry(t.Context(), controller.Order{Donate: []controller.Donating{{ID: "us-0"}}}, func() error { return nil }); !errors.As(err, &bounds) {
		t.Errorf("the last replica: got %v", err)
	}
	unlock, err := w.svc.Lock()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := a.Carry(t.Context(), launch, func() error { return nil }); !errors.Is(err, controller.ErrBusy) {
		t.Errorf("while somebody else changes it: got %v", err)
	}
	unlock()
	w.wantStanding("us-0", "")
}

// What differs from service.yaml beside replicas is for people: a controller that
// replaced balancers, or itself, would not know when to stop.
func TestTheActuatorLeavesEverythingButReplicasAlone(t *testing.T) {
	w := newWorld(t)
	w.up(w.yaml(1, "m"))
	text, err := os.ReadFile(w.svc.SpecFile())
	if err == nil {
		err = os.WriteFile(w.svc.SpecFile(), []byte(strings.Replace(string(text), "policy: least-load", "policy: round-robin", 1)), 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	_, err = rollout.NewActuator(w.svc).Carry(t.Context(), controller.Order{Launch: []controller.Launching{{Model: "m", Region: "local/us", Count: 1}}}, func() error { return nil })
	if err == nil || !strings.Contains(err.Error(), "none is changed until `up` mended that: reload lb-") {
		t.Errorf("got %v", err)
	}
	if _, _, unfinished := w.standing(); unfinished {
		t.Error("it is not the controller's to finish")
	}
}

func TestTheActuatorFinishesWhatWasDecided(t *testing.T) {
	w := newWorld(t)
	w.up(w.yaml(1, "m"))
	wanted := `{"groups":[{"model":"m","region":"local/us","numbers":[0,1]}],"drained":[]}`
	if err := os.WriteFile(filepath.Join(w.svc.Dir(), "wanted.json"), []byte(wanted), 0o600); err != nil {
		t.Fatal(err)
	}
	if serve, _, unfinished := w.standing(); !unfinished || len(serve) != 2 {
		t.Fatalf("got %v, unfinished %v", serve, unfinished)
	}
	w.act(controller.Order{})
	w.wantStanding("us-0 us-1", "")
	if w.pids()["us-1"] == "" {
		t.Error("it was not started")
	}
}

func TestOnlyFilesThatUpWroteBelongToAService(t *testing.T) {
	w := newWorld(t)
	w.up(w.yaml(1, "m"))
	svc, ok := local.ServiceOf(filepath.Join(w.svc.Dir(), "controller.yaml"))
	if !ok || svc.Name() != "chat" || svc.Dir() != w.svc.Dir() {
		t.Errorf("got %v, %v", svc, ok)
	}
	if svc, ok := local.ServiceOf(filepath.Join(t.TempDir(), "controller.yaml")); ok {
		t.Errorf("a file of another place is of %v", svc)
	}
}
