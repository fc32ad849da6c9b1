package rollout_test

import (
	"context"
	"net/http"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"skyserve/internal/controller/rollout"
	"skyserve/internal/telemetry"
)

// limitFiles bounds what files of a process may grow to: writes beyond it fail as on a full
// disk.
func (w *world) limitFiles(id string, bytes uint64) {
	w.Helper()
	pid, err := strconv.Atoi(w.pids()[id])
	if err != nil {
		w.Fatal(err)
	}
	limit := unix.Rlimit{Cur: bytes, Max: unix.RLIM_INFINITY}
	if err := unix.Prlimit(pid, unix.RLIMIT_FSIZE, &limit, nil); err != nil {
		w.Fatal(err)
	}
}

// A disk that is full for a while is told by the status, with the reason, and the
// controller goes on by itself once there is room.
func TestStatusTellsOfAFullDisk(t *testing.T) {
	w := newWorld(t)
	w.up(w.yaml(1, "m"))
	w.limitFiles("controller", 1)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	var s *rollout.Status
	for broken := false; !broken; {
		var err error
		if s, err = rollout.GetStatus(ctx, w.svc); err != nil || ctx.Err() != nil {
			t.Fatalf("got %+v, %v", s, err)
		}
		broken = strings.Contains(s.Controller.Reason, "its store does not work")
	}
	if s.State != rollout.StateDegraded || !strings.Contains(s.Controller.Reason, "file too large") {
		t.Errorf("got %s with the controller %+v", s.State, s.Controller)
	}
	if len(s.Alerts) != 1 || s.Alerts[0].Severity != telemetry.SeverityCritical || s.Alerts[0].Kind != telemetry.AlertStore || s.Alerts[0].Since == nil || s.Alerts[0].NextStep == "" {
		t.Errorf("got the alerts %+v", s.Alerts)
	}
	res, err := http.Get(s.Controller.Admin + "/healthz")
	if err != nil {
		t.Fatal(err)
	}
	res.Body.Close()
	if res.StatusCode != http.StatusServiceUnavailable {
		t.Errorf("its health is %d", res.StatusCode)
	}
	w.limitFiles("controller", unix.RLIM_INFINITY)
	if got := w.up(w.yaml(1, "m")); len(got) > 0 { // which waits for the controller
		t.Errorf("got %q, want no change", got)
	}
	w.checkStatus(rollout.StateReady)
	http.DefaultClient.CloseIdleConnections()
}
