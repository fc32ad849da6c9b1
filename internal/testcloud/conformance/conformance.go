// Package conformance contains the tests that every provider must pass. The tests of each provider call Run.
package conformance

import (
	"context"
	"errors"
	"slices"
	"testing"

	"skyserve/provision"
)

// Subject is a provider under test.
type Subject struct {
	Provider provision.Provider
	// Reopen returns another provider for the same cloud, like a restarted process.
	Reopen func(t *testing.T) provision.Provider
	// Service is the service of Desired.
	Service string
	// Desired contains at least two objects, prerequisites first. They can be created concurrently. Each has an
	// offering if the provider has offerings.
	Desired []provision.Desired
	// Other is an object of another service; its ID is empty if a provider has only one service.
	Other provision.Desired
	// HasOwners reports whether objects have owners. Local objects have none.
	HasOwners bool
	// WaitListed, if set, waits until List returns created objects.
	WaitListed func()
}

// Run checks that a provider conforms to provision.Provider.
func Run(t *testing.T, open func(t *testing.T) Subject) {
	for _, tc := range []struct {
		name string
		test func(t *testing.T, s Subject)
	}{
		{"lists launched objects as desired", listsCreatedObjects},
		{"launching twice creates one object", launchTwice},
		{"two processes create one object", launchFromTwoClients},
		{"terminating is idempotent", terminates},
		{"launches again after termination", launchAfterTermination},
		{"does not list another service", separatesServices},
		{"does not change another owner's object", rejectsOtherOwners},
		{"offerings are of the region", offersOwnRegions},
		{"launches nothing with an ended context", launchRejectsEndedContext},
		{"terminates nothing with an ended context", terminateRejectsEndedContext},
	} {
		t.Run(tc.name, func(t *testing.T) { tc.test(t, open(t)) })
	}
}

// launch launches all desired objects.
func launch(t *testing.T, p provision.Provider, wants []provision.Desired) {
	t.Helper()
	for _, w := range wants {
		if _, err := p.Launch(t.Context(), w); err != nil {
			t.Fatalf("launching %s: %v", w.ID, err)
		}
	}
}

// live lists the objects that are not terminated.
func (s Subject) live(t *testing.T, p provision.Provider) []provision.Object {
	t.Helper()
	if s.WaitListed != nil {
		s.WaitListed()
	}
	all, err := p.List(t.Context(), s.Service)
	if err != nil {
		t.Fatalf("listing: %v", err)
	}
	return slices.DeleteFunc(all, func(o provision.Object) bool { return o.TerminatedReason != "" })
}

func listsCreatedObjects(t *testing.T, s Subject) {
	launch(t, s.Provider, s.Desired)
	have := s.live(t, s.Provider)
	if changes := provision.Diff(s.Desired, have); len(changes) != 0 {
		t.Fatalf("after launching all objects, Diff returns %+v", changes)
	}
	for _, o := range have {
		if o.Service != s.Service || o.Handle == "" {
			t.Errorf("%s has service %q and handle %q", o.ID, o.Service, o.Handle)
		}
	}
}

func launchTwice(t *testing.T, s Subject) {
	launch(t, s.Provider, s.Desired)
	launch(t, s.Provider, s.Desired)
	if have := s.live(t, s.Provider); len(have) != len(s.Desired) {
		t.Fatalf("launching %d objects twice: got %d objects: %+v", len(s.Desired), len(have), have)
	}
}

func launchFromTwoClients(t *testing.T, s Subject) {
	launch(t, s.Provider, s.Desired)
	other := s.Reopen(t)
	launch(t, other, s.Desired) // at once, before lists contain the first launches
	if have := s.live(t, other); len(have) != len(s.Desired) {
		t.Fatalf("two processes launching the same %d objects: got %d objects: %+v", len(s.Desired), len(have), have)
	}
}

func terminates(t *testing.T, s Subject) {
	launch(t, s.Provider, s.Desired)
	have := s.live(t, s.Provider)
	slices.Reverse(s.Desired) // dependents first
	for _, w := range s.Desired {
		i := slices.IndexFunc(have, func(o provision.Object) bool { return o.ID == w.ID })
		if i < 0 {
			t.Fatalf("%s is not listed", w.ID)
		}
		for range 2 {
			if err := s.Provider.Terminate(t.Context(), have[i]); err != nil {
				t.Fatalf("terminating %s: %v", w.ID, err)
			}
		}
	}
	if left := s.live(t, s.Reopen(t)); len(left) != 0 {
		t.Fatalf("after terminating all objects, there are %+v", left)
	}
}

func launchAfterTermination(t *testing.T, s Subject) {
	launch(t, s.Provider, s.Desired)
	last := s.Desired[len(s.Desired)-1]
	for _, o := range s.live(t, s.Provider) {
		if o.ID == last.ID {
			if err := s.Provider.Terminate(t.Context(), o); err != nil {
				t.Fatalf("terminating %s: %v", o.ID, err)
			}
		}
	}
	o, err := s.Provider.Launch(t.Context(), last)
	if err != nil || o.TerminatedReason != "" {
		t.Fatalf("launching %s again: %+v, %v", last.ID, o, err)
	}
	if have := s.live(t, s.Provider); len(have) != len(s.Desired) {
		t.Fatalf("got %d objects, want %d: %+v", len(have), len(s.Desired), have)
	}
}

func separatesServices(t *testing.T, s Subject) {
	launch(t, s.Provider, s.Desired)
	if s.Other.ID != "" {
		launch(t, s.Provider, []provision.Desired{s.Other})
	}
	have := s.live(t, s.Provider)
	for _, o := range have {
		if o.Service != s.Service {
			t.Errorf("listing %s returned %s of %s", s.Service, o.ID, o.Service)
		}
	}
	if len(have) != len(s.Desired) {
		t.Errorf("got %d objects, want %d: %+v", len(have), len(s.Desired), have)
	}
}

func rejectsOtherOwners(t *testing.T, s Subject) {
	launch(t, s.Provider, s.Desired)
	if !s.HasOwners {
		return
	}
	for _, w := range s.Desired {
		w.Owner = "another"
		var owned *provision.OwnedError
		if _, err := s.Reopen(t).Launch(t.Context(), w); !errors.As(err, &owned) {
			t.Errorf("launching %s for another owner: %v, want an OwnedError", w.ID, err)
		}
	}
	if changes := provision.Diff(s.Desired, s.live(t, s.Provider)); len(changes) != 0 {
		t.Errorf("after rejecting another owner, Diff returns %+v", changes)
	}
}

func offersOwnRegions(t *testing.T, s Subject) {
	for _, w := range s.Desired {
		if w.Machine == nil { // not a VM
			continue
		}
		offers, err := s.Provider.Offerings(t.Context(), w.Region)
		if err != nil || len(offers) == 0 && len(w.Offerings) > 0 {
			t.Errorf("%s offers %d machines, %v", w.Region, len(offers), err)
		}
		for _, o := range offers {
			if o.Region != w.Region || o.Type == "" {
				t.Errorf("%s offers %+v", w.Region, o)
			}
		}
	}
}

func terminateRejectsEndedContext(t *testing.T, s Subject) {
	launch(t, s.Provider, s.Desired)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	have := s.live(t, s.Provider)
	for _, o := range have {
		if err := s.Provider.Terminate(ctx, o); err == nil {
			t.Errorf("terminating %s with an ended context succeeded", o.ID)
		}
	}
	if left := s.live(t, s.Reopen(t)); len(left) != len(have) {
		t.Errorf("got %[2]d objects, want %[1]d", len(have), len(left))
	}
}

func launchRejectsEndedContext(t *testing.T, s Subject) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for _, w := range s.Desired {
		if _, err := s.Provider.Launch(ctx, w); err == nil {
			t.Fatalf("launching %s with an ended context succeeded", w.ID)
		}
	}
	if have := s.live(t, s.Provider); len(have) != 0 {
		t.Fatalf("got %+v, want no objects", have)
	}
}
