package conformance

import (
	"context"
	"errors"
	"reflect"
	"testing"

	"skyserve/provision"
)

// ZoneSubject is a DNS zone under test.
type ZoneSubject struct {
	Zone provision.DNSZone
	// Reopen returns another client of the same zone, like a restarted process.
	Reopen func(t *testing.T) provision.DNSZone
	// Name is a name with at least two records, as Get returns it.
	Name provision.PublicName
}

// RunZone checks that a DNS zone conforms to provision.DNSZone.
func RunZone(t *testing.T, open func(t *testing.T) ZoneSubject) {
	for _, tc := range []struct {
		name string
		test func(t *testing.T, s ZoneSubject)
	}{
		{"reads a name as it was set", readsBackName},
		{"setting replaces the records", replacesRecords},
		{"removing is idempotent", removesName},
		{"does not change another owner's name", rejectsOtherOwnersName},
		{"checking changes nothing", checksOnly},
		{"sets nothing with an ended context", setRejectsEndedContext},
	} {
		t.Run(tc.name, func(t *testing.T) { tc.test(t, open(t)) })
	}
}

// set sets a name, and fails the test on an error.
func (s ZoneSubject) set(t *testing.T, n provision.PublicName) {
	t.Helper()
	if err := s.Zone.Set(t.Context(), n); err != nil {
		t.Fatalf("setting %s: %v", n.Name, err)
	}
}

// checkReads fails the test if a restarted process does not read the expected name.
func (s ZoneSubject) checkReads(t *testing.T, want provision.PublicName) {
	t.Helper()
	got, err := s.Reopen(t).Get(t.Context(), want.Zone, want.Name)
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("read %+v, %v; want %+v", got, err, want)
	}
}

// emptyName returns the name without records.
func (s ZoneSubject) emptyName() provision.PublicName {
	return provision.PublicName{Name: s.Name.Name, Zone: s.Name.Zone, Private: s.Name.Private}
}

func readsBackName(t *testing.T, s ZoneSubject) {
	s.checkReads(t, s.emptyName())
	for range 2 {
		s.set(t, s.Name)
		s.checkReads(t, s.Name)
	}
}

func replacesRecords(t *testing.T, s ZoneSubject) {
	s.set(t, s.Name)
	fewer := s.Name
	fewer.Records = s.Name.Records[:1]
	s.set(t, fewer)
	s.checkReads(t, fewer)
	s.set(t, s.Name)
	s.checkReads(t, s.Name)
}

func removesName(t *testing.T, s ZoneSubject) {
	s.set(t, s.Name)
	none := s.Name
	none.Records = nil
	for range 2 {
		s.set(t, none)
		s.checkReads(t, s.emptyName())
	}
}

func rejectsOtherOwnersName(t *testing.T, s ZoneSubject) {
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
	s.checkReads(t, s.Name)
}

func checksOnly(t *testing.T, s ZoneSubject) {
	check := func() {
		t.Helper()
		if err := s.Zone.Check(t.Context(), s.Name); err != nil {
			t.Errorf("checking: %v", err)
		}
	}
	check()
	s.checkReads(t, s.emptyName())
	s.set(t, s.Name)
	check()
	s.checkReads(t, s.Name)
}

func setRejectsEndedContext(t *testing.T, s ZoneSubject) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := s.Zone.Set(ctx, s.Name); err == nil {
		t.Error("setting with an ended context succeeded")
	}
	s.checkReads(t, s.emptyName())
}
