// Package conformance contains the requirements on every provider: the tests of each provider call Run.
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
	// Reopen makes another provider of the same place, as a program does that is
	// started again.
	Reopen func(t *testing.T) provision.Provider
	// Service is the name that the wants carry.
	Service string
	// Wants are at least two objects that can be made in any order and at once, with
	// what each stands on before it; each has an offering where the place has any.
	Wants []provision.Desired
	// Other is of another service; its ID is empty where a provider is for one.
	Other provision.Desired
	// Owned says that the place knows owners: of a machine that one person uses it does not.
	Owned bool
	// Settle, where it is set, lets what was made come to be seen by List.
	Settle func()
}

// Run holds a provider to its contract.
func Run(t *testing.T, open func(t *testing.T) Subject) {
	for _, law := range []struct {
		name string
		test func(t *testing.T, s Subject)
	}{
		{"a launched object is listed as it was wanted", listsWhatItMade},
		{"launching twice makes one", launchTwice},
		{"another program makes nothing twice", launchFromTwoPrograms},
		{"a terminated object is gone, and goes again without an error", terminates},
		{"an object is launched anew after it went", launchAgain},
		{"a second service is left alone", keepsApart},
		{"another owner's object is left alone", keepsOwners},
		{"what is offered is of the region", offersItsOwn},
		{"a context that ended launches nothing", obeysContext},
		{"a context that ended terminates nothing", terminatesNothingLate},
	} {
		t.Run(law.name, func(t *testing.T) { law.test(t, open(t)) })
	}
}

// launch makes every want of a subject.
func launch(t *testing.T, p provision.Provider, wants []provision.Desired) {
	t.Helper()
	for _, w := range wants {
		if _, err := p.Launch(t.Context(), w); err != nil {
			t.Fatalf("launching %s: %v", w.ID, err)
		}
	}
}

// live lists what runs, by id.
func (s Subject) live(t *testing.T, p provision.Provider) []provision.Object {
	t.Helper()
	if s.Settle != nil {
		s.Settle()
	}
	all, err := p.List(t.Context(), s.Service)
	if err != nil {
		t.Fatalf("listing: %v", err)
	}
	return slices.DeleteFunc(all, func(o provision.Object) bool { return o.TerminatedReason != "" })
}

func listsWhatItMade(t *testing.T, s Subject) {
	launch(t, s.Provider, s.Wants)
	have := s.live(t, s.Provider)
	if changes := provision.Diff(s.Wants, have); len(changes) != 0 {
		t.Fatalf("after launching all of it, there is still to do: %+v", changes)
	}
	for _, o := range have {
		if o.Service != s.Service || o.Handle == "" {
			t.Errorf("%s is listed with service %q and handle %q", o.ID, o.Service, o.Handle)
		}
	}
}

func launchTwice(t *testing.T, s Subject) {
	launch(t, s.Provider, s.Wants)
	launch(t, s.Provider, s.Wants)
	if have := s.live(t, s.Provider); len(have) != len(s.Wants) {
		t.Fatalf("launched %d objects twice, and there are %d: %+v", len(s.Wants), len(have), have)
	}
}

func launchFromTwoPrograms(t *testing.T, s Subject) {
	launch(t, s.Provider, s.Wants)
	other := s.Reopen(t)
	launch(t, other, s.Wants) // at once: before a list would show the first
	if have := s.live(t, other); len(have) != len(s.Wants) {
		t.Fatalf("two programs launched the same %d objects, and there are %d: %+v", len(s.Wants), len(have), have)
	}
}

func terminates(t *testing.T, s Subject) {
	launch(t, s.Provider, s.Wants)
	have := s.live(t, s.Provider)
	slices.Reverse(s.Wants) // what stands on others goes first
	for _, w := range s.Wants {
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
		t.Fatalf("terminated all of it, and there is left: %+v", left)
	}
}

func launchAgain(t *testing.T, s Subject) {
	launch(t, s.Provider, s.Wants)
	last := s.Wants[len(s.Wants)-1]
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
	if have := s.live(t, s.Provider); len(have) != len(s.Wants) {
		t.Fatalf("there are %d objects of %d: %+v", len(have), len(s.Wants), have)
	}
}

func keepsApart(t *testing.T, s Subject) {
	launch(t, s.Provider, s.Wants)
	if s.Other.ID != "" {
		launch(t, s.Provider, []provision.Desired{s.Other})
	}
	have := s.live(t, s.Provider)
	for _, o := range have {
		if o.Service != s.Service {
			t.Errorf("asked for %s, and was shown %s of %s", s.Service, o.ID, o.Service)
		}
	}
	if len(have) != len(s.Wants) {
		t.Errorf("there are %d objects of %d: %+v", len(have), len(s.Wants), have)
	}
}

func keepsOwners(t *testing.T, s Subject) {
	launch(t, s.Provider, s.Wants)
	if !s.Owned {
		return
	}
	for _, w := range s.Wants {
		w.Owner = "another"
		var owned *provision.OwnedError
		if _, err := s.Reopen(t).Launch(t.Context(), w); !errors.As(err, &owned) {
			t.Errorf("launching %s for another owner: %v, want an OwnedError", w.ID, err)
		}
	}
	if changes := provision.Diff(s.Wants, s.live(t, s.Provider)); len(changes) != 0 {
		t.Errorf("another owner was refused, and there is to do: %+v", changes)
	}
}

func offersItsOwn(t *testing.T, s Subject) {
	for _, w := range s.Wants {
		if w.Machine == nil { // it is rented nowhere
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

func terminatesNothingLate(t *testing.T, s Subject) {
	launch(t, s.Provider, s.Wants)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	have := s.live(t, s.Provider)
	for _, o := range have {
		if err := s.Provider.Terminate(ctx, o); err == nil {
			t.Errorf("terminated %s although the context had ended", o.ID)
		}
	}
	if left := s.live(t, s.Reopen(t)); len(left) != len(have) {
		t.Errorf("of %d objects there are %d", len(have), len(left))
	}
}

func obeysContext(t *testing.T, s Subject) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for _, w := range s.Wants {
		if _, err := s.Provider.Launch(ctx, w); err == nil {
			t.Fatalf("launched %s although the context had ended", w.ID)
		}
	}
	if have := s.live(t, s.Provider); len(have) != 0 {
		t.Fatalf("there is %+v", have)
	}
}
