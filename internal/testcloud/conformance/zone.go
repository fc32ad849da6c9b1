package conformance

import (
	"context"
	"errors"
	"reflect"
	"testing"

	"skyserve/provision"
)

// ZoneSubject is a zone under test.
type ZoneSubject struct {
	Zone provision.DNSZone
	// Reopen makes another one of the same place, as a program does that is started again.
	Reopen func(t *testing.T) provision.DNSZone
	// Name is a name with at least two records, as Get reads it again.
	Name provision.PublicName
}

// RunZone holds a zone to its contract.
func RunZone(t *testing.T, open func(t *testing.T) ZoneSubject) {
	for _, law := range []struct {
		name string
		test func(t *testing.T, s ZoneSubject)
	}{
		{"a name is read as it was set", readsWhatItSet},
		{"a name becomes what it is set to", becomes},
		{"a name without records is gone, and goes again without an error", unset},
		{"another owner's name is left alone", refusesTheirs},
		{"checking changes nothing", checksOnly},
		{"a context that ended sets nothing", setsNothingLate},
	} {
		t.Run(law.name, func(t *testing.T) { law.test(t, open(t)) })
	}
}

// set makes a name so.
func (s ZoneSubject) set(t *testing.T, n provision.PublicName) {
	t.Helper()
	if err := s.Zone.Set(t.Context(), n); err != nil {
		t.Fatalf("setting %s: %v", n.Name, err)
	}
}

// reads is an error where another program does not read a name so.
func (s ZoneSubject) reads(t *testing.T, want provision.PublicName) {
	t.Helper()
	got, err := s.Reopen(t).Get(t.Context(), want.Zone, want.Name)
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("read %+v, %v; want %+v", got, err, want)
	}
}

// nothing is a name that is not there.
func (s ZoneSubject) nothing() provision.PublicName {
	return provision.PublicName{Name: s.Name.Name, Zone: s.Name.Zone, Private: s.Name.Private}
}

func readsWhatItSet(t *testing.T, s ZoneSubject) {
	s.reads(t, s.nothing())
	for range 2 {
		s.set(t, s.Name)
		s.reads(t, s.Name)
	}
}

func becomes(t *testing.T, s ZoneSubject) {
	s.set(t, s.Name)
	fewer := s.Name
	fewer.Records = s.Name.Records[:1]
	s.set(t, fewer)
	s.reads(t, fewer)
	s.set(t, s.Name)
	s.reads(t, s.Name)
}

func unset(t *testing.T, s ZoneSubject) {
	s.set(t, s.Name)
	none := s.Name
	none.Records = nil
	for range 2 {
		s.set(t, none)
		s.reads(t, s.nothing())
	}
}

func refusesTheirs(t *testing.T, s ZoneSubject) {
	s.set(t, s.Name)
	theirs := s.Name
	theirs.Owner = "another"
	none := theirs
	none.Records = nil
	for doing, err := range map[string]error{
		"checking": s.Zone.Check(t.Context(), theirs), "setting": s.Zone.Set(t.Context(), theirs), "removing": s.Zone.Set(t.Context(), none),
	} {
		var owned *provision.OwnedError
		if !errors.As(err, &owned) {
			t.Errorf("%s another owner's name: %v, want an OwnedError", doing, err)
		}
	}
	s.reads(t, s.Name)
}

func checksOnly(t *testing.T, s ZoneSubject) {
	check := func() {
		t.Helper()
		if err := s.Zone.Check(t.Context(), s.Name); err != nil {
			t.Errorf("checking: %v", err)
		}
	}
	check()
	s.reads(t, s.nothing())
	s.set(t, s.Name)
	check()
	s.reads(t, s.Name)
}

func setsNothingLate(t *testing.T, s ZoneSubject) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := s.Zone.Set(ctx, s.Name); err == nil {
		t.Error("it was set although the context had ended")
	}
	s.reads(t, s.nothing())
}
