package breaker

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

// Undo of a failure restores the previous state of the breaker, if nothing else happened since.
func TestUndoRevertsOneFailure(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var k Breaker
		now := time.Duration(0)
		for range rapid.IntRange(0, 12).Draw(t, "failures") {
			now += time.Duration(rapid.IntRange(1, 9000).Draw(t, "ms")) * time.Millisecond
			k.Failed(now, now)
			if k.Failures() > 3 && !k.Ejected(now) {
				k.Eject(now, time.Second, time.Minute)
			}
		}
		before := k
		k.Failed(now, now)
		if !k.Ejected(now) && rapid.Bool().Draw(t, "ejects") {
			k.Eject(now, time.Second, time.Minute)
		}
		k.Undo(before, k)
		if k.Failures() != before.Failures() || k.Ejected(now) != before.Ejected(now) || k.Open() != before.Open() {
			t.Fatalf("%+v, want %+v", k, before)
		}
	})
}

// Each consecutive ejection is twice as long, up to the maximum.
func TestEjectionsDouble(t *testing.T) {
	var k Breaker
	for i, want := range []time.Duration{1, 2, 4, 8, 10, 10} {
		k.Eject(0, time.Second, 10*time.Second)
		if !k.Ejected(want*time.Second-1) || k.Ejected(want*time.Second) {
			t.Errorf("ejection %d does not last %d s", i+1, want)
		}
	}
}

func TestReasonOfEjectionIsRecognised(t *testing.T) {
	var k Breaker
	if IsEjection(k.Reason(0)) || IsEjection("no response to 3 probes") {
		t.Error("a replica that is not ejected has the reason of one that is")
	}
	k.Eject(0, time.Second, time.Minute)
	if got := k.Reason(0); !IsEjection(got) {
		t.Errorf("%q is not recognised", got)
	}
}

// An ejected replica receives one trial request at a time.
func TestEjectedReplicaGetsOneTrial(t *testing.T) {
	var k Breaker
	k.Eject(0, time.Second, time.Minute)
	k.Sent(7)
	k.Sent(8)
	k.Ended(8)
	if !k.TrialRunning() || !k.IsTrial(7) || k.IsTrial(8) {
		t.Errorf("%+v, want request 7 to try it", k)
	}
	if k.Ended(7); k.TrialRunning() {
		t.Error("nobody tries it any more")
	}
}

// Retries never exceed the burst and the share of what arrived.
func TestBudgetBoundsRetries(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		burst := rapid.IntRange(1, 9).Draw(t, "burst")
		b, arrived, spent := NewBudget(burst), 0, 0
		for range rapid.IntRange(0, 200).Draw(t, "events") {
			if rapid.Bool().Draw(t, "arrives") {
				b.Earn(0.25, burst)
				arrived++
			} else if b.Spend(burst) {
				spent++
			}
			if float64(spent) > float64(burst)+0.25*float64(arrived) {
				t.Fatalf("%d retries of %d arrivals with a burst of %d", spent, arrived, burst)
			}
		}
	})
}
