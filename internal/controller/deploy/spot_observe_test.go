package deploy_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"skyserve/internal/service"
	"skyserve/provision"
)

// Interruptions implements provision.InterruptionReporter.
func (u *reconcilerWorld) Interruptions(_ context.Context, r service.Region, _ string) ([]provision.Object, error) {
	return objectsOf(u.ended, r), nil
}

// CapacityAdvice implements provision.CapacityAdvisor.
func (u *reconcilerWorld) CapacityAdvice(_ context.Context, r service.Region, offers provision.Offerings, count int) (advice []provision.CapacityAdvice, err error) {
	if u.advised++; count != 1 {
		return nil, errors.New("the requests differ")
	}
	for _, o := range offers {
		if score, known := u.scores[strings.TrimPrefix(o.Zone, r.ShortName())]; known {
			advice = append(advice, provision.CapacityAdvice{Type: o.Type, Zone: o.Zone, Score: &score})
		}
	}
	return advice, u.noScores
}

// objectsOf returns the objects of a region.
func objectsOf(all []provision.Object, r service.Region) (in []provision.Object) {
	for _, o := range all {
		if o.Region == r {
			in = append(in, o)
		}
	}
	return in
}

// interruptWithoutNotice ends a replica, which its cloud then reports but does not list.
func (u *reconcilerWorld) interruptWithoutNotice(id string) (zone string) {
	u.ChangeObject(id, func(o *provision.Object) {
		ended := *o
		ended.Interrupted, ended.TerminatedReason, zone = true, "terminated: Server.SpotInstanceTermination", o.Offering.Zone
		u.ended = append(u.ended, ended)
	})
	u.ChangeObject(id, nil)
	return zone
}

// zonesOf returns the zones of the spot replicas, by ID.
func (u *reconcilerWorld) zonesOf(r service.Region) map[string]string {
	zones := map[string]string{}
	for _, o := range objectsOf(u.Objects(), r) {
		if o.Kind == provision.KindReplica && o.Offering.Capacity == service.CapacitySpot {
			zones[o.ID] = strings.TrimPrefix(o.Offering.Zone, r.ShortName())
		}
	}
	return zones
}

// A spot machine that ended without a notice is counted once, before its replacement is launched, so that the
// replacement avoids the zone. A machine that somebody terminated is not counted.
func TestInterruptionWithoutNoticeCounts(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		u := newReconcilerWorld(t)
		rc := u.reconciler()
		u.reconcileFor(t, rc, 30*time.Second, always)
		bad := u.interruptWithoutNotice("us-east-1-0")
		u.reconcileFor(t, rc, 30*time.Minute, always)
		pools := u.spotRecord(t).Pools
		if len(pools) != 1 || pools[0].Zone != bad || pools[0].Events != 1 {
			t.Errorf("recorded %+v, want one event in %s", pools, bad)
		}
		for id, zone := range u.zonesOf("aws/us-east-1") {
			if strings.HasSuffix(bad, zone) {
				t.Errorf("%s was launched in %s again", id, bad)
			}
		}
		u.ChangeObject("us-east-1-1", nil)
		u.reconcileFor(t, rc, 30*time.Second, always)
		if again := u.spotRecord(t).Pools; len(again) != 1 || again[0].Events != 1 {
			t.Errorf("a machine that somebody terminated was counted: %+v", again)
		}
	})
}

// Launches follow the clouds' scores, which are read once an hour, and the log has the reason.
func TestLaunchesFollowScores(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		u := newReconcilerWorld(t)
		u.scores = map[string]float64{"a": 0.3, "b": 0.9}
		u.ChangeObject("us-east-1-0", nil)
		u.ChangeObject("us-east-1-1", nil)
		var text bytes.Buffer
		rc := u.reconciler()
		rc.SetProber(allServe)
		rc.Logger = slog.New(slog.NewTextHandler(&text, nil))
		u.reconcileFor(t, rc, 50*time.Minute, always)
		if got := u.zonesOf("aws/us-east-1"); len(got) != 2 || got["us-east-1-0"] != "b" || got["us-east-1-1"] != "b" {
			t.Errorf("got zones %v, want b, which has the best score", got)
		}
		if u.advised != 1 {
			t.Errorf("requested %d times within an hour, want once", u.advised)
		}
		if !strings.Contains(text.String(), "us-east-1b (no recent events, score 0.9), us-east-1a (no recent events, score 0.3)") {
			t.Errorf("the log has no reason:\n%s", &text)
		}
		u.noScores = &provision.AdviceLimitError{Err: errors.New("MaxConfigLimitExceeded")}
		u.scores = nil
		u.ChangeObject("us-east-1-0", nil)
		u.reconcileFor(t, rc, 3*time.Hour, always)
		if got := u.zonesOf("aws/us-east-1"); got["us-east-1-0"] != "b" {
			t.Errorf("without new scores: got zones %v, want b", got)
		}
		if n := strings.Count(text.String(), "MaxConfigLimitExceeded"); n != 1 {
			t.Errorf("the failure was logged %d times, want once", n)
		}
	})
}
